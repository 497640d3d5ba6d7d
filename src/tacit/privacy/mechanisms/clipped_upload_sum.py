"""Clip and sum the uploads of a chunk of clients: one operation, which nothing else produces, splits or moves.

*Claim.* Whatever the uploads hold (NaN, infinities, numbers of any size), leaving client k out moves the total of its
level by a vector of norm at most bound, and no other total: up to the rounding of the sum itself. *Proof.* Row k enters
as factor_k u_k, a number that `clipping.shrinking` gives for the norm of this very u_k over all its leaves, or not at
all. The norm is accumulated in double precision and off by less than 2e-6; the factor keeps a slack of 1e-5.

What is claimed of a *client* needs one thing more: that row k was computed from client k's own data. Under `vmap` it
is; of a recorded program it is tested on its numbers (`tacit.simulation.isolation`).

The reference is torch and takes any floating type and device. Where a C compiler is found, `clipped_upload_sum.c` does
the same for single precision, in one trip through memory. Programs that make uploads end before this operation: they
neither contain it nor are told the bound. They may say how a leaf is represented, in one of the forms of `Operand`.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

import torch
from torch import Tensor

from tacit import c_library
from tacit.core.contract import Tree
from tacit.errors import TacitError
from tacit.privacy.mechanisms.clipping import clip, limit_of, measure

SOURCE: Final = Path(__file__).resolve().with_suffix(".c")
_INPUTS: Final = 16  # of a product, in C: a multiple of this


@dataclass(frozen=True, eq=False)
class Product:
    """A leaf that is left' right of each client: left [clients, rows, outputs], right [clients, rows, inputs].

    Where the kernel takes it, its numbers are stored for one client at a time.
    """

    left: Tensor
    right: Tensor
    shape: tuple[int, ...]  # of the leaf, clients first

    def stored(self) -> Tensor:
        return torch.bmm(self.left.mT, self.right).reshape(self.shape)


Operand = Tensor | Product
"""How a leaf of the uploads is represented: [clients, ...], or a product."""


class Uploads(NamedTuple):
    """Raw uploads of a chunk, one row a client; who they are of, and the keys of their noise."""

    leaves: Mapping[str, Operand]
    level: Tensor
    real: Tensor  # False for a row that only fills the chunk up: it counts for nothing
    key: Tensor

    def stored(self) -> Tree:
        return {name: stored(leaf) for name, leaf in self.leaves.items()}

    def belongs(self, levels: int) -> Tensor:
        """[levels, clients]: who counts for which level."""
        return (torch.arange(levels, device=self.level.device).unsqueeze(1) == self.level) & self.real


class ClippedSum(NamedTuple):
    """Totals [levels, ...]; and of each client, whether it was inside the bound, and its squared norm once clipped."""

    totals: Tree
    inside: Tensor
    power: Tensor


def stored(leaf: Operand) -> Tensor:
    return leaf.stored() if isinstance(leaf, Product) else leaf


def clipped_upload_sum(uploads: Uploads, bound: float | Tensor, levels: int) -> ClippedSum:
    """Each client's upload clipped to `bound` over all leaves together, and summed by level; see this module."""
    if _suits(uploads.leaves):
        return compiled_sum(uploads, bound, levels)
    return reference_sum(uploads, bound, levels)


def takes_product(left: Tensor, right: Tensor) -> bool:
    """Whether a product like this is better handed over as it is than stored. Asked of shapes and types alone."""
    return left.dtype == right.dtype == torch.float32 and right.shape[-1] % _INPUTS == 0 and library() is not None


def reference_sum(uploads: Uploads, bound: float | Tensor, levels: int) -> ClippedSum:
    """In torch."""
    body, inside = clip(uploads.stored(), bound, lead=1)
    inside, power = (each.expand(len(uploads.level)) for each in (inside, measure(body, lead=1)))  # no leaf: no clients
    return ClippedSum({name: sum_by_level(leaf, uploads, levels) for name, leaf in body.items()}, inside, power)


