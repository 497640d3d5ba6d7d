"""How an upload leaves a client, and what the server makes of the sum.

`encode` runs on the client, `decode` on the server; between them lies one sum per level. A release never sees a
method, and states its noise as a multiple of its sensitivity: the plan turns that into an event of the ledger.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tacit import tree
from tacit.core import Shared, Tree
from tacit.privacy import noise as noises
from tacit.privacy.clip import Clip, clip, measure
from tacit.privacy.merge import Merge, Released


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

    def start(self) -> Tree:
        return _start(self.clip) | tree.prefix("merge", self.merge.start(len(self.multipliers)))

    def blank(self, like: Tree) -> Tree:
        return tree.zeros(like)

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        body, inside = clip(tree.join(upload), state["bound"])
        return Message(body, *self._beside(inside, measure(body), level))

    def only_clips(self, state: Tree) -> OnlyClips:
        return OnlyClips(state["bound"], self._beside)

    def _beside(self, inside: Tensor, power: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        bit = inside.to(torch.float32) - 0.5
        if all(self.multipliers):
            return bit, torch.zeros_like(bit)
        opted_out = (torch.tensor(self.multipliers) == 0)[level]
        return bit, torch.where(opted_out, power, 0.0)

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared, Tree]:
        bits, asked = torch.zeros((), dtype=torch.float64), 0.0
        released: list[Released | None] = []
        for j, (z, expected) in enumerate(zip(self.multipliers, self.expected, strict=True)):
            if expected == 0 or not self.merge.asks(j):
                released.append(None)
                continue
            released.append(self._mean(j, float(state["bound"]), totals, noise))
            bit_noise = noise.normal(1, torch.float64)[0] * self.clip.bit_std(z) * self.sensitivity
            bits, asked = bits + totals.bit[j].double() + bit_noise, asked + expected
        weights, memory = self.merge.weigh(tree.strip("merge", state), released, self._power(totals))
        mean = tree.each(lambda leaf: torch.zeros_like(leaf[0]), totals.body)
        for weight, level in zip(weights.tolist(), released, strict=True):
            mean = mean if level is None else tree.axpy(weight, level.mean, mean)
        return tree.split(mean), _moved(self.clip, state, bits, asked) | tree.prefix("merge", memory)

    def _mean(self, j: int, bound: float, totals: Totals, noise: noises.Noise) -> Released:
        std = self.clip.multiplier(self.multipliers[j]) * self.sensitivity * bound
        noisy = noises.add(tree.each(lambda leaf: leaf[j], totals.body), std, noise)
        mean = tree.scale(noisy, 1 / self.expected[j])
        return Released(mean, tree.size(mean) * (std / self.expected[j]) ** 2, self.expected[j])

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

    def start(self) -> Tree:
        return _start(self.clip)

    def blank(self, like: Tree) -> Tree:
        return tree.zeros(like)

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        message = _clipped(state, upload)
        std = torch.tensor([2 * self.clip.multiplier(z) for z in self.multipliers], dtype=torch.float64)[level]
        bit_std = torch.tensor([2 * self.clip.bit_std(z) for z in self.multipliers], dtype=torch.float64)[level]
        first = next(iter(message.body.values()), message.bit)
        body = noises.add(message.body, (std * state["bound"]).to(first.dtype), noise)
        bit = message.bit + (noise.normal(1, torch.float64)[0] * bit_std).to(message.bit.dtype)
        return Message(body, bit, message.power)

    def only_clips(self, state: Tree) -> None:
        return None

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared | None, Tree]:
        if int(totals.members.sum()) < self.least:
            return None, state
        mean = tree.each(lambda leaf: leaf.sum(0) / self.expected, totals.body)
        return tree.split(mean), _moved(self.clip, state, totals.bit.double().sum(), self.expected)


def _start(rule: Clip) -> Tree:
    return {"bound": torch.tensor(rule.bound, dtype=torch.float64)}


def _clipped(state: Tree, upload: Shared) -> Message:
    body, inside = clip(tree.join(upload), state["bound"])
    return Message(body, inside.to(torch.float32) - 0.5, torch.zeros(()))


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
