"""The sum of a round's integers by secure aggregation, client and server in one process: what a deployment does.

The result is the plain sum modulo 2^b, bit by bit. It is for small cohorts: time grows with the square of the cohort.
"""

from collections.abc import Iterable
from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.privacy.mechanisms.release import MaskedSum, Totals
from tacit.privacy.plan import Plan
from tacit.simulation.totals import of_masked_sum


def check() -> None:
    """Says before the first round what is missing."""
    if find_spec("cryptography") is None:
        raise TacitError("secure_sum needs the package cryptography: pip install 'tacit-fl[secagg]'")


def totals(plan: Plan, blank: Totals, parts: Iterable[tuple[np.ndarray, Totals]], seed: int, round: int) -> Totals:
    """Of chunks whose bodies have a row for each client: their secure sum, in the row of the first level.

    A round that the plan will discard for having too few clients has no sum.
    """
    agreed = plan.release.masked_sum
    if agreed is None:
        raise TacitError(f"plan '{plan.name}' has no integers to sum securely: leave out secure_sum")
    rows: dict[int, Tensor] = {}
    members = blank.members
    for clients, part in parts:
        members = members + part.members
        rows |= zip(clients.tolist(), part.body.get(agreed.leaf, ()), strict=False)  # a chunk is filled up with more
    total = _sum(rows, agreed, seed, round) if len(rows) >= max(agreed.least, 1) else None
    return of_masked_sum(blank, total, members)


def _sum(rows: dict[int, Tensor], agreed: MaskedSum, seed: int, round: int) -> Tensor:
    from tacit.secagg.local import run
    from tacit.secagg.messages import Terms

    _, size, bits, least, share = agreed
    terms = Terms.of(f"simulation of seed {seed}", round, tuple(rows), size=size, bits=bits, least=least, share=share)
    return torch.from_numpy(run(terms, {client: row.numpy() for client, row in rows.items()}).total)
