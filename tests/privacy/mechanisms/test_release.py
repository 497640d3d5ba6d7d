"""What is released is what the event says: std, sensitivity, divisors (rules 1, 3, 8, 11, 12)."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from tacit.core import tree
from tacit.core.contract import Shared, Tree
from tacit.privacy.mechanisms.clipping import Clip, Fixed, Quantile
from tacit.privacy.mechanisms.grouped import GroupedRelease, clip_again
from tacit.privacy.mechanisms.level_weights import Weighted
from tacit.privacy.mechanisms.local import LocalRelease
from tacit.privacy.mechanisms.noise import Secure, Seeded
from tacit.privacy.mechanisms.open import OpenRelease
from tacit.privacy.mechanisms.release import Message, Totals

LEVEL = torch.tensor(0)
ZERO = {"model/w": torch.zeros(50, 40), "model/b": torch.zeros(()), "extra/c": torch.zeros(7)}


def grouped(clip: Clip, *z: float, expected: float = 10.0, sensitivity: float = 1.0) -> GroupedRelease:
    share = 1 / len(z)
    return GroupedRelease(clip, z, (expected,) * len(z), Weighted((share,) * len(z)), sensitivity)


def totals_of(bodies: list[Tree], bits: list[float]) -> Totals:
    body = {name: torch.stack([b[name] for b in bodies]) for name in bodies[0]}
    return Totals(body, torch.tensor(bits), torch.zeros(len(bodies)), torch.ones(len(bodies)))


def released(release: GroupedRelease, totals: Totals, draws: int) -> Tensor:
    """`draws` independent releases of the same totals, flattened, times the expected count."""
    state = release.start()
    rows = []
    for i in range(draws):
        mean, _ = release.decode(state, totals, Seeded.of(0, "test", i))
        rows.append(tree.flatten(tree.join(mean)))
    return torch.stack(rows)


@pytest.mark.parametrize("clip", [Fixed(0.7), Quantile(0.7)])
@pytest.mark.parametrize("sensitivity", [1.0, 2.0])
def test_noise_std_of_the_central_mean_matches_the_event(clip: Clip, sensitivity: float) -> None:
    z, expected = 1.3, 10.0
    release = grouped(clip, z, expected=expected, sensitivity=sensitivity)
    rows = released(release, totals_of([ZERO], [0.0]), 60)
    stated = clip.multiplier(z) * sensitivity * 0.7 / expected
    assert rows.std().item() == pytest.approx(stated, rel=0.02)


def test_update_and_bit_together_cost_exactly_the_stated_multiplier() -> None:
    clip, z = Quantile(1.0, thrift=3.0), 1.7
    joint = clip.multiplier(z) ** -2 + (clip.bit_std(z) / 0.5) ** -2
    assert joint**-0.5 == pytest.approx(z, rel=1e-12)


def test_noise_on_the_bits_matches_the_event() -> None:
    clip, z, expected = Quantile(1.0), 1.3, 10.0
    release = grouped(clip, z, expected=expected)
    moved = []
    for i in range(12_000):
        _, state = release.decode(
            release.start(), totals_of([{"model/b": torch.zeros(())}], [0.0]), Seeded.of(0, "b", i)
        )
        moved.append(float(state["bound"].log()))
    assert np.std(moved) == pytest.approx(clip.speed * clip.bit_std(z) / expected, rel=0.02)


def test_each_level_has_its_own_noise_and_the_open_one_none() -> None:
    release = grouped(Fixed(1.0), 0.5, 2.0, 0.0)
    for level, z in enumerate((0.5, 2.0, 0.0)):
        alone = GroupedRelease(
            Fixed(1.0), release.multipliers, release.expected, Weighted(tuple(float(j == level) for j in range(3)))
        )
        rows = released(alone, totals_of([ZERO] * 3, [0.0] * 3), 30)
        assert rows.std().item() == pytest.approx(z / 10, rel=0.02, abs=1e-12)


def test_a_level_with_nobody_sampled_still_adds_its_noise_and_divides_by_its_expected_count() -> None:
    rows = released(grouped(Fixed(1.0), 1.0, expected=25.0), totals_of([ZERO], [0.0]), 30)
    assert rows.std().item() == pytest.approx(1 / 25, rel=0.02)


def test_the_divisor_is_the_expected_count_never_the_realised_one() -> None:
    body = {"model/b": torch.tensor([3.0])}
    release = grouped(Fixed(1.0), 0.0, expected=10.0)
    for realised in (1.0, 30.0):
        totals = Totals({"model/b": torch.tensor([[3.0]])}, torch.zeros(1), torch.zeros(1), torch.tensor([realised]))
        mean, _ = release.decode(release.start(), totals, Seeded.of(0, "x"))
        assert mean.model["b"].item() == pytest.approx(body["model/b"].item() / 10)


@pytest.mark.parametrize("clip", [Fixed(0.7), Quantile(0.7)])
def test_noise_std_of_a_local_message_matches_the_event(clip: Clip) -> None:
    release = LocalRelease(clip, (1.3, 0.0), expected=1.0)
    keys = torch.randint(0, 2**60, (40, 2), generator=torch.Generator().manual_seed(0))
    upload = tree.split(ZERO)

    def message(key: Tensor, level: Tensor) -> Message:
        return release.encode(release.start(), upload, level, Seeded(key))

    private = vmap(message, (0, None))(keys, torch.tensor(0))
    rows = tree.flatten(private.body, 1)
    assert rows.std().item() == pytest.approx(2 * clip.multiplier(1.3) * 0.7, rel=0.02)
    correlations = torch.corrcoef(rows) - torch.eye(40)
    assert correlations.abs().max() < 0.12, "clients' noise must be independent"
    opted_out = vmap(message, (0, None))(keys, torch.tensor(1))
    assert all((leaf == 0).all() for leaf in opted_out.body.values())


def test_a_moving_bound_settles_at_the_target_quantile_from_below_and_from_above() -> None:
    norms = torch.linspace(0.01, 2.0, 200)
    for start in (0.1, 10.0):
        release = GroupedRelease(Quantile(start, target=0.5), (0.5,), (200.0,), Weighted((1.0,)))
        state = release.start()
        for i in range(120):
            bits = (norms <= state["bound"]).float() - 0.5
            totals = Totals(
                {"model/b": torch.zeros(1, 1)}, bits.sum().reshape(1), torch.zeros(1), torch.tensor([200.0])
            )
            _, state = release.decode(state, totals, Seeded.of(0, "quantile", i))
        assert float(state["bound"]) == pytest.approx(1.0, abs=0.15)


floats = st.floats(allow_nan=True, allow_infinity=True, width=32)


@settings(max_examples=100, deadline=None)
@given(st.lists(floats, min_size=3, max_size=3), floats, st.floats(1e-3, 1e3))
def test_an_encoded_upload_never_exceeds_the_bound_whatever_it_holds(w: list[float], b: float, bound: float) -> None:
    upload = Shared({"w": torch.tensor(w), "b": torch.tensor(b)}, {"c": torch.tensor([1.0])})
    release = grouped(Quantile(bound), 1.0)
    message = release.encode(release.start(), upload, LEVEL, Seeded.of(0, "x"))
    assert float(tree.norm(tree.each(Tensor.double, message.body))) <= bound
    assert abs(float(message.bit)) == 0.5


@pytest.mark.parametrize("exact", [None, torch.float32])
def test_a_fixed_bound_sends_no_bit_that_nobody_paid_for(exact: torch.dtype | None) -> None:
    """Under local noise the server would see whether an upload was clipped."""
    release = LocalRelease(Fixed(1.0), (1.0,), 1.0, exact=exact)
    short, long = (
        release.encode(release.start(), Shared({"w": size * torch.ones(3)}), LEVEL, Seeded.of(0, "x"))
        for size in (0.01, 100.0)
    )
    assert float(short.bit) == float(long.bit) == 0


def test_neighbouring_cohorts_differ_by_at_most_the_sensitivity() -> None:
    release = grouped(Fixed(0.5), 1.0)
    draw = torch.Generator().manual_seed(0)
    for scale in (1e-3, 1.0, 1e6):
        upload = Shared({"w": scale * torch.randn(100, generator=draw)}, {"c": scale * torch.randn(3, generator=draw)})
        one = release.encode(release.start(), upload, LEVEL, Seeded.of(0, "x")).body
        assert float(tree.norm(one)) <= 0.5
        other = release.encode(release.start(), Shared(*(tree.scale(p, -1) for p in upload)), LEVEL, Seeded.of(0, "x"))
        assert float(tree.norm(tree.sub(one, other.body))) <= 2 * 0.5


def test_open_is_the_plain_mean_and_counts_a_broken_upload_as_zero() -> None:
    release = OpenRelease()
    uploads = [Shared({"w": torch.tensor([2.0])}), Shared({"w": torch.tensor([float("nan")])})]
    bodies = [release.encode({}, u, LEVEL, Seeded.of(0, "x")).body["model/w"] for u in uploads]
    none = torch.zeros(1)
    total = Totals({"model/w": torch.stack(bodies).sum(0, keepdim=True)}, none, none, torch.tensor([2.0]))
    mean, _ = release.decode({}, total, Seeded.of(0, "x"))
    assert mean.model["w"].item() == 1.0


def good() -> Message:
    return Message({"model/w": torch.tensor([3.0, 4.0])}, torch.tensor(0.5), torch.tensor(0.0))


def test_the_server_clips_again_what_it_receives() -> None:
    admitted = clip_again(good(), good().body, 1.0)
    assert admitted is not None
    assert float(tree.norm(admitted.body)) <= 1.0


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"model/w": torch.tensor([3.0, 4.0]), "model/x": torch.zeros(1)},
        {"model/w": torch.tensor([3.0, 4.0, 5.0])},
        {"model/w": torch.tensor([3.0, 4.0], dtype=torch.float64)},
        {"model/w": torch.tensor([3.0, float("nan")])},
        {"model/w": torch.tensor([3.0, float("inf")])},
    ],
    ids=["missing", "extra", "shape", "dtype", "nan", "inf"],
)
def test_a_malformed_message_is_not_admitted(body: Tree) -> None:
    assert clip_again(Message(body, torch.tensor(0.5), torch.tensor(0.0)), good().body, 1.0) is None


def test_secure_noise_is_standard_normal_and_never_repeats() -> None:
    from scipy.stats import kstest

    a, b = (Secure().normal(20_000, torch.float64) for _ in range(2))
    assert kstest(a.numpy(), "norm").pvalue > 1e-6
    assert not torch.equal(a, b)


def test_halving_the_noise_is_noticed() -> None:
    """The check above can fail: the same comparison refuses a release with half its noise."""
    rows = released(grouped(Fixed(1.0), 0.65), totals_of([ZERO], [0.0]), 60)
    assert rows.std().item() != pytest.approx(1.3 / 10, rel=0.02)
