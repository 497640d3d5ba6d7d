"""Keeps a server's processes alive, and a run going until it has ended: what dies is started again."""

import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tacit.deployment.flower import LOOPBACK, Link, end, environment
from tacit.deployment.office import Office
from tacit.errors import TacitError

_LOOK = 5.0  # seconds between questions to Flower
Process = subprocess.Popen[bytes]


@dataclass
class Site:
    """The server's processes: SuperLink, its executor, and the door. Use it as a context."""

    link: Link
    host: str = LOOPBACK
    port: int = 8443
    most: int = 64 * 2**20
    running: dict[str, Process] = field(default_factory=dict)

    def __enter__(self) -> "Site":
        self.link.prepare([self.host] if self.host not in ("0.0.0.0", "::") else [])
        try:
            self._start("superlink")
            self.link.ready()
            self._start("superexec")
            self._start("proxy")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(list(self.running.values())):
            end(process, 5.0)

    def revive(self) -> list[str]:
        """Starts again what has died; their names."""
        dead = [name for name, process in self.running.items() if process.poll() is not None]
        for name in dead:
            self._start(name)
        return dead

    def conduct(
        self, offices: Sequence[Office], seconds: float | None = None, watch: Callable[[], None] = lambda: None
    ) -> None:
        """Runs them one after the other until all have ended. If Flower's run dies, another one goes on."""
        began = time.monotonic()
        for office in offices:
            office.try_again()
        run, looked = self.link.run([office.folder for office in offices]), began
        while any(office.outcome is None for office in offices):
            watch()
            self.revive()
            for reason in filter(None, (office.failed() for office in offices)):
                raise TacitError(reason)
            now = time.monotonic()
            if seconds is not None and now > began + seconds:
                raise TacitError(f"not done after {seconds:g} s: see {self.link.folder / 'logs'}")
            if now > looked + _LOOK:
                looked = now
                if self._ended(run) and any(office.outcome is None for office in offices):
                    run = self.link.run([office.folder for office in offices])
            time.sleep(0.5)
        watch()

    def _ended(self, run: int) -> bool:
        try:
            return self.link.ended(run)
        except TacitError:  # the SuperLink is on its way up again
            return False

    def _start(self, name: str) -> None:
        starts = {"superlink": self.link.superlink, "superexec": self.link.executor, "proxy": self._proxy}
        self.running[name] = starts[name]()

    def _proxy(self) -> Process:
        here = self.link
        arguments = [str(here.folder), str(here.port), self.host, str(self.port), str(self.most)]
        with open(here.folder / "logs" / "proxy.log", "ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "tacit.deployment.proxy", *arguments],
                env=environment(here.home),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )


def folder_of(root: Path) -> Path:
    return root / "server"
