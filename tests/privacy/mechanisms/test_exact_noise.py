"""Exact noise where it is used: integers from the clipped value to the noisy one, and as much noise as is stated."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap
from torch.utils._python_dispatch import TorchDispatchMode

from tacit.core import rng, tree
from tacit.core.contract import Batch, Shared, Tree
from tacit.estimation.messages import SecureSource
from tacit.privacy.mechanisms.clipping import Clip, Fixed, Quantile
from tacit.privacy.mechanisms.grouped import GroupedRelease, keep_integers
from tacit.privacy.mechanisms.lattice import lattice
from tacit.privacy.mechanisms.level_weights import Weighted
from tacit.privacy.mechanisms.local import LocalRelease
from tacit.privacy.mechanisms.noise import Secure, Seeded
from tacit.privacy.mechanisms.record import Private
from tacit.privacy.mechanisms.release import Message, Totals
from tacit.privacy.mechanisms.stepwise import StepGuard
from tests.privacy.mechanisms.test_gradient import Squares

LEVEL = torch.tensor(0)
SIZE = 3_001
ODD = {"model/w": torch.zeros(60, 50), "extra/c": torch.zeros(())}  # SIZE numbers
UPLOAD = Shared({"w": torch.randn(60, 50, generator=torch.Generator().manual_seed(0))}, {"c": torch.tensor(0.3)})


def grouped(clip: Clip, *z: float, sensitivity: float = 1.0, expected: float = 1.0) -> GroupedRelease:
    share = (1 / len(z),) * len(z)
    return GroupedRelease(clip, z, (expected,) * len(z), Weighted(share), sensitivity, exact=torch.float32)


def local(clip: Clip, *z: float) -> LocalRelease:
    return LocalRelease(clip, z, 1.0, exact=torch.float32)


def summed(*messages: Message) -> Totals:
    body = tree.each(lambda *leaves: torch.stack(leaves).sum(0, keepdim=True), messages[0].body, *(
        each.body for each in messages[1:]
    ))  # fmt: skip
    bits = torch.stack([each.bit.double() for each in messages]).sum(0, keepdim=True)
    return Totals(body, bits, torch.zeros(1), torch.tensor([len(messages)]))


class Watch(TorchDispatchMode):
    """Names of operations, each with whether a floating-point tensor of an upload's size was in it."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool]] = []
        self.added: list[int] = []  # where integers were added

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        parts = [*args, *(result if isinstance(result, tuple | list) else [result])]
        floats = any(isinstance(t, Tensor) and t.is_floating_point() and t.numel() > 50 for t in parts)
        if "add.Tensor" in str(func) and not floats and isinstance(result, Tensor) and result.numel() > 50:
            self.added.append(len(self.seen))
        self.seen.append((str(func), floats))
        return result

    def between(self, first: str, last: str) -> list[str]:
        names = [name for name, _ in self.seen]
        start = max(i for i, name in enumerate(names) if first in name) + 1
        end = max((i for i, name in enumerate(names) if last in name), default=len(names))
        return [name for name, floats in self.seen[start:end] if floats]


class OnFloats(Seeded):
    """A planted bug: normal numbers, rounded."""

    def discrete(self, size: int, multiplier: Tensor) -> Tensor:
        return (self.normal(size, torch.float64) * 2.0**26).round().long()


@pytest.mark.parametrize(("source", "clean"), [(Seeded, True), (OnFloats, False)])
def test_under_local_noise_there_are_integers_alone_between_the_clipped_value_and_the_sent_one(
    source: type[Seeded], clean: bool
) -> None:
    release = local(Quantile(1.0), 1.3)
    with Watch() as watch:
        message = release.encode(release.start(), UPLOAD, LEVEL, source.of(0, "x"))
    assert all(leaf.dtype == torch.int32 for leaf in message.body.values())
    assert (watch.between("place_on_lattice", "nothing") == []) is clean


@pytest.mark.parametrize(("source", "clean"), [(Seeded, True), (OnFloats, False)])
def test_a_trusted_server_sums_integers_and_adds_integers(source: type[Seeded], clean: bool) -> None:
    release = grouped(Quantile(1.0), 1.3)
    with Watch() as watch:
        message = release.encode(release.start(), UPLOAD, LEVEL, Seeded.of(0, "x"))
        totals = summed(message, message)
        release.decode(release.start(), totals, source.of(0, "server"))
    placed = max(i for i, (name, _) in enumerate(watch.seen) if "place_on_lattice" in name)
    read = next(i for i, (_, floats) in enumerate(watch.seen) if floats and i > placed)
    assert totals.body["model/w"].dtype == torch.int64
    assert watch.added
    assert (max(watch.added) < read) is clean


