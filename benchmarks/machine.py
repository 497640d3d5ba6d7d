"""What the benchmarks say of the machine they ran on; nothing that names it."""

import os
import platform
import time
from pathlib import Path

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
_STAT, _MOMENT = Path("/proc/stat"), 0.2


def count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def processor() -> str:
    """Its name, with its family and model where the system tells them: names alone may be of several kinds."""
    name = _name()
    kind = [value for field in ("cpu family", "model\t") if (value := _field("/proc/cpuinfo", field))]
    return f"{name}, kind {'.'.join(kind)}" if kind else name


def _name() -> str:
    return _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()


def machine() -> str:
    """The processor, its cores in use and the memory, in a line."""
    memory = _field("/proc/meminfo", "MemTotal")
    size = f", {int(memory.split()[0]) / 2**20:.0f} GiB of memory" if memory else ""
    return f"{_name()}, {count(CORES, 'core')}{size}, {platform.system()}"


def _field(path: str, name: str) -> str | None:
    file = Path(path)
    if not file.exists():
        return None
    found = (line.split(":", 1)[1].strip() for line in file.read_text().splitlines() if line.startswith(name))
    return next(found, None)


def wait_until_idle(share: float = 0.05, most: float = 20.0) -> None:
    """Returns when all cores together did next to nothing for a moment, or after `most` seconds.

    What a system leaves behind after its round (Ray clears up for seconds) must not weigh on whoever comes next.
    Without /proc, a moment is all there is.
    """
    ends = time.monotonic() + most
    busy = 1.0
    while busy > share and time.monotonic() < ends:
        before = _ticks()
        time.sleep(_MOMENT)
        spent, idle = (b - a for a, b in zip(before, _ticks(), strict=True))
        busy = 1 - idle / spent if spent else 0.0


def _ticks() -> tuple[int, int]:
    """Of all cores since the start: in all, and idle."""
    if not _STAT.exists():
        return 0, 0
    counts = [int(word) for word in _STAT.read_text().split("\n", 1)[0].split()[1:]]
    return sum(counts), counts[3] + counts[4]
