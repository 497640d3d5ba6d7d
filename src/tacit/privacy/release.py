"""How an upload leaves a client, and what the server makes of the sum.

`encode` runs on the client, `decode` on the server; between them lies one sum per level. A release never sees a
method, and states its noise as a multiple of its sensitivity: the plan turns that into an event of the ledger.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tacit import tree
from tacit.core import Shared, Tree
from tacit.privacy import noise as noises
from tacit.privacy.clip import Clip, clip


class Message(NamedTuple):
    """What leaves a client: its clipped upload and, for a moving clip bound, one bit as +-1/2."""

    body: Tree
    bit: Tensor


class Totals(NamedTuple):
    """The sum of messages by level, [levels, ...], and how many there were (only `Open` may look at that)."""

    body: Tree
    bit: Tensor
    members: Tensor


class Release(Protocol):
    def start(self) -> Tree:
        """Public state, for example the clip bound: broadcast and checkpointed."""
        ...

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message: ...

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared, Tree]: ...


@dataclass(frozen=True)
class Open:
    """No protection: the plain mean of what came. An upload that is not finite counts as zero."""

    def start(self) -> Tree:
        return {}

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        body, _ = clip(tree.join(upload), torch.inf)
        return Message(body, torch.zeros(()))

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
    weights: tuple[float, ...]  # share of each level in the mean; 0: not asked
    sensitivity: float = 1.0  # of a sum of unit vectors: 1 add/remove, 2 replace-one

    def start(self) -> Tree:
        return {"bound": torch.tensor(self.clip.bound, dtype=torch.float64)}

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        return _clipped(state, upload)

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared, Tree]:
        bound = float(state["bound"])
        mean = tree.each(lambda leaf: torch.zeros_like(leaf[0]), totals.body)
        bits, asked = torch.zeros((), dtype=torch.float64), 0.0
        for j, (z, expected, weight) in enumerate(zip(self.multipliers, self.expected, self.weights, strict=True)):
            if weight == 0 or expected == 0:
                continue
            total = tree.each(lambda leaf, j=j: leaf[j], totals.body)
            noisy = noises.add(total, self.clip.multiplier(z) * self.sensitivity * bound, noise)
            mean = tree.axpy(weight / expected, noisy, mean)
            bit_noise = noise.normal(1, torch.float64)[0] * self.clip.bit_std(z) * self.sensitivity
            bits, asked = bits + totals.bit[j].double() + bit_noise, asked + expected
        return tree.split(mean), _moved(self.clip, state, bits, asked)


@dataclass(frozen=True)
class Local:
    """Each client adds the whole noise itself: nobody is trusted. Any two uploads are at most 2 bounds apart."""

    clip: Clip
    multipliers: tuple[float, ...]
    expected: float

    def start(self) -> Tree:
        return {"bound": torch.tensor(self.clip.bound, dtype=torch.float64)}

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        message = _clipped(state, upload)
        std = torch.tensor([2 * self.clip.multiplier(z) for z in self.multipliers], dtype=torch.float64)[level]
        bit_std = torch.tensor([2 * self.clip.bit_std(z) for z in self.multipliers], dtype=torch.float64)[level]
        first = next(iter(message.body.values()), message.bit)
        body = noises.add(message.body, (std * state["bound"]).to(first.dtype), noise)
        return Message(body, message.bit + (noise.normal(1, torch.float64)[0] * bit_std).to(message.bit.dtype))

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared, Tree]:
        mean = tree.each(lambda leaf: leaf.sum(0) / self.expected, totals.body)
        return tree.split(mean), _moved(self.clip, state, totals.bit.double().sum(), self.expected)


def _clipped(state: Tree, upload: Shared) -> Message:
    body, inside = clip(tree.join(upload), state["bound"])
    return Message(body, inside.to(torch.float32) - 0.5)


def _moved(rule: Clip, state: Tree, bits: Tensor, asked: float) -> Tree:
    if not asked:
        return state
    return {"bound": rule.move(state["bound"], 0.5 + bits / asked)}


def admit(message: Message, like: Mapping[str, Tensor], bound: float | Tensor) -> Message | None:
    """A received message, clipped again (a client's word is not a bound), or None if it is malformed.

    None for missing or extra names, another shape or dtype, or a value that is not finite.
    """
    body = message.body
    if body.keys() != like.keys() or message.bit.dim() != 0:
        return None
    if any(body[name].shape != leaf.shape or body[name].dtype != leaf.dtype for name, leaf in like.items()):
        return None
    if not all(bool(leaf.isfinite().all()) for leaf in body.values()) or not bool(message.bit.isfinite()):
        return None
    return Message(clip(body, bound)[0], message.bit.clamp(-0.5, 0.5))
