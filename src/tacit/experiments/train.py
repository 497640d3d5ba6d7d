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
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.experiments import run_dir
from tacit.experiments.build import Parts, build
from tacit.experiments.config import Config, full, parse
from tacit.experiments.fingerprint import describe, identity
from tacit.experiments.observers import Bar, Promises, Recorder, interruptible
from tacit.experiments.result import Result
from tacit.experiments.toml import dumps
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.privacy.ledger.statement import statement
from tacit.privacy.plan import Plan
from tacit.report.facts import Facts
from tacit.report.integrity import check_resumable, open_ledger
from tacit.report.metrics import Metrics, frame, score_rows
from tacit.report.run_folder import Folder, existing
from tacit.report.spending import Spending
from tacit.report.summary import ON_REQUEST, RunSummary
from tacit.rounds.assemble import Assembled, Performance, Privacy, Training, assemble
from tacit.rounds.evaluate import Scores
from tacit.rounds.loop import Outcome, Run, Schedule


@checked
def train(
    federation: FederatedDataset,
    model: Annotated[nn.Module | Callable[[], nn.Module], "a torch module, or a function that makes one"],
    method: Method,
    privacy: Privacy = Privacy(),
    training: Training = Training(),
    *,
    folder: Path | str | None = None,
    schedule: Schedule = Schedule(),
    performance: Performance | None = None,
    resume: bool = False,
    progress: bool = True,
) -> Result:
    """Trains from the model's current parameters until the last round or a spent budget.

    A class or a function is called for the model, under `training.seed`: its start is then that of the seed.

    With a `folder` the run is kept on disk and can go on after an interruption with `resume=True`, to the same result;
    a folder that holds another run is refused. Ctrl-C once ends the run after its round, twice at once.
    `performance` says how it uses the machine, and may be another when it goes on.
    """
    parts = Parts(federation, models.start(model, training.seed), method, privacy, training, schedule, performance)
    path = None if folder is None else Path(folder)
    key = run_dir.secret(path, resume)
    result = conduct(parts, describe(*parts[:6], key=key), path, resume, progress, key)
    if result.interrupted and progress:
        go_on = f"folder={str(folder)!r}, resume=True" if folder is not None else "a folder, to be able to resume it"
        sys.stderr.write(f"{result.findings.standing} To go on, call it again with {go_on}.\n")
    return result


def run_config(
    config: Config, folder: Path, resume: bool = False, progress: bool = True, earlier: Sequence[Charge] = ()
) -> Result:
    """The run of a configuration, in `folder`; `earlier`: as in `conduct`."""
    return conduct(build(config), full(config), folder, resume, progress, run_dir.secret(folder, resume), earlier)


def conduct(
    parts: Parts,
    content: Mapping[str, Any],
    path: Path | None,
    resume: bool,
    progress: bool,
    key: bytes = b"",
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
    performance = parts.performance or parts.training.performance
    with ExitStack() as stack:
        stack.enter_context(performance.threading())
        made = assemble(*parts[:5], performance=performance)
        folder = None
        if path is not None:
            folder = run_dir.reopen(path, content) if resume else run_dir.create(path, content, key)
            stack.enter_context(run_dir.alone(folder))
            check_resumable(folder)
        ledger = Ledger.open(":memory:" if folder is None else folder.ledger)
        ledger.check()  # before anything of it is read: rows that were edited may hold anything
        if earlier and not resume:
            ledger.charge(0, earlier, nonce="before the run")
        return _go(parts, made, content, folder, ledger, resume, progress, key)


def _go(
    parts: Parts,
    made: Assembled,
    content: Mapping[str, Any],
    folder: Folder | None,
    ledger: Ledger,
    resume: bool,
    progress: bool,
    key: bytes,
) -> Result:
    uploads, plan = bool(made.shapes.upload), made.engine.plan

    def facts_of(now: Plan) -> Facts:
        return Facts.of(str(content.get("name", "run")), parts.method, now, uploads, ledger.stays())

    def promised(now: Plan) -> Facts:
        """What was promised to whom, as it stands; kept in the folder."""
        facts = facts_of(now)
        if folder is not None:
            run_dir.keep_facts(folder, ledger, facts)
        return facts

    facts = Facts.of(str(content.get("name", "run")), parts.method, plan, uploads)
    recorder = Recorder(Metrics(folder and folder.metrics), facts, ledger, not made.engine.devices.alike)
    bar = Bar(lambda now: Spending.read(ledger, facts_of(now)).now, facts.name, facts.rounds)
    watchers = (Promises(plan, promised), recorder, *([bar] if progress else []))
    changes, fingerprint = parts.privacy.changes, identity(*parts[:5], key=key)
    run = Run(*made, ledger, parts.schedule, folder and folder.path, fingerprint, watchers, changes)
    if resume:
        run.resume()
        recorder.metrics.rewind(run.progress.round)
    promised(run.engine.plan)
    with interruptible() as stop, bar if progress else nullcontext():
        outcome = run.go(stop)
    return _result(parts, run, outcome, promised(run.engine.plan), recorder, content, folder)


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
        done=done,
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
    if not folder.checkpoint.is_file():
        raise TacitError(f"{path} has no checkpoint.bin, and so no trained model: resume the run, or restore the file")
    with open_ledger(folder.path):  # as the run left it
        pass
    parts, key = build(parse(content)), run_dir.secret(folder.path, resume=True)
    run = Run(
        *assemble(*parts[:5], performance=parts.performance),
        Ledger.open(folder.ledger),
        parts.schedule,
        folder.path,
        identity(*parts[:5], key=key),
        (),
        parts.privacy.changes,
    )
    run.resume()
    return run, parts.model


def client_table(run: Run, scores: Scores) -> Any:
    """Accuracy of every evaluated client: client, level, shared, personal. Simulation only."""
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
