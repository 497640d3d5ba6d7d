"""What comes back from `train`: figures, guarantees in words, and every client's own model."""

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from rich.console import Console, ConsoleOptions, RenderableType
from torch import Tensor, nn

from tacit.core.checked import checked
from tacit.core.columns import call
from tacit.core.contract import Tree
from tacit.data.from_rows import from_clients
from tacit.data.tables import Encoding, is_text
from tacit.errors import TacitError
from tacit.experiments import trained
from tacit.experiments.build import Parts
from tacit.models.metrics import predicted
from tacit.report.summary import RunSummary
from tacit.report.tables import level_table
from tacit.rounds.assemble import Privacy, assemble
from tacit.rounds.evaluate import Scores
from tacit.rounds.loop import Run
from tacit.rounds.predict import OWN_ROWS, client_position, personal_module, predictor, rows_like, shared_module

if TYPE_CHECKING:
    import pandas as pd
    from rich.table import Table


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """A run that has ended, as `train` gives it.

    `print(result)` is its summary; `save_html` and `save_png` write it down.

    Scores, metrics and the table's accuracies are simulation only: who publishes them has paid nothing for them.

    Args:
        findings: what is told of the run: facts, tables, guarantees.
        scores: of every client's models at the end.
        stopped: why it ended early; None if it did not.
        folder: where it is kept; None if nowhere.
        run: its last state.
        parts: what it was trained from.

    >>> import tacit
    >>> hasattr(tacit.Result, "save_html")
    True
    """

    findings: RunSummary
    scores: Scores
    stopped: str | None
    folder: Path | None
    run: Run
    parts: Parts  # what it was trained from

    @property
    def metrics(self) -> "pd.DataFrame":
        """One tidy table: round, level, metric, value."""
        return self.findings.metrics

    @property
    def interrupted(self) -> bool:
        """Whether it was asked to stop; a spent budget is not that."""
        return self.stopped == "stopped on request"

    def table(self) -> "Table":
        """One row for each level: its guarantee, what it spent, and its figures."""
        return level_table(self.findings)

    def guarantees(self) -> list[str]:
        """A sentence for each level, and one for the federation as a whole."""
        return self.findings.guarantees()

    def model(self) -> nn.Module:
        """The shared model: a copy of the network that was given, with what was learned in it, ready to predict.

        What a plan promised holds for it: everything in it went through the plan's release.
        """
        return shared_module(self.run, self.parts.model)

    def personal(self, client: str) -> nn.Module:
        """A client's personal model, adapted on its training rows. It is the client's own: no guarantee covers it."""
        return personal_module(self.run, self.parts.model, client)

    def adapt(self, x: Any, y: Any, rounds: int = 5) -> nn.Module:
        """A personal model for a client that never took part: it joins, and trains on its own rows for some rounds.

        Nothing of it is sent, so nothing is charged.

        Args:
            x: its rows.
            y: their labels.
            rounds: how often it trains as a client does in a round.

        Raises:
            TacitError: for a method whose personal models need everybody's messages (multitask learning).
        """
        method, view = self.parts.method, self.run.progress.server.view
        if method.gather:
            raise TacitError(f"{type(method).__name__} has no model for a client that did not take part: train again")
        names = self.parts.federation.encoding.classes
        y = Encoding(classes=names).class_numbers(y) if names and is_text(y) else y
        alone = from_clients({"new": (x, y)}, test_fraction=0.0, classes=self.run.engine.federation.classes,
                             images=self.parts.federation.x.dtype == torch.uint8 or None)  # fmt: skip
        training, objective = replace(self.parts.training, rounds=rounds), self.parts.objective
        engine, _ = assemble(alone, self.parts.model, method, Privacy(), training, objective=objective)
        state, who = method.join(view, engine.start), np.array([0])
        for round in range(rounds):
            inputs = engine.inputs_for(_row(state), who, round)
            _, state = engine.alone(view, engine.plan.release.start(), torch.tensor(round), inputs)
        inputs = engine.inputs_for(_row(state), who, rounds, "adapt")
        site, _ = engine.site(engine.task, inputs.only, rounds, inputs.full)
        rows, _ = alone.take(torch.arange(min(len(alone.x), OWN_ROWS)))
        return predictor(method, engine.task, view, method.adapt(view, state, site), self.parts.model, rows)

    def predict(self, x: Any, client: str | None = None) -> np.ndarray:
        """Predictions for the rows of `x`, written as targets are: by a client's personal model, or by the shared one.

        Classes, by their names where they have some (at each position of a sequence); yes or no for each label; or the
        numbers of a regression.
        """
        predictions = predicted(self.outputs(x, client), self.run.engine.task.kind).numpy()
        return self.parts.federation.encoding.named(predictions)

    def outputs(self, x: Any, client: str | None = None) -> Tensor:
        """Outputs for the rows of `x`: of a client's personal model, or of the shared one."""
        if isinstance(x, str) and client is not None and not isinstance(client, str):
            warnings.warn("the rows come first now: outputs(x, client), predict(x, client)", DeprecationWarning, 3)
            x, client = client, x
        rows = rows_like(x, self.parts.federation.x, self.run.engine.federation.x)
        module = self.model() if client is None else self.personal(client)
        with torch.no_grad():
            return call(module, rows)

    @checked
    def save(self, folder: Path | str, clients: Sequence[str] | None = None) -> Path:
        """Writes the models to a new folder, for `tacit.load_model`, `tacit predict` or anybody who reads safetensors.

        Args:
            folder: a new or empty one.
            clients: whose personal models; all of them by default.

        Returns:
            The folder: parameters, a program that needs no code of yours, and a model card with the guarantees.
        """
        if isinstance(clients, str):
            raise TacitError(f"clients is '{clients}': give a list, for example ['{clients}']")
        for client in clients or ():
            client_position(self.run, client)  # before a folder is made
        config = trained.ModelConfig.of(self.run.engine, self.parts.model, clients)
        personal = ((client, self.personal(client)) for client in config.clients)
        card = trained.model_card(config, self.findings.title, self.findings.lines())
        return trained.save_models(Path(folder), config, card, self.model(), personal)

    def save_html(self, path: Path | str) -> Path:
        """One page that works without a network; returns its path."""
        from tacit.report.html import write_html

        return write_html([self.findings], Path(path))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self.table()
        yield from self.findings.lines()

    def __repr__(self) -> str:
        facts, done = self.findings.facts, self.findings.rounds_done
        return f"Result({facts.name}: {facts.method}, plan {facts.plan}, {done} of {facts.rounds} rounds)"

    def _repr_html_(self) -> str:
        """In a notebook: the table, a chart of the metric over rounds, and the guarantees in words."""
        from tacit.report.html import notebook_cell

        return notebook_cell(self.findings)

    def __str__(self) -> str:
        console = Console(width=120, color_system=None, force_terminal=False, force_jupyter=False, markup=False)
        with console.capture() as caught:
            console.print(self)
        return caught.get().rstrip("\n")


def _row(state: Tree) -> Tree:
    return {name: leaf.unsqueeze(0) for name, leaf in state.items()}