def test_messages_are_the_placed_integers_and_the_drawn_ones_and_nothing_else() -> None:
    """The sum of what `place` says and what the sampler gives, to the last bit."""
    from tacit.privacy.mechanisms.clipping import clip
    from tacit.privacy.mechanisms.lattice import place

    release, key = local(Fixed(1.0), 1.3), Seeded.of(5, "x")
    sent = tree.flatten(release.encode(release.start(), UPLOAD, LEVEL, key).body)
    clipped = tree.flatten(clip(tree.join(UPLOAD), 1.0)[0])
    expected = place(clipped, 1.0, 2.6) + Seeded.of(5, "x").discrete(SIZE, torch.tensor(2.6))
    assert torch.equal(sent.long(), expected)


@pytest.mark.parametrize("clip", [Fixed(0.7), Quantile(0.7)])
@pytest.mark.parametrize("sensitivity", [1.0, 2.0])
def test_a_server_adds_what_the_event_says(clip: Clip, sensitivity: float) -> None:
    release = grouped(clip, 1.3, sensitivity=sensitivity)
    zero = Totals(tree.each(lambda leaf: leaf.long().unsqueeze(0), ODD), *(torch.zeros(1) for _ in range(3)))
    rows = [tree.flatten(tree.join(release.decode(release.start(), zero, Seeded.of(i, "s"))[0])) for i in range(30)]
    assert torch.stack(rows).std().item() == pytest.approx(clip.multiplier(1.3) * sensitivity * 0.7, rel=0.02)
    assert all(row.dtype == torch.float32 for row in rows)


def test_bits_of_a_moving_bound_have_the_noise_that_is_stated() -> None:
    clip = Quantile(1.0)
    for release, std in ((grouped(clip, 1.3), clip.bit_std(1.3)), (local(clip, 1.3), 2 * clip.bit_std(1.3))):
        found = []
        for i in range(400):
            message = release.encode(release.start(), Shared({"w": torch.zeros(2)}), LEVEL, Seeded.of(i, "c"))
            _, state = release.decode(release.start(), summed(message), Seeded.of(i, "s"))
            fraction = clip.target - float(state["bound"].log()) / clip.speed  # the rule, read backwards
            found.append(fraction - 0.5)
        assert np.std(found) == pytest.approx(std, rel=0.15)
        assert np.mean(found) == pytest.approx(0.5, abs=5 * std / 20)


@pytest.mark.parametrize("z", [0.4, 3.0])
def test_a_client_adds_what_the_event_says_and_each_client_its_own(z: float) -> None:
    release = local(Fixed(0.5), z)
    keys = torch.from_numpy(rng.keys(0, "release", 0, range(8)).copy())
    zero = Shared({"w": torch.zeros(60, 50)}, {"c": torch.zeros(())})
    messages = vmap(lambda key: release.encode(release.start(), zero, LEVEL, Seeded(key)))(keys)
    known = release.read(release.start(), messages.body, torch.zeros(8, dtype=torch.int64))
    rows = tree.flatten(known, 1)
    assert rows.std().item() == pytest.approx(2 * z * 0.5, rel=0.02)
    assert float((torch.corrcoef(rows) - torch.eye(8)).abs().max()) < 5 / SIZE**0.5
    alone = release.encode(release.start(), zero, LEVEL, Seeded(keys[3])).body
    assert torch.equal(alone["model/w"], messages.body["model/w"][3])


def test_the_mean_is_that_of_the_messages_whatever_their_levels() -> None:
    release = LocalRelease(Fixed(1.0), (0.0, 0.0), 2.0, exact=torch.float64)
    messages = [
        release.encode(release.start(), Shared({"w": torch.tensor([x, -x])}), torch.tensor(j), Seeded.of(0, "x"))
        for j, x in enumerate((0.25, 0.5))
    ]
    body = {"model/w": torch.stack([each.body["model/w"] for each in messages])}
    mean, _ = release.decode(release.start(), Totals(body, *(torch.zeros(2),) * 3), Seeded.of(0, "s"))
    assert mean is not None
    assert torch.allclose(mean.model["w"], torch.tensor([0.375, -0.375], dtype=torch.float64))


