"""No process outlives its owner: `python -m tacit.federation.flower.lifeline MODULE ARGUMENTS` runs what ends with it.

The owner (`tacit serve`, `tacit join`) holds the writing end of a pipe, and nobody else does. The reading end is handed
to every process that it starts, and by those to theirs. However the owner ends, the operating system closes the pipe,
and every reader ends at once. Under Linux the kernel kills them, even those that are stopped or hold the
interpreter's lock; elsewhere a thread waits for the end of the pipe.

A parent-death signal (`prctl`) would not do: it is tied to the thread that started a process, and says nothing of a
grandparent.
"""

import os
import runpy
import select
import signal
import stat
import sys
import threading
from contextlib import suppress
from typing import Final

_VARIABLE: Final = "TACIT_LIFELINE"
_SET_SIGNAL: Final = 10  # F_SETSIG of Linux, which Python's fcntl has no name for
_own: list[tuple[int, int]] = []


def reading_end() -> int:
    """What a child must inherit: the end that this process was given, or that of a pipe of its own."""
    descriptor = _given()
    if descriptor is not None:
        return descriptor
    if not _own:
        _own.append(os.pipe())  # neither end is inherited unless it is passed on
    return _own[0][0]


def variables() -> dict[str, str]:
    """What a child's environment must hold beside `pass_fds=(reading_end(),)`."""
    return {_VARIABLE: str(reading_end())}


def command(module: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "tacit.federation.flower.lifeline", module, *arguments]


def end_with_owner() -> None:
    """From here on this process ends when its owner does. To be called again after a fork."""
    descriptor = _given()
    if descriptor is None:
        raise SystemExit("this process has no owner: start it with `tacit serve` or `tacit join`")
    try:
        _let_kernel_kill(descriptor)
    except (OSError, AttributeError):
        threading.Thread(target=_wait_and_exit, args=(descriptor,), daemon=True).start()
    if ended(descriptor, 0.0):  # before anything was arranged
        os._exit(1)


def ended(line: int, seconds: float) -> bool:
    """Whether the owner has ended, after so many seconds at most. Nobody ever writes, so to be readable is the end."""
    return bool(select.select([line], [], [], seconds)[0])


def _given() -> int | None:
    """The inherited end, if there is one: a variable that was merely copied has no pipe behind it."""
    with suppress(KeyError, ValueError, OSError):
        line = int(os.environ[_VARIABLE])
        if stat.S_ISFIFO(os.fstat(line).st_mode):
            return line
    return None


def _let_kernel_kill(line: int) -> None:
    """SIGKILL for this process alone, when the last writer closes the pipe.

    The signal belongs to an open file, which a child shares with its parent: so it is opened anew. That file stays open
    for as long as the process lives.
    """
    import fcntl

    duplicate = os.open(f"/proc/self/fd/{line}", os.O_RDONLY | os.O_NONBLOCK)
    fcntl.fcntl(duplicate, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(duplicate, _SET_SIGNAL, signal.SIGKILL)
    fcntl.fcntl(duplicate, fcntl.F_SETFL, os.O_NONBLOCK | os.O_ASYNC)


def _wait_and_exit(line: int) -> None:
    while not ended(line, 3600.0):
        pass
    os._exit(1)


if __name__ == "__main__":
    end_with_owner()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
