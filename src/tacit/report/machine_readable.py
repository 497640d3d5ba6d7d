"""What commands print, for programs: the same figures as plain numbers, lists and texts."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from tacit.report.budget import AccountFigures, ChangesReport, LedgerReport
from tacit.report.summary import RunSummary


def to_json(value: Any) -> str:
    """JSON of dataclasses, mappings and sequences. Infinity is the text "infinity", what is not a number is null."""
    return json.dumps(plain(value), indent=2, ensure_ascii=False)


def plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, bool | str | int | None):
        return value
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, Sequence | np.ndarray | set | frozenset):
        return [plain(each) for each in value]
    return str(value)


def _number(value: float) -> float | str | None:
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else "infinity" if value > 0 else "-infinity"


def run_record(run: RunSummary, folder: Path) -> dict[str, Any]:
    """Figures of the last evaluation, and what each level has spent by the ledger."""
    names = ["all", *run.facts.levels]
    metrics = dict.fromkeys(run.metrics["metric"].tolist())
    figures = {level: {name: run.value(level, name) for name in metrics} for level in names}
    by_level = {level: {k: v for k, v in row.items() if v is not None} for level, row in figures.items()}
    return {
        "folder": str(folder),
        "title": run.title,
        "method": run.facts.method,
        "plan": run.facts.plan,
        "rounds": run.facts.rounds,
        "done": run.rounds_done,
        "evaluated": run.last,
        "stopped": run.stopped,
        "simulation": run.facts.simulation,
        "figures": by_level,
        "spent": run.epsilons,
        "promises": run.facts.promises,
        "guarantees": run.guarantees(),
    }


def ledger_record(
    parts: Sequence[object], simulation: str | None, figures: Sequence[AccountFigures] = ()
) -> dict[str, Any]:
    """Accounts, and clients that changed their level, as the ledger has them; other figures where asked for."""
    accounts = [part for part in parts if isinstance(part, LedgerReport)]
    changes = [part for part in parts if isinstance(part, ChangesReport)]
    return {
        "simulation": simulation,
        "note": "".join(part.note for part in accounts),
        "accounts": [line for part in accounts for line in part.lines],
        "changes": [group for part in changes for group in part.groups],
        "figures": figures,
    }


def records(table: Table) -> list[dict[str, Any]]:
    """The rows of a table by the heads of its columns; its keys as a list."""
    heads = [str(column.header) for column in table.columns]
    rows = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    entries: list[dict[str, Any]] = [dict(zip(heads, row, strict=True)) for row in rows]
    return [row | {"keys": row["keys"].split(", ")} if "keys" in row else row for row in entries]
