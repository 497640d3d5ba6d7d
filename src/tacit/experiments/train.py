"""Trains a federation and hands back a `Result`; the same for notebooks and the command line."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from torch import nn

from tacit import models
from tacit.core.checked import checked
from tacit.core.contract import Method
from tacit.core.files import write_atomically
from tacit.core.registry import make_importable
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.experiments import run_dir
from tacit.experiments.build import Parts, build
from tacit.experiments.callbacks import (
    Callback,
    Callbacks,
    Logging,
    Promises,
    Recorder,
    attended,
    interruptible,
    trackers,
)
from tacit.experiments.config import Config, full, parse
from tacit.experiments.progress_bar import Bar
from tacit.experiments.result import Result
from tacit.experiments.run_dir import describe, identity
from tacit.experiments.toml import dumps
from tacit.models.functional import Objective
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.privacy.ledger.statement import statement
from tacit.privacy.plan import Plan
from tacit.report.facts import Facts
from tacit.report.integrity import check_resumable, open_ledger
from tacit.report.metrics import Metrics, frame, score_rows
from tacit.report.run_folder import Folder, existing
from tacit.report.spending import Spending, Spent
from tacit.report.summary import ON_REQUEST, RunSummary
from tacit.rounds.assemble import Assembled, Performance, Privacy, Training, assemble
from tacit.rounds.evaluate import Scores
from tacit.rounds.loop import Outcome, Run, Schedule


@checked
def train(
    federation: Annotated[FederatedDataset, "a FederatedDataset, of tacit.from_clients, from_dataset or load"],
    model: Annotated[nn.Module | Callable[[], nn.Module], "a torch module, or a function that makes one"],
    method: Method,
    privacy: Privacy = Privacy(),
    training: Training = Training(),
    *,
    folder: Path | str | None = None,
    schedule: Schedule = Schedule(),
    performance: Performance | None = None,
    loss: Annotated[Any, "a name, a torch criterion, or a function of outputs and targets"] = None,
    metrics: Sequence[Any] = (),
    resume: bool = False,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
) -> Result:
    """Trains from the model's current parameters until the last round or a spent budget.

    What is charged to a level or a client is in the ledger before anything is computed, and the round that would exceed
    a budget does not happen.

    Args:
        federation: the clients' data.
        model: a torch module; or a class or function that is called for one under `training.seed`, so that its start is
            that of the seed.
        method: how clients and server learn, for example `tacit.Ditto()`.
        privacy: the plan, the levels, and who chose which.
        training: rounds, who is asked, batches, seed.
        folder: the run is kept there and can go on after an interruption. Ctrl-C once ends it after its round, twice at
            once.
        schedule: when to evaluate and to checkpoint.
        performance: how it uses the machine; may be another when it goes on.
        resume: go on with the run in `folder`, to the same result.
        progress: show how it goes on stderr.
        loss: "cross-entropy", "mse", "mae", "huber", "binary-cross-entropy" (yes/no labels), "token-cross-entropy" (a
            label at each position); a torch criterion, whatever its reduction; or a function of outputs and targets
            that gives one number for each example. By default it follows from the targets.
        metrics: names ("accuracy", "f1", "exact-match", "rmse", "mae", "r2", "perplexity", "token-accuracy", "loss"),
            `tacit.Metric`s, or functions; the first is the one that tables show.
        callbacks: look on, and may end it (`tacit.Callback`, `tacit.EarlyStopping`, trackers).

    Returns:
        The models, scores, tables and guarantees. `print(result)` is the summary in words.

    Raises:
        TacitError: a combination whose guarantee would not hold, a folder that holds another run, or a value that does
            not fit.

    >>> import tacit
    >>> data = tacit.load("digits", clients=6, classes_each=2)
    >>> training = tacit.Training(rounds=1, rate=0.5)
    >>> result = tacit.train(data, tacit.models.MLP(64, 10, (4,)), tacit.FedAvg(), training=training, progress=False)
    >>> result.stopped is None
    True
    """
    start, objective = models.start(model, training.seed), Objective(loss, tuple(metrics))
    parts = Parts(federation, start, method, privacy, training, schedule, performance, objective)
    path = None if folder is None else Path(folder)
    key = run_dir.secret(path, resume)
    result = conduct(parts, describe(*parts[:6], key=key, objective=objective), path, resume, progress, key, callbacks)
    if result.interrupted and progress:
        go_on = f"folder={str(folder)!r}, resume=True" if folder is not None else "a folder, to be able to resume it"
        sys.stderr.write(f"{result.findings.standing} To go on, call it again with {go_on}.\n")
    return result


def run_config(
    config: Config, folder: Path, resume: bool = False, progress: bool = True, earlier: Sequence[Charge] = ()
) -> Result:
    """The run of a configuration, in `folder`; `earlier`: as in `conduct`."""
    key, track = run_dir.secret(folder, resume), trackers(config.run.track or ())
    return conduct(build(config), full(config), folder, resume, progress, key, track, earlier)


def conduct(
    parts: Parts,
    content: Mapping[str, Any],
    path: Path | None,
    resume: bool,
    progress: bool,
    key: bytes = b"",
    callbacks: Sequence[Callback] = (),
    earlier: Sequence[Charge] = (),
) -> Result:
    """Everything is checked and calibrated before a folder is made; the configuration is written before a round.

    `key`: the folder's secret, by which what is written of the data is keyed. `earlier`: what the same accounts were
    charged before, by the search that found the configuration; it counts against their budgets.
    """
    if path is None and resume:
        raise TacitError("resume needs the folder of the run: give folder=...")
    if path is not None and resume:
        run_dir.reopen(path, content)
    callbacks = [*callbacks, *Logging.wanted()]
    performance = parts.performance or parts.training.performance
    with ExitStack() as stack:
        stack.enter_context(performance.threading())
        made = assemble(*parts[:5], performance=performance, objective=parts.objective)
        folder = None
        if path is not None:
            folder = run_dir.reopen(path, content) if resume else run_dir.create(path, content, key)
            stack.enter_context(run_dir.alone(folder))
            check_resumable(folder)
        ledger = Ledger.open(":memory:" if folder is None else folder.ledger)
        ledger.check()  # before anything of it is read: rows that were edited may hold anything
        if earlier and not resume:
            ledger.charge(0, earlier, nonce="before the run")
        return _go(parts, made, content, folder, ledger, resume, progress, key, callbacks)


def _go(
    parts: Parts,
    made: Assembled,
    content: Mapping[str, Any],
    folder: Folder | None,
    ledger: Ledger,
    resume: bool,
    progress: bool,
    key: bytes,
    callbacks: Sequence[Callback],
) -> Result:
    uploads, plan, metric = bool(made.shapes.upload), made.engine.plan, made.engine.task.metrics[0]

    def facts_of(now: Plan) -> Facts:
        return Facts.of(str(content.get("name", "run")), parts.method, now, uploads, ledger.level_periods(), metric)

    def promised(now: Plan) -> Facts:
        """What was promised to whom, as it stands; kept in the folder."""
        facts = facts_of(now)
        if folder is not None:
            run_dir.keep_facts(folder, ledger, facts)
        return facts

    facts = Facts.of(str(content.get("name", "run")), parts.method, plan, uploads, metric=metric)
    recorder = Recorder(Metrics(folder and folder.metrics), facts, ledger, not made.engine.devices.alike)

    def spent(now: Plan) -> Mapping[str, Spent]:
        return Spending.read(ledger, facts_of(now)).now

    bar, told = Bar(spent, facts.name, facts.rounds), Callbacks(callbacks, facts.levels, spent)
    watchers = (Promises(plan, promised), recorder, *([bar] if progress else []), told)
    changes, fingerprint = parts.privacy.changes, identity(*parts[:5], key=key, objective=parts.objective)
    run = Run(*made, ledger, parts.schedule, folder and folder.path, fingerprint, watchers, changes)
    if resume:
        run.resume()
        recorder.metrics.rewind(run.progress.round)
    promised(run.engine.plan)
    with attended(callbacks, facts.name, content, folder and folder.path) as end:
        with interruptible() as stop, bar if progress else nullcontext():
            outcome = run.go(lambda: stop() or told.reason)
        result = _result(parts, run, outcome, promised(run.engine.plan), recorder, content, folder)
        end(result)
    return result


def _result(
    parts: Parts,
    run: Run,
    outcome: Outcome,
    facts: Facts,
    recorder: Recorder,
    content: Mapping[str, Any],
    folder: Folder | None,
) -> Result:
    scores = outcome.scores if outcome.scores is not None else run.evaluate()
    done = outcome.progress.round
    interim = not recorder.metrics.has(done)
    if interim and outcome.stopped != ON_REQUEST:  # a spent budget: this is the end
        bound = outcome.progress.public.get("bound")
        recorder.record(done, scores, None if bound is None else float(bound))
        interim = False
    rows = list(recorder.metrics.rows)
    if interim:  # shown, and not written: the resumed run's table is to equal an uninterrupted one's
        rows += score_rows(done, scores, facts.levels)
    clients = client_table(run, scores)
    if folder is not None:
        ended = {"round": done, "stopped": outcome.stopped, "ledger": str(run.ledger.head())}
        write_atomically(folder.outcome, (json.dumps(ended, indent=2) + "\n").encode())
        if not interim:
            write_atomically(folder.clients, clients.to_csv(index=False, lineterminator="\n").encode())
    findings = RunSummary(
        title=facts.name if folder is None else folder.path.name,
        facts=facts,
        metrics=frame(rows),
        clients=clients,
        statement=statement(run.ledger),
        config=dumps(content),
        environment=run_dir.environment(),
        rounds_done=done,
        stopped=outcome.stopped,
        spending=Spending.read(run.ledger, facts),
    )
    return Result(findings, scores, outcome.stopped, folder and folder.path, run, parts)


def reopen_run(path: Path | str) -> tuple[Run, nn.Module]:
    """A run that was started by `tacit run`, where its last checkpoint left it; nothing is trained or charged."""
    folder = existing(path)
    content = folder.content()
    if "digest" in content.get("model", {}):
        raise TacitError(
            f"{path} was trained in Python, and its network is known there alone: call result.save(...) there, or "
            "train(..., folder=..., resume=True) with the same parts"
        )
    if origin := content.get("run", {}).get("origin"):  # of the experiment's file, and of modules beside it
        make_importable(Path(origin))
    if not folder.checkpoint.is_file():
        raise TacitError(f"{path} has no checkpoint.bin, and so no trained model: resume the run, or restore the file")
    with open_ledger(folder.path):  # as the run left it
        pass
    parts, key = build(parse(content)), run_dir.secret(folder.path, resume=True)
    run = Run(
        *assemble(*parts[:5], performance=parts.performance, objective=parts.objective),
        Ledger.open(folder.ledger),
        parts.schedule,
        folder.path,
        identity(*parts[:5], key=key, objective=parts.objective),
        (),
        parts.privacy.changes,
    )
    run.resume()
    return run, parts.model


def client_table(run: Run, scores: Scores) -> Any:
    """The metric of every evaluated client: client, level, shared, personal. Simulation only."""
    import pandas as pd

    names = np.array(run.plan.setting.choices.menu.names, dtype=object)
    ids = np.array(run.engine.federation.ids, dtype=object)
    return pd.DataFrame(
        {
            "client": ids[scores.clients],
            "level": names[scores.level],
            "shared": scores.shared,
            "personal": scores.personal,
        }
    )
