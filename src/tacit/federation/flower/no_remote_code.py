"""Flower's client process, except that no code is taken from the server: the installed Tacit answers.

A Flower run brings a bundle of Python files that every node would execute. Here it is neither unpacked nor loaded.

Flower starts a process for every message, and loading torch takes seconds. So a node keeps one process that has
everything loaded and computes nothing (`nursery`); for every message it forks a child, which has the member's session
(`session.py`) answer. The executor (`executor.py`) asks it to, and starts a process of its own only where there is no
nursery.
"""
# pyright: reportMissingImports=false

import json
import os
import signal
import socket
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tacit.errors import TacitError
from tacit.federation.flower import lifeline
from tacit.federation.flower.patch import Patch

_NEEDED = (
    "dp_accounting.pld",
    "dp_accounting.rdp",
    "flwr.supernode.cli.flwr_clientapp",
    "scipy.optimize",
    "scipy.stats",
    "tacit.federation.flower.client_app",
    "torch._dynamo",  # which the first vmap loads
)
_RUNTIME = "flwr.supernode.runtime.run_clientapp"
UNPACKED = Patch(_RUNTIME, "install_from_fab", ("fab_file", "install_dir", "skip_prompt"), "run_clientapp")
LOADED = Patch(_RUNTIME, "get_load_client_app_fn", ("default_app_ref", "app_path", "multi_app"), "run_clientapp")
INSTALLED = Patch(
    _RUNTIME, "install_app_dependencies", ("project_dir", "launch_id", "run_id", "index_context"), "run_clientapp"
)


def main() -> None:
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    take_no_code()
    flwr_clientapp()


def check() -> None:
    """Refuses a Flower in which what is replaced has another name, other arguments, or is not what is called."""
    for patch in (UNPACKED, LOADED, INSTALLED):
        patch.check()


def take_no_code() -> None:
    """In this process no bundle of a server is unpacked, loaded or installed; else it refuses to go on."""
    check()
    UNPACKED.put(_leave_packed)
    LOADED.put(_own_app)
    INSTALLED.put(_install_nothing)


def nursery(door: Path) -> None:
    """Serves until its owner is gone. What it forks is of its own group, and ends with it."""
    from tacit.federation.flower.session import Session, listen, socket_of

    take_no_code()
    _load()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are nobody's to wait for
    folder = door.parent.parent
    session = Session(folder, listen(socket_of(folder)))
    with listen(door) as gate:
        session.ensure(gate)  # a process that Flower starts itself finds the socket above, and would wait for ever
        while True:
            connection, _ = gate.accept()
            session.ensure(gate, connection)
            _fork_for_message(connection, gate, session.listening)


def _fork_for_message(connection: socket.socket, *inherited: socket.socket) -> None:
    from flwr.supernode.cli.flwr_clientapp import flwr_clientapp

    from tacit.federation.flower.session import read_all

    with connection:
        arguments = json.loads(read_all(connection))
        if os.fork():
            return
        lifeline.end_with_owner()
        for each in inherited:
            each.close()
        connection.sendall(b"1")
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    sys.argv = arguments
    code = 1
    try:
        flwr_clientapp()
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


def _install_nothing(*_: Any, **__: Any) -> Any:
    raise TacitError("a server's application asked for packages: nothing is installed on its behalf")


def _own_app(*_: Any, **__: Any) -> Any:
    from tacit.federation.flower.client_app import app

    return lambda *_: _instead[0] if _instead else app


_instead: list[Any] = []


def use(app: Any) -> None:
    """Another application in the place of Tacit's, to try out what a hostile one can do."""
    _instead[:] = [app]


if __name__ == "__main__":
    nursery(Path(sys.argv[1]))
