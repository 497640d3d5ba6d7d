"""No process outlives its owner, a folder has one owner, and orphans are found."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tacit.errors import TacitError
from tacit.federation.flower import lifeline
from tacit.federation.service import owned_processes

OWNER = """
import os, subprocess, sys, time
from tacit.federation.flower import lifeline
for name in sys.argv[1:]:
    subprocess.Popen(
        lifeline.command("family", name), env=os.environ | lifeline.variables(),
        pass_fds=(lifeline.reading_end(),), start_new_session=True,
    )
time.sleep(60)
"""
FAMILY = """
import os, signal, subprocess, sys, time
from pathlib import Path
from tacit.federation.flower import lifeline

def born(name):
    Path(name).write_text(str(os.getpid()))

match sys.argv[1]:
    case "parent":  # with a child of its own, in a session of its own, and one that it forks
        command = lifeline.command("family", "grandchild")
        subprocess.Popen(command, pass_fds=(lifeline.reading_end(),), start_new_session=True)
        if not os.fork():
            lifeline.end_with_owner()
            born("fork")
    case "stopped":
        born("stopped")
        os.kill(os.getpid(), signal.SIGSTOP)
    case "busy":  # keeps the interpreter's lock
        born("busy")
        sum(range(10**11))
if sys.argv[1] in ("parent", "grandchild"):
    born(sys.argv[1])
time.sleep(60)
"""
BY_THREAD = """
import os, sys, time
from pathlib import Path
from tacit.federation.flower import lifeline

def cannot(line):
    raise OSError("another system")

lifeline._let_kernel_kill = cannot
lifeline.end_with_owner()
Path("thread").write_text(str(os.getpid()))
time.sleep(60)
"""
HERE = Path(owned_processes.__file__).parents[2]  # where the Tacit lies that is tested
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread waits, which cannot end these")


def env(folder: Path, **more: str) -> dict[str, str]:
    """Modules of a folder can be run beside Tacit's."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(HERE)]), **more}


def pid_of(name: Path, seconds: float = 30.0) -> int:
    until = time.monotonic() + seconds
    while not (name.exists() and name.read_text()):
        assert time.monotonic() < until, f"{name.name} was not started"
        time.sleep(0.02)
    return int(name.read_text())


def gone(pids: list[int], seconds: float = 5.0) -> list[int]:
    """Those that live after so many seconds; ended then, so that no test leaves anything behind."""
    until = time.monotonic() + seconds
    while any(owned_processes.started(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.02)
    left = [pid for pid in pids if owned_processes.started(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left


@LINUX
def test_whatever_a_killed_owner_started_is_gone_within_five_seconds(tmp_path: Path) -> None:
    """Children, grandchildren in other sessions, forks, one that is stopped, and one that never lets the lock go."""
    (tmp_path / "owner.py").write_text(OWNER)
    (tmp_path / "family.py").write_text(FAMILY)
    owner = subprocess.Popen([sys.executable, "owner.py", "parent", "stopped", "busy"], cwd=tmp_path, env=env(tmp_path))
    names = ("parent", "grandchild", "fork", "stopped", "busy")
    pids = [pid_of(tmp_path / name) for name in names]
    time.sleep(0.2)
    assert all(owned_processes.started(pid) for pid in pids)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert gone(pids) == []


def test_where_the_kernel_does_not_help_a_thread_ends_the_process(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text(BY_THREAD)
    line, held = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "child.py"], cwd=tmp_path, env=env(tmp_path, TACIT_LIFELINE=str(line)), pass_fds=(line,)
    )
    pid_of(tmp_path / "thread")
    assert child.poll() is None
    os.close(held)
    try:
        assert child.wait(5.0) == 1
    finally:
        child.kill()
        os.close(line)


def test_a_process_whose_owner_is_gone_already_does_not_begin(tmp_path: Path) -> None:
    line, held = os.pipe()
    os.close(held)
    with_line = env(tmp_path, TACIT_LIFELINE=str(line))
    done = subprocess.run(lifeline.command("timeit"), env=with_line, pass_fds=(line,), timeout=30, capture_output=True)
    os.close(line)
    assert done.returncode != 0
    assert done.stdout == b""


def test_a_process_without_an_owner_is_refused(tmp_path: Path) -> None:
    without = {name: value for name, value in env(tmp_path).items() if name != "TACIT_LIFELINE"}
    done = subprocess.run(lifeline.command("timeit"), env=without, timeout=30, capture_output=True, text=True)
    assert done.returncode != 0
    assert "no owner" in done.stderr


def test_a_folder_has_one_owner_at_a_time_and_a_second_is_told_who(tmp_path: Path) -> None:
    said = f"in use by process {os.getpid()} .*end it first"
    with owned_processes.hold(tmp_path), pytest.raises(TacitError, match=said), owned_processes.hold(tmp_path):
        pass
    with owned_processes.hold(tmp_path):  # free again
        pass


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)


def test_orphans_are_ended_at_the_next_start(tmp_path: Path) -> None:
    orphan = sleeper()
    owned_processes._note(tmp_path, orphan.pid, "orphan")
    with owned_processes.hold(tmp_path):
        assert orphan.wait(5.0) == -signal.SIGKILL
    assert not (tmp_path / "processes.json").exists()


def test_a_number_that_another_process_was_given_is_left_alone(tmp_path: Path) -> None:
    other = sleeper()
    since = owned_processes.started(other.pid)
    assert since is not None
    rows = [{"pid": other.pid, "since": f"{since}0", "what": "recycled"}, {"pid": 2**22, "since": "x", "what": "gone"}]
    (tmp_path / "processes.json").write_text(json.dumps(rows))
    assert owned_processes.end_orphans(tmp_path) == []
    assert other.poll() is None
    other.kill()
    other.wait()
    assert owned_processes.started(other.pid) is None


def test_what_is_started_is_noted_and_ends_as_a_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "family.py").write_text(FAMILY)
    monkeypatch.chdir(tmp_path)
    process = owned_processes.start("family", "parent", folder=tmp_path, env=env(tmp_path), log=tmp_path / "log")
    pids = [pid_of(tmp_path / name) for name in ("parent", "fork")]
    noted = json.loads((tmp_path / "processes.json").read_text())
    assert [row["pid"] for row in noted] == [process.pid]
    grandchild = pid_of(tmp_path / "grandchild")
    owned_processes.end(process, kill=True)
    assert gone(pids) == []
    assert gone([grandchild], 0.0) == [grandchild]  # of a session of its own: it ends with the owner
