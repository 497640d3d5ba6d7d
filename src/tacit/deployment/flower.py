"""Flower's own processes, as this project starts them: TLS, node keys, telemetry off, the control API on loopback."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tacit.deployment.control import Control
from tacit.deployment.keys import make_certificates, make_secret
from tacit.deployment.own_code import SHIM
from tacit.errors import TacitError

LOOPBACK: Final = "127.0.0.1"
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

from tacit.deployment.client_app import app as client
from tacit.deployment.server_app import app as server

__all__ = ["client", "server"]
'''


def environment(home: Path) -> dict[str, str]:
    """The environment of every Flower process: nothing calls home, settings and bundles lie in our own folder."""
    beside = str(Path(sys.executable).parent)
    path = os.pathsep.join([beside, os.environ.get("PATH", "")])
    return {**os.environ, **_QUIET, "FLWR_HOME": str(home), "PATH": path}


def command(name: str) -> str:
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise TacitError(f"Flower's command '{name}' is not installed: pip install 'tacit-fl[flower]'")
    return found


def start(
    name: str, *arguments: str, home: Path, log: Path, env: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A process in a session of its own, so that it can be ended with all that it started."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        return subprocess.Popen(
            [command(name), *arguments],
            env=env or environment(home),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def end(process: subprocess.Popen[bytes], seconds: float = 10.0, kill: bool = False) -> None:
    """Ends a process and its whole session: asks first, unless told to kill."""
    import signal

    for sign in (() if kill else (signal.SIGTERM,)) + (signal.SIGKILL,):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        if sign == signal.SIGTERM:
            _wait_gone(process, seconds)
    process.wait()


def _wait_gone(process: subprocess.Popen[bytes], seconds: float) -> None:
    until = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.1)


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
        """Keys and certificates on first use; Flower's settings; the application to run."""
        self.home.mkdir(parents=True, exist_ok=True)
        os.chmod(self.folder, 0o700)
        make_certificates(self.folder, list(dict.fromkeys([*hosts, LOOPBACK, "localhost"])))
        make_secret(self.folder / "executor.secret")
        settings = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{self.address}"\n'
        settings += f'root-certificates = "{self.folder.resolve() / "ca.crt"}"\n'
        (self.home / "config.toml").write_text(settings)
        app = self.folder / "app"
        app.mkdir(exist_ok=True)
        (app / "pyproject.toml").write_text(_APP)
        (app / "federation.py").write_text(_MODULE)

    def superlink(self) -> subprocess.Popen[bytes]:
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
        return start(
            "flower-superlink",
            *(str(part) for part in (*tls, *more)),
            *("--enable-supernode-auth", "--disable-runtime-dependency-installation", "--isolation", "process"),
            *("--host", LOOPBACK, "--port", str(self.port)),
            home=self.home,
            log=here / "logs" / "superlink.log",
        )

    def executor(self) -> subprocess.Popen[bytes]:
        here = self.folder
        return start(
            "flower-superexec",
            *("--runtime-api-address", self.address, "--root-certificates", str(here / "ca.crt")),
            *("--superexec-auth-secret-file", str(here / "executor.secret")),
            home=self.home,
            log=here / "logs" / "superexec.log",
        )

    def register(self, public_key: bytes, name: str) -> int:
        """Admits a node by its public key in OpenSSH's form; its number."""
        return self._control.register(public_key, name)

    def unregister(self, node: int) -> None:
        self._control.unregister(node)

    @property
    def _control(self) -> Control:
        return Control(self.address, self.folder / "ca.crt")

    def run(self, folders: Sequence[Path]) -> int:
        """Starts the server application for these runs; the number that Flower gives it."""
        names = "|".join(str(folder.resolve()) for folder in folders)
        config = f'folders="{names}" door="{self.turned_away.resolve()}"'
        told = self._flwr("run", str(self.folder / "app"), "here", "--run-config", config, "--format", "json")
        return int(told["run-id"])

    def ready(self, seconds: float = 300.0) -> None:
        """Returns once the SuperLink listens."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            with suppress(OSError), socket.create_connection((LOOPBACK, self.port), 1.0):
                return
            time.sleep(0.2)
        raise TacitError(f"the SuperLink did not start: see {self.folder / 'logs' / 'superlink.log'}")

    def ended(self, run: int) -> bool:
        """Whether Flower has done with a run, in whatever way."""
        return self._control.status(run) == "finished"

    def _flwr(self, *arguments: str) -> dict:
        done = subprocess.run(
            [command("flwr"), *arguments], env=environment(self.home), capture_output=True, text=True, timeout=120
        )
        begin = done.stdout.find("{")
        try:
            told = json.loads(done.stdout[begin:]) if begin >= 0 else {}
        except ValueError:
            told = {}
        if done.returncode != 0 or not told or told.get("success") is False:
            reason = told.get("error-message") or (done.stdout + done.stderr).strip()[-300:]
            raise TacitError(f"flwr {' '.join(arguments[:2])} failed: {' '.join(str(reason).split())}")
        return told


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

    def nursery(self) -> subprocess.Popen[bytes]:
        """What answers messages; see `own_code.py`."""
        self.flower.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "tacit.deployment.own_code", "nursery", str(self._door)],
                env=environment(self.flower),
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def supernode(self, port: int) -> subprocess.Popen[bytes]:
        env = environment(self.flower)
        env["PATH"] = os.pathsep.join([str(self._shims()), env["PATH"]])
        return start(
            "flower-supernode",
            *("--superlink", self.server, "--root-certificates", str(self.ca)),
            *("--auth-supernode-private-key", str(self.home / "node.key")),
            *("--node-config", f'home="{self.home.resolve()}"', "--host", LOOPBACK, "--port", str(port)),
            home=self.flower,
            log=self.log,
            env=env,
        )

    @property
    def _door(self) -> Path:
        return self.flower.resolve() / "door"

    def _shims(self) -> Path:
        """A folder with our own `flwr-clientapp`, which Flower's executor finds before its own."""
        shims = self.flower / "bin"
        shims.mkdir(parents=True, exist_ok=True)
        shim = shims / "flwr-clientapp"
        shim.write_text(SHIM.format(python=sys.executable, door=str(self._door)))
        shim.chmod(0o700)
        return shims
