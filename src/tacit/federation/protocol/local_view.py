"""The federation as one side sees it: everybody's name, and nobody else's rows.

In the place of every other client stands one row of zeros, which nothing is ever computed on but shapes.

A client checks and calibrates on zeros, too (`seen_by_anybody`), and puts its own rows in their place afterwards
(`with_own_rows`): whether it accepts a server's terms follows from what is public, and tells nothing of its rows.
"""

from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.data.dataset import FederatedDataset, offsets_of
from tacit.errors import TacitError
from tacit.federation.protocol.terms import Terms
from tacit.rounds.assemble import Assembled

STAND_INS: Final = 16  # rows of zeros in the place of a client's own, however many it has


class Rows(NamedTuple):
    """A client's own data."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def seen_by_server(terms: Terms, dtype: torch.dtype) -> FederatedDataset:
    return _federation(terms, [1] * len(terms.roster), _zeros(terms, 0, dtype))


def seen_by_anybody(place: int, terms: Terms, dtype: torch.dtype) -> FederatedDataset:
    """With zeros in the client's own place, too."""
    return _with(place, terms, _zeros(terms, STAND_INS, dtype))


def with_own_rows(made: Assembled, place: int, terms: Terms, rows: Rows, public: bool) -> Assembled:
    """What was assembled on zeros, for the client's own rows.

    Refuses more or fewer rows than the roster says where their number is `public`: noise is calibrated to it.
    """
    seat, engine = terms.roster[place], made.engine
    if tuple(rows.x.shape[1:]) != terms.inputs:
        raise TacitError(
            f"the rows of '{seat.name}' have shape {tuple(rows.x.shape[1:])}, and the federation's {terms.inputs}"
        )
    if public and seat.rows != len(rows.x):
        raise TacitError(f"'{seat.name}' announced {seat.rows} rows and has {len(rows.x)}: join again with these data")
    federation, dtype = _with(place, terms, rows), next(iter(engine.start.values())).dtype
    if not (rows.x.dtype == torch.uint8 and dtype == torch.float32):  # bytes are scaled by the batch
        federation = federation.astype(dtype)
    sizes = engine.plan.setting.sizes.copy()
    sizes[place] = len(rows.x)
    return made._replace(engine=replace(engine, federation=federation, method=engine.method.sized(sizes.tolist())))


def _zeros(terms: Terms, several: int, dtype: torch.dtype) -> Rows:
    x, y = torch.zeros(several, *terms.inputs, dtype=dtype), torch.zeros(several, dtype=torch.int64)
    return Rows(x, y, x[:0], y[:0])


def _with(place: int, terms: Terms, rows: Rows) -> FederatedDataset:
    sizes = [1] * len(terms.roster)
    sizes[place] = len(rows.x)
    return _federation(terms, sizes, rows, place)


def _federation(terms: Terms, sizes: list[int], own: Rows, place: int | None = None) -> FederatedDataset:
    clients = len(sizes)
    before, after = (clients, 0) if place is None else (place, clients - place - 1)
    x, y = (
        torch.cat([part.new_zeros(before, *part.shape[1:]), part, part.new_zeros(after, *part.shape[1:])])
        for part in (own.x, own.y)
    )
    tests = np.zeros(clients, np.int64)
    if place is not None:
        tests[place] = len(own.test_x)
    return FederatedDataset(
        name="federation",
        x=x,
        y=y,
        offsets=offsets_of(sizes),
        test_x=own.test_x,
        test_y=own.test_y,
        test_offsets=offsets_of(tests),
        common_x=None,
        common_y=None,
        ids=terms.names,
        classes=terms.classes,
    )
