"""What comes back from `train`: figures, guarantees in words, and every client's own model."""

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from torch import Tensor

from tacit.report.summary import RunSummary
from tacit.report.tables import level_table
from tacit.rounds.evaluate import Scores
from tacit.rounds.loop import Run
from tacit.rounds.predict import outputs

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A run that has ended. `stopped` says why it ended early; None if it did not.

    Scores, metrics and the table's accuracies are simulation only.
    """

    findings: RunSummary
    scores: Scores
    stopped: str | None
    folder: Path | None
    run: Run

    @property
    def metrics(self) -> "pd.DataFrame":
        """One tidy table: round, level, metric, value."""
        return self.findings.metrics

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop; a spent budget is not that."""
        return self.stopped == "stopped on request"

    def table(self) -> "Table":
        """One row for each level: its guarantee, what it spent, and its accuracies."""
        return level_table(self.findings)

    def guarantees(self) -> list[str]:
        """A sentence for each level, and one for the federation as a whole."""
        return self.findings.guarantees()

    def predict(self, client: str, x: Any) -> np.ndarray:
        """The class that the client's personal model gives each row of `x`."""
        return self.outputs(client, x).argmax(-1).numpy()

    def outputs(self, client: str, x: Any) -> Tensor:
        """The outputs of the client's personal model, [rows, classes]; adapted on its training data, never on `x`."""
        return outputs(self.run, client, x)

    def save_html(self, path: Path | str) -> Path:
        """One page that works without a network; returns its path."""
        from tacit.report.report import write_html

        return write_html([self.findings], Path(path))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.table()
        yield from self.findings.lines()

    def __repr__(self) -> str:
        facts = self.findings.facts
        return f"Result({facts.name}: {facts.method}, plan {facts.plan}, {self.findings.done} of {facts.rounds} rounds)"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def __str__(self) -> str:
        console = Console(width=120, color_system=None, force_terminal=False, markup=False)
        with console.capture() as caught:
            console.print(self)
        return caught.get().rstrip("\n")
