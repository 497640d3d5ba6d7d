"""How an upload leaves a client, and what the server makes of the sum.

`encode` runs on the client, `decode` on the server; between them lies one sum per level. A release never sees a
method, and states its noise as a multiple of its sensitivity: the plan turns that into an event of the ledger.

Where noise is `exact`, bodies are integers on the lattice of their level (`lattice`), sums are sums of integers, and
the noise is discrete Gaussian: the same multiplier, by the proof of `discrete_gaussian`. Floats are made of what is
noisy alone.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Shared, Tree
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.clipping import Clip, clip, measure
from tacit.privacy.mechanisms.lattice import fits, limits, place, step
from tacit.privacy.mechanisms.level_weights import Merge, Released

BIT: Final = 0.5
"""A bit of a moving clip bound is sent as plus or minus this."""
INTEGER: Final = torch.int32
_WIDEST: Final = 2**31 - 1  # noise is at most 2^26: it would have to be 30 standard deviations away


class Message(NamedTuple):
    """What leaves a client: its clipped upload, for a moving clip bound one bit as +-1/2, and its squared norm.

    The squared norm is sent by clients that opted out; for all others it is zero.
    """

    body: Tree
    bit: Tensor
    power: Tensor


class Totals(NamedTuple):
    """The sum of messages by level, [levels, ...], and how many there were (only `Open` may look at that)."""

    body: Tree
    bit: Tensor
    power: Tensor
    members: Tensor


class OnlyClips(NamedTuple):
    """A bound for the whole upload, and what goes with a clipped body: its bit and squared norm, given whether it was
    inside the bound, its squared norm once clipped, and its level."""

    bound: float | Tensor
    beside: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


class Release(Protocol):
    def start(self) -> Tree:
        """Public state, for example the clip bound: broadcast and checkpointed."""
        ...

    def blank(self, like: Tree) -> Tree:
        """A message's body for an upload of these shapes, all zero."""
        ...

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        """One client's message, of whatever its program gave: the clip is here, and nothing before it is trusted."""
        ...

    def only_clips(self, state: Tree) -> "OnlyClips | None":
        """How `encode` clips, where it does no more to a body than that: a sum then needs no messages. Else None."""
        ...

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared | None, Tree]:
        """The mean and the next public state; no mean where the round must be discarded."""
        ...

    def read(self, state: Tree, body: Tree, level: Tensor) -> Tree:
        """Bodies in the units of an upload; leading dimensions of leaves are those of `level`."""
        ...


@dataclass(frozen=True)
class Open:
    """No protection: the plain mean of what came. An upload that is not finite counts as zero."""

    def start(self) -> Tree:
        return {}

    def blank(self, like: Tree) -> Tree:
        return tree.zeros(like)

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        body, _ = clip(tree.join(upload), torch.inf)
        return Message(body, torch.zeros(()), torch.zeros(()))

    def read(self, state: Tree, body: Tree, level: Tensor) -> Tree:
        return body

    def only_clips(self, state: Tree) -> OnlyClips:
        return OnlyClips(torch.inf, lambda inside, *_: (torch.zeros(inside.shape), torch.zeros(inside.shape)))

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared, Tree]:
        several = totals.members.sum().clamp(min=1)
        return tree.split(tree.each(lambda leaf: leaf.sum(0) / several.to(leaf.dtype), totals.body)), state


