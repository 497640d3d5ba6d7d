"""What a chunk's uploads come down to, in one trip through them or in none: squares, and sums by weight.

Passes over recorded programs put these in (`tacit.engine.square_sums`, `clipped_sums`, `unstored`), where they are
compiled. The sum of squares is that of the very numbers that are summed: what is clipped by it keeps to its bound.
"""

import torch
from torch import Tensor

from tacit.models.native.build import call, library, operation


def suits(like: Tensor) -> bool:
    """Whether there are kernels for uploads of this kind."""
    return like.dtype == torch.float32 and like.numel() > 0 and library() is not None


def suits_outer(y: Tensor, x: Tensor) -> bool:
    """The same for uploads y' x that are never stored: y [clients, rows, outputs], x [clients, rows, inputs]."""
    return suits(x) and y.dtype == x.dtype and x.shape[-1] % 16 == 0


def _square_sums(uploads: Tensor) -> Tensor:
    """[clients, ..] -> [clients]"""
    uploads = uploads.contiguous()
    sums = uploads.new_empty(len(uploads))
    call("square_sums", (uploads, sums), len(uploads), uploads[0].numel())
    return sums


def _weighted_sum(weights: Tensor, uploads: Tensor) -> Tensor:
    """weights [levels, clients] @ uploads [clients, numbers], without those of weight 0."""
    weights, uploads = weights.contiguous(), uploads.contiguous()
    totals = uploads.new_empty(len(weights), uploads.shape[1])
    call("weighted_sum", (weights, uploads, totals), len(weights), *uploads.shape)
    return totals


def _outer_squares(y: Tensor, x: Tensor) -> Tensor:
    """`_square_sums` of y' x."""
    y, x = y.contiguous(), x.contiguous()
    sums = x.new_empty(len(x))
    call("outer_squares", (y, x, sums), *x.shape, y.shape[-1])
    return sums


def _outer_sum(weights: Tensor, y: Tensor, x: Tensor) -> Tensor:
    """`_weighted_sum` of y' x: [levels, outputs * inputs]."""
    weights, y, x = weights.contiguous(), y.contiguous(), x.contiguous()
    totals = x.new_empty(len(weights), y.shape[-1] * x.shape[-1])
    call("outer_sum", (weights, y, x, totals), len(weights), *x.shape, y.shape[-1])
    return totals


operation("square_sums(Tensor uploads) -> Tensor", _square_sums)
operation("weighted_sum(Tensor weights, Tensor uploads) -> Tensor", _weighted_sum)
operation("outer_squares(Tensor y, Tensor x) -> Tensor", _outer_squares)
operation("outer_sum(Tensor weights, Tensor y, Tensor x) -> Tensor", _outer_sum)
