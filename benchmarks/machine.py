"""What the benchmarks say of the machine they ran on; nothing that names it."""

import os
import platform
from pathlib import Path

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count(number: int, what: str) -> str:
    plural = f"{what}es" if what.endswith("s") else f"{what}s"
    return f"{number} {what if number == 1 else plural}"


def machine() -> str:
    """The processor, its cores in use and the memory, in a line."""
    processor = _field("/proc/cpuinfo", "model name") or platform.processor() or platform.machine()
    memory = _field("/proc/meminfo", "MemTotal")
    size = f", {int(memory.split()[0]) / 2**20:.0f} GiB of memory" if memory else ""
    return f"{processor}, {count(CORES, 'core')}{size}, {platform.system()}"


def _field(path: str, name: str) -> str | None:
    file = Path(path)
    if not file.exists():
        return None
    found = (line.split(":", 1)[1].strip() for line in file.read_text().splitlines() if line.startswith(name))
    return next(found, None)