def sum_by_level(rows: Tensor, uploads: Uploads, levels: int) -> Tensor:
    """[clients, ...] -> [levels, ...]; what is not a number must have gone before."""
    belongs, flat = uploads.belongs(levels), rows.reshape(len(rows), -1)
    if rows.is_floating_point():
        total = belongs.to(rows.dtype) @ flat
    else:  # not every device multiplies matrices of integers
        total = torch.where(belongs.unsqueeze(-1), flat, 0).sum(1)
    return total.reshape(levels, *rows.shape[1:])


@cache
def library() -> ctypes.CDLL | None:
    """The C version, or None where there is no compiler."""
    return c_library.load([SOURCE])


def _suits(leaves: Mapping[str, Operand]) -> bool:
    tensors = [part for leaf in leaves.values() for part in _parts(leaf)]
    plain = all(each.dtype == torch.float32 and each.device.type == "cpu" and each.numel() for each in tensors)
    products = (leaf for leaf in leaves.values() if isinstance(leaf, Product))
    return bool(tensors) and plain and all(takes_product(p.left, p.right) for p in products) and library() is not None


def _parts(leaf: Operand) -> tuple[Tensor, ...]:
    return (leaf.left, leaf.right) if isinstance(leaf, Product) else (leaf,)


def compiled_sum(uploads: Uploads, bound: float | Tensor, levels: int) -> ClippedSum:
    """In C, for single precision."""
    compiled = library()
    assert compiled is not None, "asked before"
    clients, limit = len(uploads.level), limit_of(bound, torch.float32)
    parts = [tuple(part.contiguous() for part in _parts(leaf)) for leaf in uploads.leaves.values()]
    totals = {name: torch.empty(levels, *leaf.shape[1:]) for name, leaf in uploads.leaves.items()}
    products = [torch.empty(_product_size(leaf)) for leaf in parts]
    rows = zip(parts, totals.values(), products, strict=True)
    table = torch.tensor([_row(*row, clients, levels) for row in rows])
    level, real = uploads.level.to(torch.int64).contiguous(), uploads.real.to(torch.bool).contiguous()
    _require(level.shape == real.shape == (clients,) and bool(((level >= 0) & (level < levels)).all()))
    power, factor = torch.empty(clients, dtype=torch.float64), torch.empty(clients)
    numbers = len(parts), clients, levels, float(limit.limit), float(limit.least)
    c_library.call(compiled, "clipped_upload_sum", (table, level, real, power, factor), *numbers)
    squares = torch.where(factor == 0, 0.0, power.float() * factor.square())
    return ClippedSum(totals, factor == 1, squares)


def _product_size(parts: tuple[Tensor, ...]) -> int:
    """The numbers of one client's product; none of a stored leaf."""
    return parts[0].shape[-1] * parts[1].shape[-1] if len(parts) == 2 else 0


def _row(parts: tuple[Tensor, ...], total: Tensor, product: Tensor, clients: int, levels: int) -> list[int]:
    """A leaf as C reads it: where its parts and totals lie, rows, outputs, inputs. Every size is checked here."""
    if len(parts) == 1:
        numbers = parts[0].numel() // clients
        _require(parts[0].shape[0] == clients and total.numel() == levels * numbers)
        return [parts[0].data_ptr(), 0, total.data_ptr(), 0, 0, 1, numbers]
    left, right = parts
    rows, outputs, inputs = *left.shape[1:], right.shape[2]
    _require(right.shape == (clients, rows, inputs) and left.shape == (clients, rows, outputs))
    _require(
        inputs % _INPUTS == 0 and product.numel() == outputs * inputs and total.numel() == levels * outputs * inputs
    )
    return [left.data_ptr(), right.data_ptr(), total.data_ptr(), product.data_ptr(), rows, outputs, inputs]


def _require(holds: bool) -> None:
    """C reads where it is told to: what it is told is checked in every call."""
    if not holds:
        raise TacitError("uploads of a chunk do not fit together: shapes, levels and clients must agree")
