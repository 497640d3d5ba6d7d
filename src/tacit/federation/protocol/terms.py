"""The public facts of a federated run, the same for the server and every client: experiment, roster, shapes.

A side's view of the federation has everybody's name, and nobody else's rows. The server and a client check and
calibrate on stand-ins, rows that all know (`public_view`); the client puts its own rows in their place afterwards
(`with_own_rows`): whether it accepts a server's terms follows from what is public, and tells nothing of its rows.
"""

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tacit.core.columns import Rows as Inputs
from tacit.data.dataset import FederatedDataset, LocalView, like, local_view
from tacit.data.layout import NUMBERS, Layout, Shape, read_layout, read_shapes
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
    inputs: Shape  # of a row
    classes: int
    roster: tuple[Participant, ...]
    layout: Layout = NUMBERS  # what inputs and targets are

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
        layout = read_layout(content.pop("layout"))
        terms = Terms(
            run=str(content.pop("run")),
            experiment=str(content.pop("experiment")),
            inputs=read_shapes(content.pop("inputs"), layout),
            classes=int(content.pop("classes")),
            roster=roster,
            layout=layout,
        )
    except (TacitError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Rejected("malformed", f"the terms cannot be read ({type(error).__name__})") from error
    if content or len(set(terms.names)) < len(roster) or not roster:
        raise Rejected("malformed", "the terms have other keys, no clients, or a name twice")
    return terms


STAND_INS: Final = 16  # rows in the place of a client's own, however many it has


class Rows(NamedTuple):
    """A client's own data."""

    x: Inputs
    y: Tensor
    test_x: Inputs
    test_y: Tensor

    @classmethod
    def of(cls, data: FederatedDataset, place: int) -> "Rows":
        """Those of one client of a federation that is all here."""
        own, test = data.rows(place), data.test_rows(place)
        return cls(data.x[own], data.y[own], data.test_x[test], data.test_y[test])


def public_view(terms: Terms, dtype: torch.dtype, place: int | None = None) -> LocalView:
    """What is known without anybody's rows: some to try the model on, in a client's place, or one for a server.

    Args:
        terms: of the run.
        dtype: of a row.
        place: of the client on the roster; None for the server.
    """
    stand_ins = 1 if place is None else STAND_INS
    x, y = terms.layout.rows(terms.inputs, stand_ins, dtype)
    return local_view(terms.names, terms.classes, place or 0, (x, y), (x[:0], y[:0]), terms.layout.encoding)


def with_own_rows(assembled: Assembled, place: int, terms: Terms, rows: Rows, public: bool) -> Assembled:
    """What was assembled on stand-ins, for the client's own rows.

    Refuses more or fewer rows than the roster says where their number is `public`: noise is calibrated to it.
    """
    seat, engine = terms.roster[place], assembled.engine
    if tuple(rows.x.shape[1:]) != terms.inputs:
        raise TacitError(
            f"the rows of '{seat.name}' have shape {tuple(rows.x.shape[1:])}, and the federation's {terms.inputs}"
        )
    if misfit := terms.layout.misfit(rows.x, rows.y):
        raise TacitError(f"the rows of '{seat.name}' have {misfit}")
    if public and seat.rows != len(rows.x):
        raise TacitError(f"'{seat.name}' announced {seat.rows} rows and has {len(rows.x)}: join again with these data")
    tried = engine.federation
    x, test_x = like(tried.x, rows.x), like(tried.x, rows.test_x)
    own = (x, rows.y), (test_x, rows.test_y)
    federation = local_view(terms.names, terms.classes, place, *own, tried.encoding)
    sizes = engine.plan.setting.sizes.copy()
    sizes[place] = len(rows.x)
    return assembled._replace(engine=replace(engine, federation=federation, method=engine.method.sized(sizes.tolist())))
