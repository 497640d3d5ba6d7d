"""Flower's own processes, as this project starts them: TLS, node keys, telemetry off.

A port on loopback is open to every user of the machine. So what listens there asks everybody who they are: the control
API for a secret in the server's folder, the executors' calls for another, the fleet's calls for a node's key.
"""

import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tacit.errors import TacitError
from tacit.federation.flower.control import Control
from tacit.federation.service.owned_processes import Process, end, start
from tacit.federation.service.tls import make_certificates, make_secret

__all__ = ["LOOPBACK", "Link", "Node", "end", "environment", "free_port"]

LOOPBACK: Final = "127.0.0.1"
FLOWER: Final = "tacit.federation.flower.flower_process"
_QUIET: Final = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "OMP_NUM_THREADS": "1"}
_APP: Final = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "tacit-federation"
version = "1.0.0"
dependencies = []

[tool.hatch.build.targets.wheel]
packages = ["."]

[tool.flwr.app]
publisher = "tacit"

[tool.flwr.app.components]
serverapp = "federation:server"
clientapp = "federation:client"

[tool.flwr.app.config]
folders = "."
door = "."
"""
_MODULE: Final = '''"""Loaded by Flower's server process: everything lies in the installed Tacit."""

from tacit.federation.flower.client_app import app as client
from tacit.federation.flower.server_app import app as server

__all__ = ["client", "server"]
'''


def environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process: nothing calls home, settings and bundles lie in our own folder."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    return {**os.environ, **_QUIET, "FLWR_HOME": str(home), "PATH": path}


def free_port() -> int:
    with socket.socket() as one:
        one.bind((LOOPBACK, 0))
        return one.getsockname()[1]


@dataclass(frozen=True)
class Link:
    """The server's side: SuperLink and its executor, on loopback, with a folder for keys, database and logs."""

    folder: Path
    port: int = 8000

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def home(self) -> Path:
        return self.folder / "flower"

    @property
    def turned_away(self) -> Path:
        """Where the door writes down whose messages were too large."""
        return self.folder / "logs" / "turned-away.jsonl"

    def prepare(self, hosts: Sequence[str] = ()) -> None:
        """Keys, secrets and certificates on first use; the application to run."""
        self.home.mkdir(parents=True, exist_ok=True)
        os.chmod(self.folder, 0o700)
        make_certificates(self.folder, list(dict.fromkeys([*hosts, LOOPBACK, "localhost"])))
        make_secret(self.folder / "executor.secret")
        make_secret(self.folder / "control.secret")
        app = self.folder / "app"
        app.mkdir(exist_ok=True)
        (app / "pyproject.toml").write_text(_APP)
        (app / "federation.py").write_text(_MODULE)

    def superlink(self) -> Process:
        here = self.folder
        tls = (
            "--ssl-ca-certfile",
            here / "ca.crt",
            "--ssl-certfile",
            here / "server.pem",
            "--ssl-keyfile",
            here / "server.key",
        )
        more = ("--database", here / "superlink.db", "--superexec-auth-secret-file", here / "executor.secret")
        return self._start(
            *("superlink", str(here / "control.secret")),
            *(str(part) for part in (*tls, *more)),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation", "--isolation", "process"),
            *("--host", LOOPBACK, "--port", str(self.port)),
        )

    def executor(self) -> Process:
        here = self.folder
        return self._start(
            "server-executor",
            *("--runtime-api-address", self.address, "--root-certificates", str(here / "ca.crt")),
            *("--superexec-auth-secret-file", str(here / "executor.secret")),
        )

    def _start(self, kind: str, *arguments: str) -> Process:
        log, env = self.folder / "logs" / f"{kind}.log", environment(self.home)
        return start(FLOWER, kind, *arguments, folder=self.folder, env=env, log=log)

    def register(self, public_key: bytes, name: str) -> int:
        """Admits a node by its public key in OpenSSH's form; its number."""
        return self._control.register(public_key, name)

    def unregister(self, node: int) -> None:
        self._control.unregister(node)

    @property
    def _control(self) -> Control:
        return Control(self.address, self.folder / "ca.crt", self.folder / "control.secret")

    def run(self, folders: Sequence[Path]) -> int:
        """Starts the server application for these runs; the number that Flower gives it."""
        names = "|".join(str(folder.resolve()) for folder in folders)
        return self._control.run(self.folder / "app", {"folders": names, "door": str(self.turned_away.resolve())})

    def stop_runs(self) -> None:
        """Ends what an earlier server left unfinished, so that no two applications conduct one run."""
        self._control.stop_runs()

    def ready(self, seconds: float = 300.0) -> None:
        """Returns once the SuperLink listens, and its control API has been seen to refuse those without the secret."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection((LOOPBACK, self.port), 1.0):
                self._control.check_refusal()
                return
            time.sleep(0.2)
        raise TacitError(f"the SuperLink did not start: see {self.folder / 'logs' / 'superlink.log'}")

    def ended(self, run: int) -> bool:
        """Whether Flower has done with a run, in whatever way."""
        return self._control.status(run) == "finished"


@dataclass(frozen=True)
class Node:
    """A client's side: a SuperNode that runs the Tacit installed beside it, and no code that it is sent."""

    home: Path  # the client's folder
    server: str
    ca: Path

    @property
    def flower(self) -> Path:
        return self.home / "flower"

    @property
    def log(self) -> Path:
        return self.home / "node.log"

    @property
    def door(self) -> Path:
        """The socket at which the nursery is asked to answer a message."""
        return self.flower.resolve() / "door"

    def prepare(self) -> None:
        """A secret and a certificate for what its own processes say to each other, made anew."""
        self._tls.mkdir(parents=True, exist_ok=True)
        os.chmod(self.flower, 0o700)
        for old in ("server.key", "executor.secret"):
            (self._tls / old).unlink(missing_ok=True)
        make_certificates(self._tls, [LOOPBACK])
        make_secret(self._tls / "executor.secret")

    def nursery(self) -> Process:
        """What answers messages; see `no_remote_code.py`."""
        return self._start("tacit.federation.flower.no_remote_code", str(self.door))

    def supernode(self, port: int) -> Process:
        tls = {"--ssl-ca-certfile": "ca.crt", "--ssl-certfile": "server.pem", "--ssl-keyfile": "server.key"}
        return self._start(
            FLOWER,
            "supernode",
            *("--superlink", self.server, "--root-certificates", str(self.ca)),
            *("--auth-supernode-private-key", str(self.home / "node.key")),
            *("--node-config", f'home="{self.home.resolve()}"', "--host", LOOPBACK, "--port", str(port)),
            *(part for option, name in tls.items() for part in (option, str(self._tls / name))),
            *("--isolation", "process", "--superexec-auth-secret-file", str(self._tls / "executor.secret")),
        )

    def executor(self, port: int) -> Process:
        return self._start(
            FLOWER,
            *("client-executor", str(self.door)),
            *("--runtime-api-address", f"{LOOPBACK}:{port}", "--root-certificates", str(self._tls / "ca.crt")),
            *("--superexec-auth-secret-file", str(self._tls / "executor.secret")),
        )

    @property
    def _tls(self) -> Path:
        return self.flower / "tls"

    def _start(self, module: str, *arguments: str) -> Process:
        return start(module, *arguments, folder=self.home, env=environment(self.flower), log=self.log)
