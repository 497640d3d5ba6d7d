"""A mechanism as another package would add it, in one file: what is asked for, what is done, its event, its words.

Each client clips its upload to an L1 norm and adds Laplace noise itself. Pure epsilon: any two uploads are at most two
bounds apart, so that noise of scale b costs 2 bound / b, whoever looks.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import attr
import numpy as np
import torch
from dp_accounting import DpEvent
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Shared, Tree
from tacit.privacy.accounting.events import describe, register
from tacit.privacy.accounting.rdp import ORDERS, renyi_divergences
from tacit.privacy.mechanisms.noise import Noise
from tacit.privacy.mechanisms.release import Message, Release, Totals
from tacit.privacy.plan import CalibrationContext, Mechanism, Plan, Seen, Words


@register
@attr.frozen
class PureDpEvent(DpEvent):
    """A release whose privacy loss is never above `epsilon`."""

    epsilon: float


@describe.register(PureDpEvent)
def _(event: PureDpEvent, unit: str = "client") -> str:
    return f"a release of pure epsilon {event.epsilon:.4g}"


@renyi_divergences.register(PureDpEvent)
def _(event: PureDpEvent, relation: str) -> np.ndarray:
    """Bun and Steinke 2016, Proposition 3.3; and no divergence is above the largest loss."""
    return np.minimum(ORDERS * event.epsilon**2 / 2, event.epsilon)


@dataclass(frozen=True)
class LaplaceRelease(Release):
    bound: float
    multipliers: tuple[float, ...]  # scale of the noise over two bounds, by level
    expected: float

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: Noise) -> Message:
        leaves = tree.join(upload)
        vector = tree.flatten(leaves).double()
        length = vector.abs().sum()
        factor = self.bound / length.clamp(min=self.bound)
        clipped = torch.where(length.isfinite(), vector * factor, 0.0)
        noisy = clipped + self._scale[level] * laplace(noise, tree.size(leaves))
        dtype = next(iter(leaves.values())).dtype
        return Message(tree.unflatten(noisy.to(dtype), leaves), torch.zeros(()), torch.zeros(()))

    def decode(self, state: Tree, totals: Totals, noise: Noise) -> tuple[Shared, Tree]:
        return tree.split(tree.each(lambda leaf: leaf.sum(0) / self.expected, totals.body)), state

    def largest_norm(self, state: Tree, size: int) -> float:
        """Each number's noise is below 80 scales but for a chance of e^-80."""
        return self.bound + 80 * math.sqrt(size) * float(self._scale.max())

    @property
    def _scale(self) -> Tensor:
        return 2 * self.bound * torch.tensor(self.multipliers, dtype=torch.float64)


def laplace(noise: Noise, size: int) -> Tensor:
    """Of scale 1: a sum of two products of two standard normals each."""
    a, b, c, d = noise.normal(4 * size, torch.float64).reshape(4, size)
    return a * b + c * d


@dataclass(frozen=True)
class Laplace(Mechanism):
    name: ClassVar[str] = "laplace"
    words: ClassVar[Mapping[str, Words]] = {"laplace": Words("against everybody, by Laplace noise", "trust nobody")}

    bound: float = 1.0
    participations: int | None = None

    @property
    def server_sees(self) -> Seen:
        return "messages"

    def plan(self, setting: CalibrationContext) -> Plan:
        menu, times = setting.choices.menu.levels, setting.participations(self.participations)
        z = tuple(setting.noise(level, event_of, times, "replace", len(setting.ids)) for level in menu)
        client = setting.account_of_each([event_of(each) for each in z], "replace")
        release = LaplaceRelease(self.bound, z, setting.rate * len(setting.ids))
        return Plan("laplace", self, setting, release, relation="replace", client=client, multipliers=z)


def event_of(z: float) -> Any:
    return PureDpEvent(1 / z) if z > 0 else None
