"""What a folder says of the run whose ledger lies in it: needed to read charges of earlier versions rightly."""

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tacit.privacy.ledger.statement import Line, shown


def epochs_in(folder: Path) -> int | None:
    """How often a round of the run went over a client's rows; None in a member's folder, which does not know.

    As written by `tacit run`, by `tacit.train` or by a federation's server.
    """
    content = _content(folder)
    if content is None:
        return None
    if not isinstance(training := content.get("training"), dict):
        return int(content.get("epochs", 1))
    found = re.search(r"\bepochs=(\d+)", str(training.get("value")))  # put together in Python: the text of `Training`
    return int(found[1]) if found else None


def recomputed(lines: Sequence[Line]) -> list[str]:
    """A sentence about the accounts that an earlier version charged too little; none if there are none."""
    wrong = [(line.stated, line.epsilon) for line in lines if line.stated is not None]
    if not wrong:
        return []
    stated, right = (shown(max(each)) for each in zip(*wrong, strict=True))
    return [
        f"Earlier versions stated epsilon {stated} at most for {len(wrong):,} accounts of this run, and charged "
        f"several private gradients on one batch as if each had a batch of its own: the same releases cost {right}, "
        "which is what holds. `tacit ledger` has every account."
    ]


def _content(folder: Path) -> dict[str, Any] | None:
    """The experiment, or None if there is none, or none that can be read."""
    config, terms = folder / "config.toml", folder / "terms.json"
    try:
        if config.is_file():
            return tomllib.loads(config.read_text(encoding="utf-8"))
        if terms.is_file():
            return tomllib.loads(json.loads(terms.read_text(encoding="utf-8"))["experiment"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None
