"""The batches of a chunk's clients: in compiled code where they are shuffled passes, and the same rows either way."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor

from tacit import c_library
from tacit.core import rng
from tacit.data.dataset import FederatedDataset
from tacit.privacy.accounting.sampling import BatchRule
from tacit.sampling.cohorts import Draw, Shuffled, draw_batches

SOURCE: Final = Path(__file__).with_name("shuffles.c")
_SCRATCH: Final = 64  # bytes for each row of the largest client


@cache
def _library() -> ctypes.CDLL | None:
    return c_library.load([SOURCE])


def drawn(
    rule: BatchRule,
    seed: int,
    round: int,
    clients: np.ndarray,
    federation: FederatedDataset,
    purpose: str,
    steps: int = 0,
) -> Draw:
    """One round's, padded to at least `steps` steps that are not live."""
    compiled = (
        _draw_compiled(rule, seed, round, clients, federation, purpose, steps) if isinstance(rule, Shuffled) else None
    )
    return compiled or draw_batches(rule, seed, round, clients, federation, purpose, steps)


def _draw_compiled(
    rule: Shuffled, seed: int, round: int, clients: np.ndarray, federation: FederatedDataset, purpose: str, steps: int
) -> Draw | None:
    firsts, sizes = federation.offsets[clients], federation.offsets[clients + 1] - federation.offsets[clients]
    most = max(steps, rule.steps(int(sizes.max(initial=0))))
    keys = rng.keys(seed, purpose, round, clients.tolist())
    shuffled = shuffle_rows(keys, sizes, firsts, rule.epochs, rule.size, most)
    return shuffled and Draw(*shuffled)


def shuffle_rows(
    keys: np.ndarray, sizes: np.ndarray, firsts: np.ndarray, epochs: int, batch: int, steps: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """(rows, mask, live) of clients with these keys, so many rows and the first of them there; None if not compiled.

    The rows are those of `tacit.sampling.cohorts.Shuffled`. `steps` is no less than anybody takes; what is left over is
    dead and points at the client's first row.
    """
    library, clients, largest = _library(), len(sizes), int(sizes.max(initial=1))
    if library is None:
        return None
    if clients and (sizes.min() < 1 or epochs * -(-largest // batch) > steps):
        raise ValueError(f"{steps} steps are too few for {largest} rows, or a client has none")
    rows = torch.empty(clients, steps, batch, dtype=torch.int64)
    mask, live = (torch.empty(shape, dtype=torch.bool) for shape in (rows.shape, rows.shape[:2]))
    inputs = (torch.from_numpy(np.array(each, np.int64)) for each in (keys, sizes, firsts))
    scratch = torch.empty(_SCRATCH * largest, dtype=torch.uint8)
    c_library.call(library, "shuffled_rows", (*inputs, rows, mask, live, scratch), clients, epochs, batch, steps)
    return rows, mask, live
