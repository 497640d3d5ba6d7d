"""What is measured: which scripts, in which Python, in which settings."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import CORES, count
from benchmarks.serving import PeerError

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
HOMES = HERE / ".peers"


@dataclass(frozen=True, order=True)
class Setting:
    """How many processes share a round, and how many threads each of them may use."""

    workers: int
    threads: int
    unit: str = "thread"  # what a system makes of them: Flower has actors of one thread each

    def __str__(self) -> str:
        return f"{count(self.workers, 'process')} x {count(self.threads, self.unit)}"


@dataclass(frozen=True)
class System:
    """Something that runs rounds: which script, in which Python, in which settings it may be tried."""

    name: str
    title: str
    script: str
    python: Callable[[], Path]
    settings: tuple[Setting, ...]


def this_python() -> Path:
    return Path(sys.executable)


def pfl_python() -> Path:
    return _own_python("pfl", _python_for_pfl)


def flower_python() -> Path:
    return _own_python("flower", lambda: sys.executable)


def opacus_python() -> Path:
    return _own_python("opacus", lambda: sys.executable)


def jax_python() -> Path:
    return _own_python("jax", lambda: sys.executable)


def _own_python(name: str, base: Callable[[], str]) -> Path:
    """The Python that has a peer, in an environment of its own that is made on first use."""
    home = HOMES / name
    python, stamp, requirements = home / "bin" / "python", home / "installed", PEERS / f"requirements-{name}.txt"
    wanted = hashlib.sha256(requirements.read_bytes()).hexdigest()
    if not stamp.exists() or stamp.read_text() != wanted:
        _call([base(), "-m", "venv", "--clear", home])
        _call([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r", requirements])
        stamp.write_text(wanted)
    return python


def _python_for_pfl() -> str:
    if sys.version_info < (3, 13):
        return sys.executable
    for name in ("python3.12", "python3.11", "python3.10"):
        if found := shutil.which(name):
            return found
    raise PeerError("pfl 0.6.0 needs Python 3.10, 3.11 or 3.12, and none was found")


def _call(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        tail = "\n".join(done.stdout.splitlines()[-15:])
        raise PeerError(f"{' '.join(map(str, command))} failed:\n{tail}")


def _settings(shares_rounds: bool) -> tuple[Setting, ...]:
    """One thread and all of them; and one process for each core where a system can share a round out."""
    found = {Setting(1, 1), Setting(1, CORES)}
    if shares_rounds:
        found.add(Setting(CORES, 1))
    return tuple(sorted(found))


SYSTEMS = {
    system.name: system
    for system in (
        System("tacit", "Tacit", "tacit_rounds.py", this_python, (Setting(1, CORES),)),
        System("pfl", "pfl-research", "pfl_rounds.py", pfl_python, _settings(shares_rounds=True)),
        System("loop", "PyTorch loop", "torch_loop.py", this_python, _settings(shares_rounds=False)),
        System("flower", "Flower simulation", "flower_rounds.py", flower_python, (Setting(1, CORES, "actor"),)),
        System("tacit-field", "Tacit", "tacit_field.py", this_python, (Setting(1, CORES),)),
        System("jax", "JAX", "jax_rounds.py", jax_python, (Setting(1, CORES),)),
        System("fedjax", "FedJAX", "fedjax_rounds.py", jax_python, (Setting(1, CORES),)),
    )
}
