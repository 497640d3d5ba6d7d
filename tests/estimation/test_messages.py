"""Messages: unbiased, with the variance and the epsilon that they state."""

import math

import numpy as np
import pytest
from scipy.special import expit

from tacit.errors import TacitError
from tacit.estimation import GaussianMeans
from tacit.estimation.messages import (
    Central,
    Domain,
    Exact,
    LocalGaussian,
    Message,
    Quantized,
    RandomisedResponse,
    SecureSource,
    source,
)
from tacit.privacy.accounting.accountant import epsilon
from tacit.privacy.audit import Verdict, audit

DOMAIN = Domain(0.7, 0.2)
MANY = 40_000
MESSAGES = [Exact(), Quantized(1), Quantized(3), RandomisedResponse(0.5), RandomisedResponse(3.0)]
MESSAGES += [LocalGaussian(1.0, 1e-5), Central(1.0, 1e-5)]


def sent(message: Message, value: float, many: int = MANY, seed: int = 0) -> np.ndarray:
    return message.send(np.full((many, 1), value), DOMAIN, source(seed, "test"))[:, 0]


@pytest.mark.parametrize("value", [-0.5, -0.1, 0.2, 0.63, 0.9])
@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_a_message_is_unbiased_inside_the_domain(message: Message, value: float) -> None:
    got = sent(message, value)
    assert abs(got.mean() - value) <= 3 * got.std() / math.sqrt(MANY) + 1e-12


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_the_stated_variance_is_not_exceeded(message: Message) -> None:
    for value in np.linspace(-0.5, 0.9, 9):
        got = sent(message, value)
        squares = np.square(got - value)
        assert squares.mean() - 3 * squares.std() / math.sqrt(MANY) <= message.variance(DOMAIN) + 1e-12


@pytest.mark.parametrize("message", [Quantized(1), Quantized(3), RandomisedResponse(1.0)], ids=repr)
def test_the_exact_variance_at_a_value_is_the_measured_one(message: Quantized | RandomisedResponse) -> None:
    for value in (-0.45, 0.0, 0.31, 0.7):
        squares = np.square(sent(message, value) - value)
        exact = message.variance_at(np.array([[value]]), DOMAIN)[0, 0]
        assert abs(squares.mean() - exact) <= 3 * squares.std() / math.sqrt(MANY) + 1e-12


def test_gaussian_noise_has_exactly_the_stated_variance() -> None:
    message = LocalGaussian(2.0, 1e-6)
    noise = sent(message, 0.2) - 0.2
    assert np.var(noise) == pytest.approx(message.variance(DOMAIN), rel=4 * math.sqrt(2 / MANY))


def test_a_quantizer_of_k_bits_uses_at_most_two_to_the_k_values() -> None:
    values = np.random.default_rng(0).uniform(-0.5, 0.9, (5000, 1))
    for width in (1, 2, 4):
        assert len(np.unique(np.round(Quantized(width).send(values, DOMAIN, source(0, "q")), 9))) == 2**width


def test_a_value_outside_is_brought_to_the_edge_first() -> None:
    assert sent(Quantized(2), 50.0).max() == pytest.approx(0.9)
    assert Central(1.0, 1e-5).send(np.array([[3.0, 4.0]]), Domain(1.0), source(0, "c")) == pytest.approx(
        np.array([[0.6, 0.8]])
    )


def test_lifting_a_ball_does_not_widen_it() -> None:
    draw = np.random.default_rng(1)
    domain = Domain(1.7, 0.0, 3)
    points = domain.lifted(draw.normal(size=(1500, 3)) * draw.choice([0.1, 1.0, 9.0], (1500, 1)))
    squares = np.square(points).sum(1)
    distances = squares[:, None] + squares - 2 * points @ points.T
    assert distances.max() <= (2 * domain.radius) ** 2 * (1 + 1e-9)


@pytest.mark.parametrize("message", [RandomisedResponse(0.7), LocalGaussian(0.7, 1e-5), Central(0.7, 1e-5)], ids=repr)
def test_the_event_costs_the_stated_epsilon(message: Message) -> None:
    assert epsilon({message.event(): 1}, message.delta or 1e-9, "replace") == pytest.approx(0.7, rel=2e-3)


def test_repeated_messages_together_cost_the_stated_epsilon() -> None:
    for message in (RandomisedResponse(1.0), LocalGaussian(1.0, 1e-5)):
        each = message.repeated(8)
        assert epsilon({each.event(): 8}, message.delta or 1e-12, "replace") <= 1.0 + 2e-3


AUDITED = [RandomisedResponse(1.0), RandomisedResponse(3.0), LocalGaussian(1.0, 1e-5), LocalGaussian(3.0, 1e-5)]


def attacked(message: Message, truly: Message, many: int = 200_000) -> Verdict:
    """Two clients at the ends of the domain, told apart by what `truly` sends while `message` is claimed."""
    draw = source(3, "break ties")
    worlds = [sent(truly, value, many, at) for at, value in enumerate((-0.5, 0.9))]
    scores = [world + 1e-6 * draw.standard_normal(len(world)) for world in worlds]
    return audit(scores[0], scores[1], message.epsilon, message.delta)


