"""Each client clips and adds the whole noise itself: nobody is trusted."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np
import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Shared, Tree
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.clipping import Clip, Fixed, clip
from tacit.privacy.mechanisms.lattice import step
from tacit.privacy.mechanisms.release import BIT, ROUNDING, ClippedRelease, Message, Totals, add_noise_to_bit
from tacit.privacy.plan import CalibrationContext, Mechanism, Plan, Seen, Words, gaussian_event

_WIDEST: Final = 2**31 - 1  # noise is at most 2^26: it would have to be 30 standard deviations away
_SIGMAS: Final = 12.0  # an honest client's noise is farther out with a chance below 1e-30


@dataclass(frozen=True)
class LocalRelease(ClippedRelease):
    """Each client adds the whole noise itself: nobody is trusted. Any two uploads are at most 2 bounds apart.

    Where only the sum is seen, a client adds a share: a round of fewer than `least` clients is discarded.
    """

    expected: float
    least: int = 0

    @property
    def ratios(self) -> list[float]:
        return [2 * self.clip.multiplier(z) for z in self.multipliers]

    @property
    def _bit_stds(self) -> list[float]:
        return [2 * self.clip.bit_std(z) for z in self.multipliers]

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        """With its bit only where the rule needs bits, and so pays for them: everybody sees it."""
        clipped, inside = clip(tree.join(upload), state["bound"])
        bit, power = self.bit(inside), torch.zeros(())
        std, bit_std = (torch.tensor(each, dtype=torch.float64)[level] for each in (self.ratios, self._bit_stds))
        if self.exact is not None:
            integers = noises.noisy_integers(clipped, state["bound"], std, noise).clamp(-_WIDEST, _WIDEST).int()
            bit = add_noise_to_bit(bit, bit_std / BIT, noise) if any(self._bit_stds) else bit
            return Message(tree.unflatten(integers, clipped), bit, power)
        first = next(iter(clipped.values()), bit)
        body = noises.add(clipped, (std * state["bound"]).to(first.dtype), noise)
        bit = bit + (noise.normal(1, torch.float64)[0] * bit_std).to(bit.dtype)
        return Message(body, bit, power)

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared | None, Tree]:
        if int(totals.members.sum()) < self.least:
            return None, state
        levels = torch.arange(len(self.multipliers))
        bodies, bits = self.read(state, totals.body, levels), totals.bit.double()
        if self.exact is not None and any(self._bit_stds):
            bits = bits * step(BIT, torch.tensor(self._bit_stds, dtype=torch.float64) / BIT)
        mean = tree.each(lambda leaf: leaf.sum(0) / self.expected, bodies)
        return tree.split(mean), self.move_bound(state, bits.sum(), self.expected)

    def largest_norm(self, state: Tree, size: int) -> float:
        std = max(self.ratios) * float(state["bound"])
        return (float(state["bound"]) + std * (math.sqrt(size) + _SIGMAS)) * (1 + ROUNDING)

    def std_of_mean(self, levels: np.ndarray) -> float:
        each = 2 * self.clip.bound * np.array(self.multipliers)[levels]
        return float(np.sqrt(np.square(each).sum())) / self.expected


@checked
@dataclass(frozen=True)
class Local(Mechanism):
    """Each client clips and adds the whole noise itself: nobody is trusted, the server included.

    Charged by participation, without amplification. A client that has used its participations up is no longer asked.

    Args:
        clip: the bound on an upload's norm: a number or `Fixed`, or `Quantile()`, whose bits are paid for.
        participations: of one client that the noise is calibrated to; by default what 99% of the clients stay below.
        project: clip what would be uploaded after every local step, too.

    Raises:
        TacitError: a bound that is not positive; and in a run, participations below 1.

    >>> import tacit
    >>> tacit.Local(clip=0.5, participations=10).server_sees
    'messages'
    """

    name: ClassVar[str] = "local"
    words: ClassVar[Mapping[str, Words]] = {
        "local": Words(
            "against everybody, the server included",
            "noise is added on your machine; you need to trust nobody with your update",
        )
    }

    clip: Clip = field(default_factory=Fixed, metadata={"short": Fixed})
    participations: int | None = None
    project: bool = False

    @property
    def server_sees(self) -> Seen:
        return "messages"

    def plan(self, setting: CalibrationContext) -> Plan:
        menu, times = setting.choices.menu.levels, setting.participations(self.participations)
        z = [setting.noise(level, gaussian_event, times, "replace", len(setting.ids)) for level in menu]
        return Plan(
            "local",
            self,
            setting,
            LocalRelease(self.clip, tuple(z), expected=setting.rate * len(setting.ids)),
            relation="replace",
            client=setting.account_of_each([gaussian_event(each) for each in z], "replace"),
            project=self.project,
            multipliers=tuple(z),
            notes=(f"noise calibrated for {times} participations of one client",),
        )
