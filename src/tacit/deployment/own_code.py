"""Flower's client process, except that no code is taken from the server: the installed Tacit answers.

A Flower run brings a bundle of Python files that every node would execute. Here it is neither unpacked nor loaded.

Flower starts a process for every message, and loading torch takes seconds. So a node keeps one process that has
everything loaded and computes nothing (`nursery`); for every message it forks a child. The command that Flower starts
(`shim`) only passes its arguments on, or, where there is no nursery, becomes the process itself.
"""
# pyright: reportMissingImports=false

import json
import os
import select
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

_NEEDED = (
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "flwr.supernode.cli.flwr_clientapp",
    "scipy.optimize",
    "scipy.stats",
    "tacit.deployment.client_app",
    "torch._dynamo",  # which the first vmap loads
)
SHIM = """#!{python} -IS
import json, os, socket, sys
try:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect({door!r})
        line.sendall(json.dumps(sys.argv).encode())
        line.shutdown(socket.SHUT_WR)
        line.recv(1)
except OSError:
    os.execv({python!r}, [{python!r}, "-m", "tacit.deployment.own_code", *sys.argv[1:]])
"""


def main() -> None:
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp
    from flwr.supernode.runtime import run_clientapp

    setattr(run_clientapp, "install_from_fab", _leave_packed)  # noqa: B010
    setattr(run_clientapp, "get_load_client_app_fn", _own_app)  # noqa: B010
    flwr_clientapp()


def nursery(door: Path) -> None:
    """Serves until its parent is gone."""
    parent = os.getppid()
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are nobody's to wait for
    door.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as gate:
        gate.bind(str(door))
        os.chmod(door, 0o600)
        gate.listen()
        while os.getppid() == parent:
            if select.select([gate], [], [], 1.0)[0]:
                _born(gate)


def _born(gate: socket.socket) -> None:
    line, _ = gate.accept()
    with line:
        arguments = json.loads(b"".join(iter(lambda: line.recv(65_536), b"")))
        if os.fork():
            return
        gate.close()
        line.sendall(b"1")
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = arguments
    code = 1
    try:
        main()
        code = 0
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    finally:
        os._exit(code)


def _load() -> None:
    """All that a message needs, without computing anything: no thread is running when a child is forked."""
    for name in _NEEDED:
        import_module(name)


def _leave_packed(*_: Any, **__: Any) -> None: ...


def _own_app(*_: Any, **__: Any) -> Any:
    from tacit.deployment.client_app import app

    return lambda *_: _instead[0] if _instead else app


_instead: list[Any] = []


def use(app: Any) -> None:
    """Another application in the place of Tacit's, to try out what a hostile one can do."""
    _instead[:] = [app]


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "nursery":
        nursery(Path(sys.argv[2]))
    else:
        main()
