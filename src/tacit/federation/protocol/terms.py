"""The public facts of a federated run, the same for the server and every client: experiment, roster, shapes."""

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from tacit.errors import TacitError
from tacit.federation.protocol.messages import Rejected

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

    @property
    def sizes(self) -> np.ndarray:
        """The public numbers of rows, for plans that make them so."""
        return np.array([checked_rows(seat.rows, True) for seat in self.roster], dtype=np.int64)

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
