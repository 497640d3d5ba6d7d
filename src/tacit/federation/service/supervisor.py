"""Keeps a server's or a member's processes alive, and a run going until it has ended: what dies is started again."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tacit.errors import TacitError
from tacit.federation.flower.processes import LOOPBACK, Link, Node, environment, free_port
from tacit.federation.service.owned_processes import Process, end, hold, start
from tacit.federation.service.server_dir import ServerFolder

_LOOK = 5.0  # seconds between questions to Flower


@dataclass
class Site:
    """The server's processes: SuperLink, its executor, and the door. Use it as a context: the folder is its alone."""

    link: Link
    host: str = LOOPBACK
    port: int = 8443
    most: int = 64 * 2**20
    running: dict[str, Process] = field(default_factory=dict)
    held: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> "Site":
        _check_server()
        self.held.enter_context(hold(self.link.folder))
        try:
            self.link.prepare([self.host] if self.host not in ("0.0.0.0", "::") else [])
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
        self.held.close()

    def revive(self) -> list[str]:
        """Starts again what has died; their names."""
        dead = [name for name, process in self.running.items() if process.poll() is not None]
        for name in dead:
            self._start(name)
        return dead

    def conduct(
        self,
        run_folders: Sequence[ServerFolder],
        seconds: float | None = None,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        """Runs them one after the other until all have ended. If Flower's run dies, another one goes on."""
        began = time.monotonic()
        for run_folder in run_folders:
            run_folder.try_again()
        self.link.stop_runs()
        run, looked = self.link.run([run_folder.folder for run_folder in run_folders]), began
        while any(run_folder.outcome is None for run_folder in run_folders):
            watch()
            self.revive()
            for reason in filter(None, (run_folder.failed() for run_folder in run_folders)):
                raise TacitError(reason)
            now = time.monotonic()
            if seconds is not None and now > began + seconds:
                raise TacitError(f"not done after {seconds:g} s: see {self.link.folder / 'logs'}")
            if now > looked + _LOOK:
                looked = now
                if self._ended(run) and any(run_folder.outcome is None for run_folder in run_folders):
                    run = self.link.run([run_folder.folder for run_folder in run_folders])
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
        env, log = environment(here.home), here.folder / "logs" / "proxy.log"
        return start("tacit.federation.service.gateway", *arguments, folder=here.folder, env=env, log=log)


@dataclass
class Station:
    """A member's processes: SuperNode, its executor, and the nursery. From start to stop the folder is its alone."""

    node: Node
    running: dict[str, Process] = field(default_factory=dict)
    held: ExitStack = field(default_factory=ExitStack)

    def start(self) -> None:
        """Starts what does not run. SuperNode and executor share a port, so they are started together."""
        if not self.running:
            _check_member()
            self.held.enter_context(hold(self.node.home))
            self.node.prepare()
        if not self._lives("nursery"):
            self.running["nursery"] = self.node.nursery()
        if not (self._lives("supernode") and self._lives("executor")):
            for part in ("supernode", "executor"):
                if part in self.running:
                    end(self.running[part], 5.0)
            port = free_port()
            self.running["supernode"] = self.node.supernode(port)
            self.running["executor"] = self.node.executor(port)

    @property
    def whole(self) -> bool:
        return all(self._lives(part) for part in ("nursery", "supernode", "executor"))

    def stop(self, kill: bool = False) -> None:
        """Ends all of it; the SuperNode first, which tells the server."""
        for part in ("supernode", "executor", "nursery"):
            if part in self.running:
                end(self.running.pop(part), 5.0, kill=kill)
        self.held.close()

    def _lives(self, part: str) -> bool:
        return part in self.running and self.running[part].poll() is None


def _check_server() -> None:
    """Refuses to start beside a Flower in which what is replaced has another name."""
    from tacit.federation.flower import control, executor

    control.LOADED.check()
    executor.CHOSEN.check()


def _check_member() -> None:
    from tacit.federation.flower import executor, no_remote_code, transport

    no_remote_code.check()
    executor.CHOSEN.check()
    transport.RECEIVED.check()


def folder_of(root: Path) -> Path:
    return root / "server"