@pytest.mark.parametrize("message", AUDITED, ids=repr)
def test_a_distinguishing_attack_does_not_disprove_the_claim(message: Message) -> None:
    verdict = attacked(message, message)
    assert not verdict.disproved
    assert verdict.lower_bound > 0.4 * message.epsilon


class HalfGaussian(LocalGaussian):
    """The bug to catch."""

    def std(self, domain: Domain) -> float:
        return super().std(domain) / 2


class HalfLiar(RandomisedResponse):
    """The bug to catch: lies half as often as it must."""

    def chance(self, values: np.ndarray, domain: Domain) -> np.ndarray:
        lie = float(expit(-self.epsilon)) / 2
        return lie + (1 - 2 * lie) * (values - domain.centre + domain.radius) / (2 * domain.radius)


@pytest.mark.parametrize(
    ("message", "broken"),
    [
        (LocalGaussian(1.0, 1e-5), HalfGaussian(1.0, 1e-5)),
        (LocalGaussian(3.0, 1e-5), HalfGaussian(3.0, 1e-5)),
        (RandomisedResponse(1.0), HalfLiar(1.0)),
        (RandomisedResponse(3.0), HalfLiar(3.0)),
    ],
    ids=repr,
)
def test_the_attack_finds_half_the_noise(message: Message, broken: Message) -> None:
    assert attacked(message, broken).disproved


class HalfCentral(Central):
    """The bug to catch."""

    def server_std(self, domain: Domain) -> float:
        return super().server_std(domain) / 2


def told_by_a_trusted_server(message: Central, value: float, seed: int, tries: int = 20_000) -> np.ndarray:
    """What is released of three clients, one at `value`, the others at 0: the noise of many coordinates of the centre
    is as many draws of it, and the clients' mean is added."""
    make = GaussianMeans(prior_variance=1.0, noise_variance=1.0, message=message, radius=1.0, seed=seed)
    return make.fit(np.zeros((3, tries))).centre_ + value / 3


@pytest.mark.parametrize(("message", "caught"), [(Central(2.0, 1e-3), False), (HalfCentral(2.0, 1e-3), True)])
def test_an_attack_on_what_a_trusted_server_tells(
    message: Central, caught: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the box that would hide large noise."""
    monkeypatch.setattr(Domain, "box", lambda self, values: values)
    scores = [told_by_a_trusted_server(message, value, seed) for seed, value in enumerate((-1.0, 1.0))]
    assert audit(scores[0], scores[1], message.epsilon, message.delta).disproved is caught


def test_the_secure_source_is_uniform_and_normal() -> None:
    secure = SecureSource()
    uniform, normal = secure.random((100, 50)), secure.standard_normal(5000)
    assert uniform.shape == (100, 50)
    assert abs(uniform.mean() - 0.5) < 0.03
    assert abs(normal.mean()) < 0.1
    assert abs(normal.std() - 1) < 0.06
    assert np.isfinite(normal).all()


def test_bits_are_stated() -> None:
    wide = Domain(1.0, 0.0, 10)
    assert [message.bits(wide) for message in (Exact(), Quantized(3), LocalGaussian(1, 1e-5))] == [640, 30, 640]
    assert RandomisedResponse(1.0).bits(DOMAIN) == 1


def test_impossible_budgets_and_widths_are_refused() -> None:
    for make in (
        lambda: RandomisedResponse(0.0),
        lambda: LocalGaussian(math.nan, 1e-5),
        lambda: Central(1.0, 1.0),
        lambda: Quantized(0),
        lambda: Domain(0.0),
    ):
        with pytest.raises(TacitError):
            make()
    with pytest.raises(TacitError, match="LocalGaussian"):
        RandomisedResponse(1.0).send(np.zeros((3, 2)), Domain(1.0, 0.0, 2), source(0, "x"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.7e308])
@pytest.mark.parametrize("message", [RandomisedResponse(0.5), LocalGaussian(1.0, 1e-5), Central(1.0, 1e-5)], ids=repr)
def test_no_value_can_be_told_from_others_by_not_being_a_number(message: Message, value: float) -> None:
    got = sent(message, value)
    assert np.isfinite(got).all()
    if not isinstance(message, Central):
        assert got.std() > 0.1


def test_a_client_whose_sum_is_beyond_all_numbers_moves_the_centre_no_more_than_others() -> None:
    values, groups = np.random.default_rng(0).normal(size=(40, 1)), np.repeat(np.arange(20), 2)
    values[:2] = 1.7e308
    with np.errstate(all="ignore"):
        told = GaussianMeans(noise_variance=1.0, radius=1.0, message=LocalGaussian(1.0, 1e-3), seed=0)
        assert np.isfinite(told.fit(values, groups=groups).centre_).all()
