"""The processes of a folder: one owner at a time, and a note of what it started, so that orphans are found.

A federation's folder, a server's or a member's, is used by one `tacit serve` or `tacit join`. It holds a lock that the
operating system takes from it when it ends, in whatever way. What it starts ends with it (`lifeline.py`). Should
anything be left all the same, the next owner finds it by number and time of start, and ends it: a number that
another process has since been given is left alone.
"""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tacit.core.files import storage, write_atomically
from tacit.errors import StorageError, TacitError
from tacit.federation.flower import lifeline

Process = subprocess.Popen[bytes]
_LOCK: Final = "lock"
_NOTES: Final = "processes.json"
_log = logging.getLogger("tacit")
_writing = threading.Lock()


@dataclass(frozen=True)
class Started:
    """A process that leads a group of its own. `since` tells it from another of the same number."""

    pid: int
    since: str
    what: str

    @property
    def lives(self) -> bool:
        return started(self.pid) == self.since


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """The folder is this process's alone; orphans of an earlier owner are ended. Refuses if somebody else holds it."""
    lock = _lock(folder)
    try:
        for orphan in end_orphans(folder):
            _log.warning(
                "ended process %d (%s), which an earlier run left behind in %s", orphan.pid, orphan.what, folder
            )
        yield
    finally:
        lock.close()


def _lock(folder: Path) -> Any:
    import fcntl

    with storage(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file = open(folder / _LOCK, "a+", encoding="utf-8")  # noqa: SIM115
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.seek(0)
        holder = file.read().strip() or "another process"
        file.close()
        raise TacitError(f"{folder} is in use by {holder}: end it first, or choose another folder") from None
    file.truncate(0)
    what = " ".join([Path(sys.argv[0]).name, *sys.argv[1:2]])
    file.write(f"process {os.getpid()} ({what}, since {time.strftime('%Y-%m-%d %H:%M:%S')})")
    file.flush()
    return file


def start(module: str, *arguments: str, folder: Path, env: dict[str, str], log: Path, stdin: Any = None) -> Process:
    """Runs a module in a process that ends with this one, leads a group of its own, and is noted in `folder`."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as out:
        process = subprocess.Popen(
            lifeline.command(module, *arguments),
            env=env | lifeline.variables(),
            pass_fds=(lifeline.reading_end(),),
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            start_new_session=True,
        )
    _note(folder, process.pid, " ".join([module.rpartition(".")[2], *arguments[:1]]))
    return process


def end(process: Process, seconds: float = 10.0, kill: bool = False) -> None:
    """Ends a process and its whole group: asks first, unless told to kill."""
    for sign in (() if kill else (signal.SIGTERM,)) + (signal.SIGKILL,):
        try:
            os.killpg(process.pid, sign)
        except ProcessLookupError:
            break
        if sign == signal.SIGTERM:
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
    process.wait()


def end_orphans(folder: Path, seconds: float = 5.0) -> list[Started]:
    """Ends what is noted in the folder and lives; what that was. Only for whoever holds the folder."""
    orphans = [each for each in _noted(folder) if each.lives]
    for orphan in orphans:
        with suppress(ProcessLookupError):
            os.killpg(orphan.pid, signal.SIGKILL)
    until = time.monotonic() + seconds
    while any(orphan.lives for orphan in orphans) and time.monotonic() < until:
        time.sleep(0.05)
    left = [str(orphan.pid) for orphan in orphans if orphan.lives]
    if left:
        raise TacitError(f"{folder} has processes of an earlier run that could not be ended: {', '.join(left)}")
    (folder / _NOTES).unlink(missing_ok=True)
    return orphans


def started(pid: int) -> str | None:
    """When a process was started, as a text that no other process of that number has; None if it does not live."""
    try:
        state, *rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _started_elsewhere(pid)
    except (ProcessLookupError, ValueError):
        return None
    return None if state in "ZX" else f"{boot} {rest[18]}"  # the 22nd field of the file


def _started_elsewhere(pid: int) -> str | None:
    """Where there is no /proc: from `ps`, to the second."""
    fields = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True
    ).stdout.split()
    return None if not fields or fields[0].startswith("Z") else " ".join(fields[1:])


def _note(folder: Path, pid: int, what: str) -> None:
    """On a full disk it goes unnoted: it ends with its owner all the same."""
    since = started(pid)
    if since is None:
        return
    with _writing, suppress(StorageError):
        living = [each for each in _noted(folder) if each.lives]
        rows = [asdict(each) for each in (*living, Started(pid, since, what))]
        write_atomically(folder / _NOTES, (json.dumps(rows, indent=1) + "\n").encode())


def _noted(folder: Path) -> list[Started]:
    try:
        rows = json.loads((folder / _NOTES).read_text())
        return [Started(int(row["pid"]), str(row["since"]), str(row["what"])) for row in rows]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return []