def private(z: float, seed: int = 0, size: int = 5, scale: float = 1.0) -> tuple[Private, Tree]:
    draw = torch.Generator().manual_seed(size)
    batch = Batch(scale * torch.randn(size, SIZE, generator=draw), torch.ones(size), torch.ones(size, dtype=torch.bool))
    gradient = Private(Squares(), lambda _: batch, 0.5, torch.tensor(z), torch.tensor(2.0), Seeded.of(seed, "g"), True)
    return gradient, {"w": torch.zeros(SIZE)}


def test_a_private_gradient_has_the_noise_that_is_stated() -> None:
    one, here = private(1.7, 0)
    other, _ = private(1.7, 1)
    noise = (one(here, 0)["w"] - other(here, 0)["w"]) / 2**0.5
    assert noise.std().item() == pytest.approx(1.7 * 0.5 / 2, rel=0.05)


def test_without_noise_a_private_gradient_is_the_fast_one() -> None:
    one, here = private(0.0)
    fast = Private(one.task, one.batch, one.bound, one.z, one.expected, one.noise)
    assert torch.allclose(one(here, 0)["w"], fast(here, 0)["w"], atol=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30, float("nan")])
def test_a_record_moves_the_sum_of_integers_by_at_most_the_limit(scale: float) -> None:
    from tacit.privacy.mechanisms.gradient import integer_sum

    x, y = scale * torch.randn(4, 50, generator=torch.Generator().manual_seed(1)), torch.ones(4)
    here, z = {"w": torch.zeros(50)}, torch.tensor(1.7)
    for row in range(4):
        both = [torch.ones(4, dtype=torch.bool), torch.arange(4) != row]
        whole, rest = (integer_sum(Squares().losses, here, x, y, mask, 0.5, z) for mask in both)
        assert whole.dtype == torch.int64
        assert sum(each**2 for each in (whole - rest).tolist()) <= lattice(float(z)).limit ** 2


def test_steps_have_the_noise_that_is_stated() -> None:
    here = {"w": torch.zeros(SIZE)}
    guard = StepGuard((0.5,), (2.6,), torch.tensor(0), Seeded.of(0, "x"), exact=True)
    moved = guard(here, here, {"w": torch.ones(SIZE)})
    again = guard(here, here, {"w": torch.ones(SIZE)})
    assert ((moved["w"] - again["w"]) / 2**0.5).std().item() == pytest.approx(1.3, rel=0.05)


def sent(norm: int, size: int = 3) -> Message:
    body = torch.zeros(size, dtype=torch.int32)
    body[0] = norm
    return Message({"model/w": body}, torch.tensor(0.2), torch.tensor(0.0))


def test_a_server_takes_integers_up_to_the_limit_and_not_one_more() -> None:
    release = grouped(Fixed(1.0), 1.3)
    limit = lattice(1.3).limit
    taken = keep_integers(sent(limit), release, 0, 1.0)
    assert taken is not None
    assert float(taken.bit) == 0.5
    assert keep_integers(sent(limit + 1), release, 0, 1.0) is None
    longer = sent(limit)
    longer.body["model/w"][1] = 1
    assert keep_integers(longer, release, 0, 1.0) is None


@pytest.mark.parametrize(
    "draw", [lambda: Secure().normal(64, torch.float64).numpy(), lambda: SecureSource().standard_normal((8, 8)).ravel()]
)
def test_fast_noise_is_finite_and_symmetric_to_its_last_bit(
    draw: Callable[[], np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.urandom", lambda size: b"\xff" * size)
    high = draw()
    monkeypatch.setattr("os.urandom", lambda size: b"\x00" * size)
    low = draw()
    assert np.isfinite(high).all()
    assert np.isfinite(low).all()
    assert np.allclose(high, -low, rtol=1e-12)
    assert high[0] > 8


def test_uniform_numbers_are_as_fine_near_one_as_near_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    from tacit.core.rng import secure_open_uniform

    words = [np.uint64(2**64 - 1 - i * 2**12) for i in range(6)]
    monkeypatch.setattr("os.urandom", lambda size: np.array(words, np.uint64).tobytes())
    near_one = 1 - secure_open_uniform(6)
    assert [b - a for a, b in pairwise(near_one.tolist())] == [2.0**-52] * 5
    assert near_one[0] == 2.0**-53
