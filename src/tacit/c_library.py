"""C compiled when it is first needed, with whatever compiler there is, and kept for the next process.

A library is named by its sources, the compiler and the processor's abilities, so that a home that several machines
share has one for each. Set `TACIT_NATIVE=0` to go without; `CC` names a compiler; `TACIT_SANITIZE=1` builds one that
stops at every access out of bounds and all undefined behaviour (`make sanitize`).

Our compilers have nothing to complain of (`-Wall -Wextra`, and `-Werror` in tests and under the sanitizers). A user's
may be newer and know a warning that ours do not: that is no reason to go without kernels, so there it is no error.
"""

import ctypes
import hashlib
import logging
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from torch import Tensor

WARNINGS: Final = ("-Wall", "-Wextra")
_FLAGS: Final = ("-march=native", "-ffp-contract=fast", "-fno-math-errno", "-fPIC", "-shared", *WARNINGS)
_FAST: Final = ("-O3",)
_SANITIZED: Final = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-Werror")
_SECONDS: Final = 600
_log: Final = logging.getLogger("tacit")


def flags() -> tuple[str, ...]:
    return (*_FLAGS, *(_SANITIZED if os.environ.get("TACIT_SANITIZE") == "1" else _FAST))


def load(sources: Sequence[Path], headers: Iterable[Path] = ()) -> ctypes.CDLL | None:
    """The library of these sources, or None, and a line in the log: switched off, no compiler, or one that does not
    understand them."""
    compiler, headers = _compiler(), tuple(headers)
    if os.environ.get("TACIT_NATIVE") == "0":
        _log.info("compiled kernels are switched off (TACIT_NATIVE=0): torch's operations do their work")
        return None
    if compiler is None or sys.platform == "win32":
        _log.warning("no C compiler was found for compiled kernels: torch's operations do their work, more slowly")
        return None
    try:
        return ctypes.CDLL(str(_built(compiler, sources, headers)))
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("kernels could not be compiled (%s): torch's operations do their work, more slowly", _said(error))
        return None


def name(files: Iterable[Path]) -> str:
    """Of the library of these files: equal names are equal kernels."""
    compiler = _compiler()
    return "none" if compiler is None else _name(compiler, files)


def call(library: ctypes.CDLL, function: str, tensors: Sequence[Tensor | None], *numbers: float) -> int:
    """One of the library's functions, on the tensors' memory and these numbers; Python's lock is free meanwhile.

    What it returns, where it returns something.
    """
    pointers = (None if leaf is None else leaf.data_ptr() for leaf in tensors)
    return _function(library, function, len(tensors), tuple(map(type, numbers)))(*pointers, *numbers)


@cache
def _function(library: ctypes.CDLL, name: str, tensors: int, numbers: tuple[type, ...]) -> Callable[..., int]:
    function = getattr(library, name)
    kinds = {int: ctypes.c_long, bool: ctypes.c_long, float: ctypes.c_double}
    function.argtypes = [ctypes.c_void_p] * tensors + [kinds[kind] for kind in numbers]
    function.restype = ctypes.c_long if name in _TELLING else None
    return function


_TELLING: Final = {"each_client"}


def _said(error: Exception) -> str:
    """The first line that names an error, of what a compiler wrote."""
    written = getattr(error, "stderr", None) or b""
    lines = [line.strip() for line in written.decode(errors="replace").splitlines()]
    return next((line for line in lines if "error" in line), str(error).partition("\n")[0])[:200]


def _compiler() -> list[str] | None:
    named = shlex.split(os.environ.get("CC", ""))
    compiler = next((name for name in (named[:1] or ["cc", "gcc", "clang"]) if shutil.which(name)), None)
    return [compiler, *named[1:]] if compiler else None


def _built(compiler: list[str], sources: Sequence[Path], headers: Iterable[Path]) -> Path:
    folder = _folder()
    wanted = folder / f"{_name(compiler, [*sources, *headers])}.so"
    if not wanted.exists():
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / "library.so"
            _run([*compiler, *flags(), "-o", str(made), *map(str, sources), "-lm"])
            made.replace(wanted)  # whole or not at all, whoever else is building it
    return wanted


def _name(compiler: list[str], files: Iterable[Path]) -> str:
    """Of the sources, and of what the compiler knows of itself and of this processor."""
    facts = _run([*compiler, "-march=native", "-dM", "-E", "-x", "c", os.devnull])
    parts = [facts, " ".join(flags()).encode(), *(file.read_bytes() for file in sorted(set(files)))]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]


def _folder() -> Path:
    """Where libraries are kept: the user's own, since whoever writes there runs code here."""
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tacit" / "native"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022 and os.access(folder, os.W_OK):
            return folder
    except (OSError, RuntimeError):  # no home, or one that is not ours
        pass
    return _own_folder()


@cache
def _own_folder() -> Path:
    """For this process alone, and gone with it."""
    _kept.append(tempfile.TemporaryDirectory(prefix="tacit-native-"))
    return Path(_kept[-1].name)


_kept: list[tempfile.TemporaryDirectory[str]] = []


def _run(command: list[str]) -> bytes:
    alone = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}  # a sanitizer is not for compilers
    return subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_SECONDS, env=alone
    ).stdout
