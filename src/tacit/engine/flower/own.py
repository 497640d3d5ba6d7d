"""The federation as one side sees it: everybody's name, and nobody else's rows.

In the place of every other client stands one row of zeros, which nothing is ever computed on but shapes.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.engine.flower.terms import Terms
from tacit.errors import TacitError
from tacit.federation.data import Federation, offsets_of


class Rows(NamedTuple):
    """A client's own data."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def seen_by_server(terms: Terms, dtype: torch.dtype) -> Federation:
    return _federation(terms, [1] * len(terms.roster), _nobody(terms, dtype))


def seen_by(place: int, terms: Terms, rows: Rows) -> Federation:
    """With the client's own rows in its place. Refuses rows of another shape, or more or fewer than it announced."""
    seat = terms.roster[place]
    if tuple(rows.x.shape[1:]) != terms.inputs:
        raise TacitError(
            f"the rows of '{seat.name}' have shape {tuple(rows.x.shape[1:])}, and the federation's {terms.inputs}"
        )
    if seat.rows and seat.rows != len(rows.x):
        raise TacitError(f"'{seat.name}' announced {seat.rows} rows and has {len(rows.x)}: join again with these data")
    sizes = [1] * len(terms.roster)
    sizes[place] = len(rows.x)
    return _federation(terms, sizes, rows, place)


def _nobody(terms: Terms, dtype: torch.dtype) -> Rows:
    x, y = torch.zeros(0, *terms.inputs, dtype=dtype), torch.zeros(0, dtype=torch.int64)
    return Rows(x, y, x, y)


def _federation(terms: Terms, sizes: list[int], own: Rows, place: int | None = None) -> Federation:
    clients = len(sizes)
    before, after = (clients, 0) if place is None else (place, clients - place - 1)
    x, y = (
        torch.cat([part.new_zeros(before, *part.shape[1:]), part, part.new_zeros(after, *part.shape[1:])])
        for part in (own.x, own.y)
    )
    tests = np.zeros(clients, np.int64)
    if place is not None:
        tests[place] = len(own.test_x)
    return Federation(
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
