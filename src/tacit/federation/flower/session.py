"""A member's session: one process that answers all messages, so that what follows from a run's terms is derived once.

The nursery starts it before it takes a message or has computed anything, and again if it has died. The process that
Flower has for a message hands the message over and carries the answer back. Nothing is kept but in memory, and by the
whole text of the terms: there is no file that anybody could have written. Agreement, rows, roster and ledger are read
anew for every message, which is checked and paid for by itself. Messages are answered one after the other.
"""

import os
import signal
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from tacit.federation.flower import lifeline
from tacit.federation.service.client_dir import ClientFolder


def socket_of(folder: Path) -> Path:
    """Where the session of a client's folder listens; for its owner alone."""
    return folder / "flower" / "session"


def listen(path: Path) -> socket.socket:
    """A socket at `path` that no other user can connect to."""
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    finally:
        os.umask(before)
    listening.listen()
    return listening


def read_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65_536), b""))


def answer(folder: Path, message: bytes) -> bytes:
    """A client's answer, by the session if there is one. One that died leaves no answer: this process then gives it,
    and whatever was paid for or answered by then is on disk."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(socket_of(folder)))
        connection.sendall(message)
        connection.shutdown(socket.SHUT_WR)
        if reply := read_all(connection):
            return reply
    return ClientFolder(folder).client().answer(message)


@dataclass
class Session:
    """The process, as the nursery starts it. `listening` stays open in the nursery: nobody is turned away meanwhile."""

    folder: Path
    listening: socket.socket
    pid: int | None = None

    def ensure(self, *inherited: socket.socket) -> None:
        """Starts it unless it runs; `inherited`: what it must not hold open."""
        if self.pid is not None and _lives(self.pid):
            return
        self.pid = os.fork()
        if self.pid == 0:
            try:
                lifeline.end_with_owner()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for each in inherited:
                    each.close()
                serve(self.folder, self.listening)
            finally:
                os._exit(1)


def serve(folder: Path, listening: socket.socket) -> None:
    """Answers whoever connects, until it is ended."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    while True:
        connection, _ = listening.accept()
        with suppress(OSError), connection:  # whoever asked may have died
            message = read_all(connection)
            connection.sendall(ClientFolder(folder).client().answer(message))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
