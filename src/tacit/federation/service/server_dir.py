"""A server's folder of one run: terms, who has which node, checkpoint, ledger, and how it goes."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tacit.core.files import storage, write_atomically
from tacit.errors import StorageError, TacitError
from tacit.experiments.callbacks import Logging, Released, Tracker, trackers
from tacit.federation.protocol.collect import Transport
from tacit.federation.protocol.server import FederationServer
from tacit.federation.protocol.terms import Terms, read_terms
from tacit.federation.service.experiment import experiment_of, server_side
from tacit.federation.service.models import save_shared
from tacit.privacy.ledger.ledger import Ledger
from tacit.report import wording
from tacit.report.facts import Facts
from tacit.rounds.round import Report


@dataclass(frozen=True)
class Settings:
    deadline: float = 60.0
    fresh: bool = True
    sums_in_the_open: bool = False
    track: tuple[str, ...] = ()  # tools that are told what was paid for


@dataclass(frozen=True)
class ServerFolder:
    folder: Path

    def open(self, terms: Terms, nodes: dict[str, int], settings: Settings) -> None:
        """Writes what a run needs; a folder that holds another run is refused."""
        with storage(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if self._path("terms").exists() and self.terms.digest != terms.digest:
            raise TacitError(f"{self.folder} holds a run with other terms: choose a new folder")
        self._write("settings", asdict(settings))
        self._write("nodes", nodes)
        write_atomically(self._path("terms"), terms.text().encode())

    @property
    def terms(self) -> Terms:
        with storage(self.folder):
            return read_terms(self._path("terms").read_text())

    @property
    def nodes(self) -> dict[str, int]:
        return self._read("nodes")

    @property
    def outcome(self) -> dict[str, Any] | None:
        return self._read("outcome") if self._path("outcome").exists() else None

    def ledger(self) -> Ledger:
        return Ledger.open(self.folder / "ledger.sqlite")

    def server(self, transport: Transport, ledger: Ledger) -> FederationServer:
        settings, terms = self._read("settings"), self.terms
        watchers = (self, Released(self._trackers(settings.pop("track", ()))))
        return FederationServer(
            server_side(terms), terms, ledger, transport, self.folder, watchers=watchers, **settings
        )

    def _trackers(self, names: Sequence[str]) -> list[Tracker]:
        named = [tracker for tracker in trackers(names) if isinstance(tracker, Tracker)]
        chosen = [*named, *Logging.wanted()]
        for tracker in chosen:
            tracker.on_start(self.folder.parent.name, {}, self.folder)
        return chosen

    def go(self, transport: Transport) -> None:
        """The run to its end, from wherever it stands. A run that has ended is left alone."""
        if self.outcome is not None:
            return
        try:
            self._go(transport)
        except StorageError:  # another try may find room
            raise
        except TacitError as error:
            self._write("failed", {"error": str(error)})
            raise

    def failed(self) -> str | None:
        """Why the run cannot go on; no other try would help."""
        return self._read("failed")["error"] if self._path("failed").exists() else None

    def try_again(self) -> None:
        self._path("failed").unlink(missing_ok=True)

    def _go(self, transport: Transport) -> None:
        with self.ledger() as ledger:
            server = self.server(transport, ledger)
            engine = server.made.engine
            promised = Facts.of(server.terms.run, engine.method, engine.plan, bool(server.made.shapes.upload))
            self._write("promises", asdict(replace(promised, simulation="")))
            reason = server.go()
            ended = {"round": server.progress.round, "stopped": reason, "rejected": dict(server.rejections)}
            self._write("outcome", ended | {"ledger": str(ledger.head())} | self._hand_out(server, ledger))

    def _hand_out(self, server: FederationServer, ledger: Ledger) -> dict[str, str]:
        """Where the shared model is, for `tacit.load_model`; or why it is not."""
        terms, view = server.terms, server.progress.server.view
        config = experiment_of(terms.experiment, None)
        try:
            return {"model": str(save_shared(self.folder / "model", server.made, config, terms, view, ledger))}
        except StorageError:
            raise
        except TacitError as error:
            return {"no_model": str(error)}

    def after_round(self, report: Report) -> None:
        """A line of `progress.jsonl` for each round, for the server's people: sampling is credited against readers of
        the models who know neither who was asked nor how many."""
        line = {name: getattr(report, name) for name in ("round", "rounds", "turn", "asked", "dropped", "seconds")}
        line |= {"took_part": report.cohort, "refused": dict(report.refused), "rejected": dict(report.rejected)}
        line |= {"figures": None if report.figures is None else report.figures._asdict(), "time": time.time()}
        line |= {"warning": starved(report)}
        with storage(self.folder), open(self.folder / "progress.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def told(self) -> list[dict[str, Any]]:
        path = self.folder / "progress.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def _read(self, name: str) -> Any:
        with storage(self.folder):
            return json.loads(self._path(name).read_text())

    def _write(self, name: str, content: Any) -> None:
        write_atomically(self._path(name), (json.dumps(content, indent=2) + "\n").encode())


def starved(report: Report) -> str | None:
    """Whether the clip left little of updates, by what was released alone: the bounds that paid bits have moved."""
    first = report.plan.release.start().get("bound")
    return None if first is None or report.bound is None else wording.risen(float(first), report.bound)
