"""What a server offers to whoever holds an invitation. What it means, a member derives from the experiment's text."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from tacit.errors import TacitError
from tacit.experiments.build import build_privacy
from tacit.experiments.config import Config, full
from tacit.federation.protocol.terms import MOST_ROWS, Participant, Terms
from tacit.federation.service.experiment import (
    evaluates,
    experiment_of,
    foreign_names,
    plan_name,
    public_side,
    rows_are_public,
)
from tacit.federation.service.permitted_code import Code, identify
from tacit.privacy.levels import Level
from tacit.privacy.plan import Plan


@dataclass(frozen=True)
class Offer:
    """`inputs`: the shape of a row; `label`: the column of labels; `nodes`: how many members there will be."""

    experiment: str
    inputs: tuple[int, ...]
    classes: int
    nodes: int
    label: str = "label"
    permitted: tuple[str, ...] | None = ()  # code beside Tacit's own that its reader runs; None: it is one's own offer
    code: tuple[Code, ...] = ()  # what of it the server says that it has

    @cached_property
    def config(self) -> Config:
        return experiment_of(self.experiment, self.permitted)

    @property
    def plan(self) -> str:
        return plan_name(self.config)

    @property
    def rows(self) -> bool:
        """Whether members tell how many rows they have."""
        return rows_are_public(self.config)

    @property
    def summed(self) -> bool:
        """Whether only sums of messages may be seen."""
        return build_privacy(self.config).plan.server_sees == "sum"

    @property
    def evaluated(self) -> bool:
        return evaluates(self.config)

    @property
    def levels(self) -> dict[str, Level]:
        return {level.name: level for level in build_privacy(self.config).levels}

    def planned(self, level: str) -> Plan:
        """The plan that as many members as are offered would have, all of them at one level."""
        names = [f"member {k}" for k in range(self.nodes)]
        roster = tuple(Participant(name, level, int(self.rows)) for name in names)
        terms = Terms("offer", self.experiment, self.inputs, self.classes, roster)
        return public_side(terms, names[0], self.permitted).engine.plan

    def content(self) -> dict[str, Any]:
        """For the server's file. What a member does not read there (levels, whether rows are told) is for the door."""
        levels = {name: asdict(level) for name, level in self.levels.items()}
        said = {key: value for key, value in asdict(self).items() if key != "permitted"}
        code = [list(identify(name)) for name in foreign_names(full(self.config))]
        return {**said, "levels": levels, "rows": self.rows, "code": code}

    def compare_code(self) -> None:
        """Raises a `TacitError` where the server says that it has other code than what is permitted here."""
        for theirs in self.code:
            if theirs.name in (self.permitted or ()) and (own := identify(theirs.name)) != theirs:
                raise TacitError(f"'{theirs.name}' is {own} here and {theirs} at the server: install the same")


def read_offer(content: Mapping[str, Any], permitted: tuple[str, ...] = ()) -> Offer:
    """The offer of a server, or a `TacitError`."""
    try:
        inputs = tuple(_count(n) for n in content["inputs"])
        classes, nodes = _count(content["classes"]), _count(content["nodes"])
        code = tuple(Code(*(str(part)[:200] for part in each)) for each in content["code"])
        offer = Offer(str(content["experiment"]), inputs, classes, nodes, str(content["label"]), permitted, code)
    except (KeyError, TypeError) as error:
        raise TacitError(f"the server's offer cannot be read ({error}): both sides need the same Tacit") from None
    if not inputs:
        raise TacitError("the server's offer does not say what a row is")
    return offer


def _count(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_ROWS:
        raise TacitError(f"the server's offer has {str(value)[:40]!r} where a number from 1 to 2^31 should stand")
    return value
