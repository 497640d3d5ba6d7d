"""The public facts of a federated run, the same for the server and every client: experiment, roster, shapes.

A side's view of the federation has everybody's name, and nobody else's rows. The server and a client check and
calibrate on stand-ins, rows of zeros (`public_view`); the client puts its own rows in their place afterwards
(`with_own_rows`): whether it accepts a server's terms follows from what is public, and tells nothing of its rows.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.data.dataset import LocalView, local_view
from tacit.errors import TacitError
from tacit.federation.protocol.messages import Rejected
from tacit.rounds.assemble import Assembled

MOST_ROWS: Final = 2**31


def checked_rows(rows: object, public: bool) -> int:
    """The number of rows that somebody has told: 1 to 2^31 where the plan makes it public, else 0."""
    if isinstance(rows, bool) or not isinstance(rows, int) or not int(public) <= rows <= MOST_ROWS * public:
        wanted = "a whole number from 1 to 2^31" if public else "0, since the plan makes no numbers of rows public"
        raise TacitError(f"the number of rows is {str(rows)[:40]!r}: tell {wanted}")
    return rows


@dataclass(frozen=True)
class Participant:
    """One registered client: its name, the level it chose, and its number of rows where the plan makes that public.

    `key`: its node's public key, by which others know its messages where sums are masked.
    """

    name: str
    level: str
    rows: int = 0
    key: str = ""


@dataclass(frozen=True)
class Terms:
    """`experiment` is the text of the experiment's file. Whoever has the terms derives the same plan from them."""

    run: str
    experiment: str
    inputs: tuple[int, ...]  # shape of a row
    classes: int
    roster: tuple[Participant, ...]

    def text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(seat.name for seat in self.roster)

    def sizes(self, view: LocalView, public: bool) -> np.ndarray:
        """The clients' numbers of rows where the plan makes them `public`; else those of the view, and 1 elsewhere."""
        announced = np.array([checked_rows(seat.rows, public) for seat in self.roster], dtype=np.int64)
        return announced if public else np.maximum(view.sizes, 1)

    def place(self, name: str) -> int:
        if name not in self.names:
            raise Rejected("sender", f"{name!r} is not on the roster of {len(self.roster)} clients")
        return self.names.index(name)


def read_terms(text: str) -> Terms:
    """What `Terms.text` wrote, or a rejection."""
    try:
        content: dict[str, Any] = json.loads(text)
        roster = tuple(
            Participant(str(s["name"]), str(s["level"]), checked_rows(s["rows"], s["rows"] != 0), str(s["key"]))
            for s in content.pop("roster")
        )
        terms = Terms(
            run=str(content.pop("run")),
            experiment=str(content.pop("experiment")),
            inputs=tuple(int(n) for n in content.pop("inputs")),
            classes=int(content.pop("classes")),
            roster=roster,
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Rejected("malformed", f"the terms cannot be read ({type(error).__name__})") from error
    if content or len(set(terms.names)) < len(roster) or not roster:
        raise Rejected("malformed", "the terms have other keys, no clients, or a name twice")
    return terms


STAND_INS: Final = 16  # rows of zeros in the place of a client's own, however many it has


class Rows(NamedTuple):
    """A client's own data."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor


def public_view(terms: Terms, dtype: torch.dtype, place: int | None = None) -> LocalView:
    """What is known without anybody's rows: zeros to try the model on, in the place of a client's, or one for a server.

    Args:
        terms: of the run.
        dtype: of a row.
        place: of the client on the roster; None for the server.
    """
    stand_ins = 1 if place is None else STAND_INS
    x, y = torch.zeros(stand_ins, *terms.inputs, dtype=dtype), torch.zeros(stand_ins, dtype=torch.int64)
    return local_view(terms.names, terms.classes, place or 0, (x, y), (x[:0], y[:0]))


def with_own_rows(assembled: Assembled, place: int, terms: Terms, rows: Rows, public: bool) -> Assembled:
    """What was assembled on zeros, for the client's own rows.

    Refuses more or fewer rows than the roster says where their number is `public`: noise is calibrated to it.
    """
    seat, engine = terms.roster[place], assembled.engine
    if tuple(rows.x.shape[1:]) != terms.inputs:
        raise TacitError(
            f"the rows of '{seat.name}' have shape {tuple(rows.x.shape[1:])}, and the federation's {terms.inputs}"
        )
    if public and seat.rows != len(rows.x):
        raise TacitError(f"'{seat.name}' announced {seat.rows} rows and has {len(rows.x)}: join again with these data")
    x, y, test_x, test_y = rows
    federation = local_view(terms.names, terms.classes, place, (x, y), (test_x, test_y))
    dtype = next(iter(engine.start.values())).dtype
    if not (rows.x.dtype == torch.uint8 and dtype == torch.float32):  # bytes are scaled by the batch
        federation = federation.as_numbers(dtype)  # as the stand-ins were, on which the model was tried
    sizes = engine.plan.setting.sizes.copy()
    sizes[place] = len(rows.x)
    return assembled._replace(engine=replace(engine, federation=federation, method=engine.method.sized(sizes.tolist())))
