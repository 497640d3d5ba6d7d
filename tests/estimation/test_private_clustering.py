"""Clusters from noisy sums: the sensitivity that the proof states, an attack on a release, and that kinds are found."""

import math

import numpy as np
import pytest

from tacit.errors import TacitError
from tacit.estimation import MixtureMeans, MixturePriorRegressions
from tacit.estimation import private_clustering as clustering
from tacit.estimation.messages import Central, Domain, LocalGaussian
from tacit.privacy.accounting.gaussian import gaussian_multiplier

CENTRES = np.array([[0.0, 0.0], [2.0, 1.0], [-1.0, 2.0]])
DELTA = 1e-5


class Silent(Central):
    """Without noise, to see the sums themselves."""

    def server_std(self, domain: Domain) -> float:
        return 0.0


def added(value: np.ndarray, belongs: np.ndarray, radius: float = 3.0) -> np.ndarray:
    """What one client adds to a release, as long as noise is: in the units that the proof counts in."""
    domain = Domain(radius, dimension=value.size)
    sums = clustering.release_sums(value[None], belongs[None], Silent(1.0, DELTA), domain, 0, 0)
    scaled = [sums.values / radius, sums.counts[:, None] * math.sqrt(0.5), sums.squares[:, None] / radius**2]
    return np.column_stack([*scaled[:2], scaled[2] * math.sqrt(0.5)]).ravel()


def test_no_two_clients_are_further_apart_than_the_diameter() -> None:
    """2 radii, reached by opposite ends of one cluster and by two clusters; random clients stay below."""
    draw = np.random.default_rng(0)
    farthest = 0.0
    for _ in range(2_000):
        values = draw.normal(size=(2, 2)) * draw.choice([0.5, 3.0, 50.0], size=(2, 1))
        belongs = draw.dirichlet(np.full(3, draw.choice([0.05, 1.0])), size=2)
        farthest = max(farthest, float(np.linalg.norm(added(values[0], belongs[0]) - added(values[1], belongs[1]))))
    assert farthest <= 2 + 1e-9
    one, ends = np.eye(3), np.array([[3.0, 0.0], [-3.0, 0.0]])
    assert np.linalg.norm(added(ends[0], one[0]) - added(ends[1], one[0])) == pytest.approx(2.0)
    assert np.linalg.norm(added(ends[0], one[0]) - added(ends[1], one[1])) == pytest.approx(2.0)


class HalfTheNoise(Central):
    """The planted bug."""

    def server_std(self, domain: Domain) -> float:
        return super().server_std(domain) / 2


def attack(message: Central, trials: int = 6_000) -> float:
    """The largest epsilon that a threshold on real releases proves, of two clients as far apart as any."""
    domain, ends = Domain(3.0, dimension=1), (np.array([[3.0]]), np.array([[-3.0]]))
    scores = []
    for world, (value, belongs) in enumerate(zip(ends, np.eye(2), strict=True)):
        sums = [clustering.release_sums(value, belongs[None], message, domain, world, at) for at in range(trials)]
        sent, counts = np.array([each.values[:, 0] for each in sums]) / 3, np.array([each.counts for each in sums])
        squares = np.array([each.squares for each in sums]) / 9
        scores.append(sent[:, 0] + sent[:, 1] + 0.5 * (counts + squares) @ [1.0, -1.0])  # along their difference
    proven = 0.0
    for threshold in np.linspace(-6, 6, 120):
        hit, false = (np.mean(each > threshold) for each in scores)
        low = hit - 3.3 * math.sqrt(hit * (1 - hit) / trials) - message.delta
        high = false + 3.3 * math.sqrt(false * (1 - false) / trials) + 11 / trials * (false == 0)
        proven = max(proven, math.log(low / high) if low > 0 else 0.0)
    return proven


def test_an_attack_on_a_release_proves_no_more_than_was_stated_and_finds_half_the_noise() -> None:
    assert 0.5 < attack(Central(1.0, 0.02)) < 1.0
    assert attack(HalfTheNoise(1.0, 0.02)) > 1.0


def test_noise_is_as_large_as_stated_and_new_in_every_release() -> None:
    domain, message = Domain(2.0, dimension=40), Central(1.0, DELTA).repeated(3)
    values, belongs = np.zeros((10, 40)), np.full((10, 30), 1 / 30)
    first, second = (clustering.release_sums(values, belongs, message, domain, 0, at).values for at in (0, 1))
    stated = message.server_std(domain)
    assert stated == pytest.approx(4 * gaussian_multiplier(1.0, DELTA) * math.sqrt(3))
    assert first.std() == pytest.approx(stated, rel=0.1)
    assert not np.allclose(first, second)


def test_weights_that_are_no_shares_are_refused() -> None:
    with pytest.raises(TacitError, match="must be shares"):
        clustering.release_sums(np.zeros((2, 1)), np.ones((2, 2)), Central(1.0, DELTA), Domain(1.0), 0, 0)


def kinds(m: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    truth = CENTRES[draw.choice(3, m, p=[0.5, 0.3, 0.2])]
    return truth, truth + math.sqrt(noise) * draw.normal(size=truth.shape)


@pytest.mark.parametrize("moments", ["debiased", "as-published"])
def test_a_trusted_server_finds_kinds_at_epsilon_1(moments: str) -> None:
    """Where messages of their own, at the same epsilon, show nothing."""
    truth, x = kinds(4_000, 0.3, 0)
    how = {"n_kinds": 3, "noise_variance": 0.3, "radius": 5.0, "moments": moments, "rounds": 4, "seed": 0}
    found = MixtureMeans(message=Central(1.0, DELTA), **how).fit(x)
    far = np.linalg.norm(found.centres_[:, None] - CENTRES, axis=2).min(0).max()
    assert far < 0.35
    assert "epsilon 1 (client-level, central, trusted server, replace" in found.privacy_
    gain = found.compare(truth)["personal"].measured_gain
    local = MixtureMeans(message=LocalGaussian(1.0, DELTA), **how).fit(x).compare(truth)["personal"].measured_gain
    assert gain is not None
    assert local is not None
    assert gain > 0.5 > 0.1 > local


def test_kinds_that_noise_hides_move_nobody() -> None:
    truth, x = kinds(100, 0.3, 1)
    message = Central(0.1, 1e-3)
    found = MixtureMeans(n_kinds=3, noise_variance=0.3, radius=5.0, message=message, seed=0).fit(x)
    gain = found.compare(truth)["personal"].measured_gain
    assert gain is not None
    assert gain > -0.01


@pytest.mark.parametrize("solver", ["cluster", "discrete"])
def test_algorithms_4_and_7_find_two_groups_behind_a_servers_noise(solver: str) -> None:
    draw = np.random.default_rng(0)
    theta = np.where(draw.random((1_000, 1)) < 0.5, 1.0, -1.0) * np.ones(3)
    x = draw.normal(size=(1_000, 8, 3))
    y = (x @ theta[:, :, None])[..., 0] + 0.5 * draw.normal(size=(1_000, 8))
    found = MixturePriorRegressions(
        solver=solver, noise_variance=0.25, radius=3.0, rounds=3, message=Central(2.0, DELTA), seed=0
    ).fit([*x], [*y])
    errors = {
        name: np.square(each - theta).sum(1).mean() for name, each in (("own", found.local_), ("all", found.estimates_))
    }
    assert np.abs(np.abs(found.centres_) - 1).max() < 0.35
    assert errors["all"] < 0.5 * errors["own"]
    assert "central, trusted server" in found.privacy_
    assert "7 messages" in found.privacy_
