"""Tables 4 to 7 of FeO2 as printed: percent, and the variance across clients as 100 x that of the shares."""

import csv
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

FIGURES: Final = (
    "global",
    "global_private",
    "global_open",
    "global_gain",
    "personal_private",
    "personal_open",
    "personal_gain",
)
"""Acc_g; Acc_g,p; Acc_g,np; Delta_g; Acc_l,p; Acc_l,np; Delta_l."""
SPREADS: Final = ("global_private", "global_open", "personal_private", "personal_open")
"""Of these the variance across clients is printed, too, as `<name>_variance`."""


@cache
def tables() -> Mapping[tuple[str, float, str], Mapping[str, float]]:
    """(table, lambda, arm) to its figures; what the paper leaves out is left out."""
    text = (files("papers.fedhdp") / "fedhdp.csv").read_text()
    rows = csv.DictReader(text.splitlines())
    return {(row.pop("table"), float(row.pop("strength")), row.pop("arm")): _numbers(row) for row in rows}


def printed(table: str, strength: float, arm: str) -> Mapping[str, float]:
    """The paper's figures of one row; none if it has no such row."""
    return tables().get((table, strength, arm), {})


def repetitions(table: str, arm: str) -> list[float]:
    """Acc_g of an arm, once for each lambda: Ditto does not touch the shared model, so that these are repetitions."""
    found = {lam: row["global"] for (name, lam, own), row in tables().items() if (name, own) == (table, arm)}
    return [found[lam] for lam in sorted(found)]


def ratios(table: str) -> list[float]:
    """The ratios that the paper tried on a table, in ascending order."""
    tried = {arm for name, _, arm in tables() if name == table and arm.startswith("r=")}
    return sorted(float(arm.removeprefix("r=")) for arm in tried)


def _numbers(row: Mapping[str, str]) -> dict[str, float]:
    return {name: float(value) for name, value in row.items() if value}
