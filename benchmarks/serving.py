"""A process that answers line by line, so that a driver can take turns between several."""

import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self


class PeerError(RuntimeError):
    """A system could not be set up, or its process ended before its work was done."""


class Worker:
    """One process of a system in serve mode."""

    def __init__(self, command: Sequence[str | Path], environment: dict[str, str]) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process
        self.process = subprocess.Popen(
            command,
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.close()
            self.process.wait(timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.errors.close()

    def last_errors(self, lines: int = 15) -> str:
        self.errors.seek(0)
        return "\n".join(self.errors.read().decode(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def answer(self) -> str:
        """The next line it prints; an error with its last words if it ended instead."""
        line = self.answers.get()
        if line is None:
            time.sleep(0.5)
            raise PeerError(f"a process ended with {self.process.poll()}:\n{self.last_errors()}")
        return line
