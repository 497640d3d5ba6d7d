"""Long rows of numbers, such as clients' states, from many places to many others."""

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

from tacit.compile.kernels.build import call, library

LONG: Final = 4096  # numbers of a row that are copied faster by themselves


def copy_rows(into: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
    """Each row, unbroken and of one length, to its place; what is converted on the way is torch's to do."""
    if not rows:
        return
    alike = {(each.dtype, each.numel(), each.is_contiguous()) for each in (*into, *rows)}
    if library() is None or rows[0].numel() < LONG or len(alike) > 1 or not rows[0].is_contiguous():
        for place, row in zip(into, rows, strict=True):
            place.copy_(row)
        return
    places, sources = (torch.tensor([each.data_ptr() for each in several]) for several in (into, rows))
    call("copy_rows", (sources, places), len(rows), rows[0].numel() * rows[0].element_size())