@dataclass(frozen=True)
class Grouped:
    """A trusted server adds noise to each level's sum and merges the levels' means (FedHDP; one level: DP-FedAvg).

    Every sum is divided by a public number, the expected count. A level nobody of which was sampled still gets its
    noise. The noise on level j's sum has std `multipliers[j] * sensitivity * bound`, bits included in the price.
    """

    clip: Clip
    multipliers: tuple[float, ...]  # z of each level, 0 for a level without a guarantee
    expected: tuple[float, ...]  # sampled clients of each level in expectation
    merge: Merge
    sensitivity: float = 1.0  # of a sum of unit vectors: 1 add/remove, 2 replace-one
    exact: torch.dtype | None = None  # noise is exact, and the mean of this type

    def start(self) -> Tree:
        return _start(self.clip) | tree.prefix("merge", self.merge.start(len(self.multipliers)))

    def blank(self, like: Tree) -> Tree:
        return _blank(like, self.exact)

    def ratio(self, j: int) -> float:
        """Noise on the sum of level j, in clip bounds."""
        return self.clip.multiplier(self.multipliers[j]) * self.sensitivity

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        body, inside = clip(tree.join(upload), state["bound"])
        message = Message(body, *self._beside(inside, measure(body), level))
        if self.exact is None or not body:
            return message
        ratios = torch.tensor([self.ratio(j) for j in range(len(self.multipliers))], dtype=torch.float64)
        integers = place(tree.flatten(body), state["bound"], ratios[level])
        return message._replace(body=tree.unflatten(integers, body))

    def only_clips(self, state: Tree) -> OnlyClips | None:
        """Exact sums are sums of integers: then every message is put on its lattice first."""
        return OnlyClips(state["bound"], self._beside) if self.exact is None else None

    def _beside(self, inside: Tensor, power: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        bit = _bit_of(self.clip, inside)
        if all(self.multipliers):
            return bit, torch.zeros_like(bit)
        opted_out = (torch.tensor(self.multipliers) == 0)[level]
        return bit, torch.where(opted_out, power, 0.0)

    def read(self, state: Tree, body: Tree, level: Tensor) -> Tree:
        if self.exact is None:
            return body
        return _read(body, state["bound"], [self.ratio(j) for j in range(len(self.multipliers))], level, self.exact)

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared, Tree]:
        bits, asked = torch.zeros((), dtype=torch.float64), 0.0
        released: list[Released | None] = []
        for j, (z, expected) in enumerate(zip(self.multipliers, self.expected, strict=True)):
            if expected == 0 or not self.merge.asks(j):
                released.append(None)
                continue
            released.append(self._mean(j, float(state["bound"]), totals, noise))
            bits, asked = bits + self._bits(z, totals.bit[j].double(), noise), asked + expected
        weights, memory = self.merge.weigh(tree.strip("merge", state), released, self._power(totals))
        mean = tree.each(lambda leaf: torch.zeros_like(leaf[0], dtype=self.exact), totals.body)
        for weight, level in zip(weights.tolist(), released, strict=True):
            mean = mean if level is None else tree.axpy(weight, level.mean, mean)
        return tree.split(mean), _moved(self.clip, state, bits, asked) | tree.prefix("merge", memory)

    def _mean(self, j: int, bound: float, totals: Totals, noise: noises.Noise) -> Released:
        total, std = tree.each(lambda leaf: leaf[j], totals.body), self.ratio(j) * bound
        if self.exact is None:
            noisy = noises.add(total, std, noise)
        else:
            integers = _noisy(total, torch.tensor(self.ratio(j), dtype=torch.float64), noise)
            noisy = self.read({"bound": torch.tensor(bound, dtype=torch.float64)}, integers, torch.tensor(j))
        mean = tree.scale(noisy, 1 / self.expected[j])
        return Released(mean, tree.size(mean) * (std / self.expected[j]) ** 2, self.expected[j])

    def _bits(self, z: float, total: Tensor, noise: noises.Noise) -> Tensor:
        std = self.clip.bit_std(z) * self.sensitivity
        if self.exact is None:
            return total + noise.normal(1, torch.float64)[0] * std
        ratio = torch.tensor(std / BIT, dtype=torch.float64)
        return _noisy_bit(total, ratio, noise) * step(BIT, ratio)

    def _power(self, totals: Totals) -> Tensor:
        """Mean squared norm of the uploads of clients that opted out; 0 if there are none."""
        opted_out = [j for j, z in enumerate(self.multipliers) if z == 0 and self.expected[j] > 0]
        several = sum(self.expected[j] for j in opted_out)
        return totals.power[opted_out].sum() / several if opted_out else torch.zeros(())


@dataclass(frozen=True)
class Local:
    """Each client adds the whole noise itself: nobody is trusted. Any two uploads are at most 2 bounds apart.

    Where only the sum is seen, a client adds a share: a round of fewer than `least` clients is discarded.
    """

    clip: Clip
    multipliers: tuple[float, ...]
    expected: float
    least: int = 0
    exact: torch.dtype | None = None  # noise is exact, and the mean of this type

    def start(self) -> Tree:
        return _start(self.clip)

    def blank(self, like: Tree) -> Tree:
        return _blank(like, self.exact)

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        message = _clipped(self.clip, state, upload)
        std, bit_std = (torch.tensor(each, dtype=torch.float64)[level] for each in (self._ratios, self._bit_stds))
        if self.exact is not None:
            integers = noises.noisy_integers(message.body, state["bound"], std, noise).clamp(-_WIDEST, _WIDEST).int()
            bit = _noisy_bit(message.bit, bit_std / BIT, noise) if any(self._bit_stds) else message.bit
            return Message(tree.unflatten(integers, message.body), bit, message.power)
        first = next(iter(message.body.values()), message.bit)
        body = noises.add(message.body, (std * state["bound"]).to(first.dtype), noise)
        bit = message.bit + (noise.normal(1, torch.float64)[0] * bit_std).to(message.bit.dtype)
        return Message(body, bit, message.power)

    def only_clips(self, state: Tree) -> None:
        return None

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared | None, Tree]:
        if int(totals.members.sum()) < self.least:
            return None, state
        levels = torch.arange(len(self.multipliers))
        bodies, bits = self.read(state, totals.body, levels), totals.bit.double()
        if self.exact is not None and any(self._bit_stds):
            bits = bits * step(BIT, torch.tensor(self._bit_stds, dtype=torch.float64) / BIT)
        mean = tree.each(lambda leaf: leaf.sum(0) / self.expected, bodies)
        return tree.split(mean), _moved(self.clip, state, bits.sum(), self.expected)

    def read(self, state: Tree, body: Tree, level: Tensor) -> Tree:
        return body if self.exact is None else _read(body, state["bound"], self._ratios, level, self.exact)

    @property
    def _ratios(self) -> list[float]:
        """Noise of each level, in clip bounds."""
        return [2 * self.clip.multiplier(z) for z in self.multipliers]

    @property
    def _bit_stds(self) -> list[float]:
        return [2 * self.clip.bit_std(z) for z in self.multipliers]


