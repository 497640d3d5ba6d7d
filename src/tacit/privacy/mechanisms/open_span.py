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
from typing import Final

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Tree
from tacit.core.tensors import eigenvectors, norm_of
from tacit.errors import TacitError
from tacit.privacy.mechanisms.level_weights import Released

_TINY: Final = 1e-6  # of the largest eigenvalue: below it rows of single precision tell nothing of a direction


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
        state = self._remember(state, opened)
        if not len(state.get("rows", ())):
            return list(released), state
        basis = Span(state["rows"].double(), state["gram"])
        return [level if level is None or level.noise == 0 else self._move(level, basis) for level in released], state

    def _remember(self, state: Tree, opened: Sequence[Released]) -> Tree:
        """The last open means, of norm one, and their products; a round in which nobody open was drawn adds none."""
        clients = sum(level.expected for level in opened)
        mean = torch.stack([tree.flatten(level.mean) * (level.expected / clients) for level in opened]).sum(0)
        norm = norm_of(mean)
        if not norm > 0:
            return state
        earlier = state.get("rows", torch.zeros(0, len(mean), dtype=mean.dtype))[max(0, 1 - self.rounds) :]
        rows = torch.cat([earlier, (mean / norm).unsqueeze(0)])[-self.rounds :]
        known, fresh = state.get("gram"), rows.double() @ rows[-1].double()
        gram = torch.zeros(len(rows), len(rows), dtype=torch.float64)
        if known is not None and len(rows) > 1:
            gram[:-1, :-1] = known[1 - len(rows) :, 1 - len(rows) :]
        gram[-1], gram[:, -1] = fresh, fresh
        return {"rows": rows, "gram": gram}

    def _move(self, level: Released, basis: "Span") -> Released:
        flat = tree.flatten(level.mean).double()
        inside = basis.project(flat)
        moved = inside + self.rest * (flat - inside)
        size, dimension = len(flat), basis.dimension
        share = (dimension + self.rest**2 * (size - dimension)) / size
        dtype = next(iter(level.mean.values())).dtype
        return Released(tree.unflatten(moved.to(dtype), level.mean), level.noise * share, level.expected)


class Span:
    """Of some rows R, by their products R R^T = U diag(v) U^T: Q = R^T U v^(-1/2), without the directions of tiny v."""

    def __init__(self, rows: Tensor, gram: Tensor) -> None:
        values, vectors = eigenvectors(gram)
        significant = values > _TINY * values.max()
        self.rows, self.vectors, self.values = rows, vectors[:, significant], values[significant]

    @property
    def dimension(self) -> int:
        return len(self.values)

    def project(self, vector: Tensor) -> Tensor:
        """Q Q^T of it."""
        coordinates = self.vectors @ ((self.vectors.T @ (self.rows @ vector)) / self.values)
        return self.rows.T @ coordinates
