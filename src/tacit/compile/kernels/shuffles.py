"""Shuffled passes over clients' rows, drawn in compiled code: the rows of `tacit.sampling.cohorts.Shuffled`."""

import numpy as np
import torch
from torch import Tensor

from tacit.compile.kernels.build import call, library


def shuffled(
    keys: np.ndarray, sizes: np.ndarray, firsts: np.ndarray, epochs: int, batch: int, steps: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """(rows, mask, live) of clients with these keys, so many rows and the first of them there; None if not compiled.

    `steps` is no less than anybody takes; what is left over is dead and points at the client's first row.
    """
    if library() is None:
        return None
    several = len(sizes)
    if several and (sizes.min() < 1 or epochs * -(-int(sizes.max()) // batch) > steps):
        raise ValueError(f"{steps} steps are too few for {int(sizes.max())} rows, or a client has none")
    rows = torch.empty(several, steps, batch, dtype=torch.int64)
    mask, live = (torch.empty(shape, dtype=torch.bool) for shape in (rows.shape, rows.shape[:2]))
    given = (torch.from_numpy(np.array(each, np.int64)) for each in (keys, sizes, firsts))
    call("shuffled_rows", (*given, rows, mask, live), several, epochs, batch, steps)
    return rows, mask, live
