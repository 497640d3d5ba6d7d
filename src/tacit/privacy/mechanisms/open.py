"""No privacy: for comparison, and for methods that upload nothing."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Shared, Tree
from tacit.privacy.mechanisms.clipping import clip
from tacit.privacy.mechanisms.noise import Noise
from tacit.privacy.mechanisms.release import Message, OnlyClips, Release, Totals
from tacit.privacy.plan import CalibrationContext, Mechanism, Plan, Seen, Unit, Words


@dataclass(frozen=True)
class OpenRelease(Release):
    """No protection: the plain mean of what came. An upload that is not finite counts as zero."""

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: Noise) -> Message:
        body, _ = clip(tree.join(upload), torch.inf)
        return Message(body, torch.zeros(()), torch.zeros(()))

    def only_clips(self, state: Tree) -> OnlyClips:
        def beside(inside: Tensor, power: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
            return torch.zeros(inside.shape), torch.zeros(inside.shape)

        return OnlyClips(torch.inf, beside)

    def exactly(self, dtype: torch.dtype) -> "OpenRelease":
        return self

    def decode(self, state: Tree, totals: Totals, noise: Noise) -> tuple[Shared, Tree]:
        members = totals.members.sum().clamp(min=1)
        return tree.split(tree.each(lambda leaf: leaf.sum(0) / members.to(leaf.dtype), totals.body)), state


@checked
@dataclass(frozen=True)
class Open(Mechanism):
    """No privacy: for comparison, and for methods that upload nothing.

    Levels that promise something are refused with it.

    >>> import tacit
    >>> tacit.Open().unit
    'none'
    """

    name: ClassVar[str] = "open"
    unit: ClassVar[Unit] = "none"
    words: ClassVar[Mapping[str, Words]] = {"open": Words(to_member="nothing is protected")}

    @property
    def server_sees(self) -> Seen:
        return "uploads"

    def plan(self, setting: CalibrationContext) -> Plan:
        return Plan("open", self, setting, OpenRelease())
