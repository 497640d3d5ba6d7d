"""A whole federation on one machine, with everything that a real one has: TLS, node keys, a process for each part."""

import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from tacit.deployment.flower import Link, Node, end
from tacit.deployment.home import Agreement, Home
from tacit.deployment.keys import make_node_key
from tacit.deployment.office import Office
from tacit.engine.flower.own import Rows
from tacit.errors import TacitError


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@dataclass
class Local:
    """Use it as a context: whatever was started is ended."""

    folder: Path
    port: int = field(default_factory=free_port)
    server: str | None = None  # where nodes connect to; the SuperLink itself if not given
    nodes: dict[str, int] = field(default_factory=dict)
    running: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.link = Link(self.folder / "server", self.port)

    def __enter__(self) -> "Local":
        self.link.prepare()
        self.running["superlink"] = self.link.superlink()
        self.link.ready()
        self.running["superexec"] = self.link.executor()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in reversed(list(self.running.values())):
            with suppress(Exception):
                end(process, 5.0)

    def home(self, name: str) -> Home:
        return Home(self.folder / "clients" / name)

    def admit(self, agreement: Agreement, rows: Rows) -> None:
        """A client with its rows, its key and its number."""
        self.home(agreement.name).settle(agreement, rows)
        key = self.folder / "clients" / agreement.name / "node.key"
        self.nodes[agreement.name] = self.link.register(make_node_key(key), agreement.name)

    def start(self, name: str) -> None:
        """Starts the node of a client, or starts it again."""
        node = Node(self.home(name).folder, self.server or self.link.address, self.link.folder / "ca.crt")
        if f"{name} nursery" not in self.running or self.running[f"{name} nursery"].poll() is not None:
            self.running[f"{name} nursery"] = node.nursery()
        self.running[name] = node.supernode(free_port())

    def stop(self, name: str, kill: bool = False) -> None:
        """Ends a node, or kills it with everything that it runs."""
        for part in (name, f"{name} nursery"):
            if (process := self.running.pop(part, None)) is not None:
                end(process, kill=kill)

    def conduct(self, offices: Mapping[str, Office], seconds: float) -> int:
        """Runs them one after the other in one Flower run; its number when they have ended."""
        run, began, looks = self.link.run([office.folder for office in offices.values()]), time.monotonic(), 0
        while any(office.outcome is None for office in offices.values()):
            if time.monotonic() > began + seconds:
                raise TacitError(f"not done after {seconds:g} s: see {self.link.folder / 'logs'}")
            time.sleep(0.5)
            looks += 1
            if looks % 120 == 0 and (status := self.link.status(run)).startswith("finished"):
                raise TacitError(f"Flower's run ended ({status}) before ours did: see {self.link.folder / 'logs'}")
        return run
