"""Any program recorded, compared on its own inputs made larger and smaller."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from tacit.compile.acceptance import Program, Trial
from tacit.compile.replay import Recording, record


@dataclass(frozen=True)
class Scaled:
    inputs: tuple[Any, ...]
    exact: Program | None = None
    clients: int = 0

    def tame(self, number: int) -> Trial:
        scale = (1.25, 0.8, 1.5, 0.6, 1.1, 0.9)[number % 6]

        def other(leaf: Tensor) -> Tensor:
            if leaf.is_floating_point():
                return leaf * scale
            return leaf.flip(0).roll(number, 0) if leaf.dim() else leaf + 1 + number

        return Trial("other", pytree.tree_map(other, self.inputs))

    def wild(self, number: int) -> Trial | None:
        return None

    def in_double(self, trial: Trial) -> tuple[Any, ...]:
        return trial.inputs


def record_scaled(program: Program, *inputs: Any) -> Recording:
    recording = record(program, *inputs, trials=Scaled(inputs))
    assert isinstance(recording, Recording)  # no loop
    return recording