def _start(rule: Clip) -> Tree:
    return {"bound": torch.tensor(rule.bound, dtype=torch.float64)}


def _blank(like: Tree, exact: torch.dtype | None) -> Tree:
    return tree.zeros(like) if exact is None else tree.each(lambda leaf: torch.zeros_like(leaf, dtype=INTEGER), like)


def _clipped(rule: Clip, state: Tree, upload: Shared) -> Message:
    """With its bit only where the rule needs bits, and so pays for them: under `Local` everybody sees it."""
    body, inside = clip(tree.join(upload), state["bound"])
    return Message(body, _bit_of(rule, inside), torch.zeros(()))


def _bit_of(rule: Clip, inside: Tensor) -> Tensor:
    """Zero where the rule moves by no bits, and so pays for none."""
    bit = inside.to(torch.float32) - BIT
    return bit if rule.bit_std(1.0) else torch.zeros_like(bit)


def _noisy(total: Tree, ratio: Tensor, noise: noises.Noise) -> Tree:
    """A sum of integers, with the noise of its lattice."""
    if not total:
        return {}
    drawn = tree.unflatten(noise.discrete(tree.size(total), ratio), total)
    return tree.each(lambda leaf, more: leaf.long() + more, total, drawn)


def _noisy_bit(total: Tensor, ratio: Tensor, noise: noises.Noise) -> Tensor:
    """A sum of bits of +-1/2 in steps of their own lattice, with its noise: a whole number, exact as a float64."""
    return ((2 * total).round().long() * limits(ratio) + noise.discrete(1, ratio)[0]).double()


def _read(body: Tree, bound: Tensor, ratios: list[float], level: Tensor, dtype: torch.dtype) -> Tree:
    size = step(bound, torch.tensor(ratios, dtype=torch.float64))[level]

    def scaled(leaf: Tensor) -> Tensor:
        inner = leaf.dim() - level.dim()
        return (leaf.double() * size.reshape((*level.shape, *(1,) * inner))).to(dtype)

    return tree.each(scaled, body)


def _moved(rule: Clip, state: Tree, bits: Tensor, asked: float) -> Tree:
    if not asked:
        return state
    return {"bound": rule.move(state["bound"], 0.5 + bits / asked)}


def admit(message: Message, like: Mapping[str, Tensor], bound: float | Tensor) -> Message | None:
    """A received message, clipped again (a client's word is not a bound), or None if it is malformed.

    None for missing or extra names, another shape or dtype, or a value that is not finite. A squared norm that was sent
    is replaced by the true one.
    """
    body = message.body
    if body.keys() != like.keys() or message.bit.dim() != 0 or message.power.dim() != 0:
        return None
    if any(body[name].shape != leaf.shape or body[name].dtype != leaf.dtype for name, leaf in like.items()):
        return None
    if not all(bool(leaf.isfinite().all()) for leaf in body.values()) or not bool(message.bit.isfinite()):
        return None
    clipped, _ = clip(body, bound)
    power = torch.where(message.power == 0, 0.0, measure(clipped))
    return Message(clipped, message.bit.clamp(-0.5, 0.5), power)


def admit_integers(message: Message, release: Grouped, level: int, bound: float | Tensor) -> Message | None:
    """A received message of integers, or None if its norm, in integers, is above the limit of its level's lattice.

    Its bit is one of two; a squared norm that was sent is replaced by the true one.
    """
    if message.body and not fits(tree.flatten(message.body), release.ratio(level)):
        return None
    known = release.read({"bound": torch.as_tensor(bound)}, message.body, torch.tensor(level))
    power = torch.where(message.power == 0, 0.0, tree.norm(known).square())
    return Message(message.body, torch.where(message.bit > 0, BIT, -BIT), power)
