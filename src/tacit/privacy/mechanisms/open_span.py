"""The noisy means of private levels, moved towards the span of what open clients have sent: post-processing.

Noise is spread evenly over all d coordinates; what clients have in common lies in few directions. The means of the
last K rounds of clients that opted out, who have no guarantee, span at most K of them. Of a private level's released
mean m the part in that span is kept whole, and of the rest, where nearly all is noise, a share:

    m' = Q Q^T m + rest (m - Q Q^T m),   Q an orthonormal basis of the span.

Proof that it costs no privacy. Let D and D' differ in one private client. Q is a function of open clients' uploads and
of nothing else of this round; uploads of earlier rounds depend on D only through models that were released. Given
these, m' is a function of the released m, so that (m, Q) -> m' is post-processing: whatever bounds the loss of m bounds
that of m'. Noise and sensitivity of m stay as they are, and m is charged as it was.

The noise of m' has the variance (k + rest^2 (d - k)) / d of that of m, k the dimension of the span.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.core.tensors import norm_of, orthonormal_columns
from tacit.errors import TacitError
from tacit.privacy.mechanisms.level_weights import Released


@dataclass(frozen=True)
class OpenSpan:
    """Keeps the directions of open clients' means over the last `rounds` rounds; 0: does nothing."""

    rounds: int = 0
    rest: float = 0.1

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise TacitError(f"span must be at least 0, not {self.rounds}: give the rounds whose open means are used")
        if not 0 <= self.rest <= 1:
            raise TacitError(f"rest must lie between 0 (only the span is kept) and 1 (all of it), not {self.rest}")

    def apply(self, state: Tree, released: Sequence[Released | None]) -> tuple[list[Released | None], Tree]:
        """What was released, with private means moved towards the span; and the directions that are remembered."""
        opened = [level for level in released if level is not None and level.noise == 0]
        if not self.rounds or not opened:
            return list(released), state
        rows = self._remember(state.get("rows"), opened)
        if not len(rows):
            return list(released), state
        basis = orthonormal_columns(rows.double().T)
        moved = [level if level is None or level.noise == 0 else self._move(level, basis) for level in released]
        return moved, {"rows": rows}

    def _remember(self, rows: Tensor | None, opened: Sequence[Released]) -> Tensor:
        """The last open means, of norm one, this round's last; a round in which nobody open was drawn adds none."""
        clients = sum(level.expected for level in opened)
        mean = torch.stack([tree.flatten(level.mean) * (level.expected / clients) for level in opened]).sum(0)
        rows = torch.zeros(0, len(mean), dtype=mean.dtype) if rows is None else rows
        norm = norm_of(mean)
        return torch.cat([rows, (mean / norm).unsqueeze(0)])[-self.rounds :] if norm > 0 else rows

    def _move(self, level: Released, basis: Tensor) -> Released:
        flat = tree.flatten(level.mean).double()
        inside = basis @ (basis.T @ flat)
        moved = inside + self.rest * (flat - inside)
        size, kept = basis.shape
        share = (kept + self.rest**2 * (size - kept)) / size
        like = next(iter(level.mean.values())).dtype
        return Released(tree.unflatten(moved.to(like), level.mean), level.noise * share, level.expected)
