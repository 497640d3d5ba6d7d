"""Which programs of a run were recorded, and why others were not.

They are kept in its checkpoint, so that a resumed run does the same as one that was never stopped, whatever a
comparison would say today.

A decision is about one program and the code that was compared. Where that code has changed (another version of Tacit,
of torch or of the compiled kernels) it is made anew.
"""

import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch

from tacit.compile.kernels import name
from tacit.simulation.chunks import Shape

Key = tuple[Shape, tuple[torch.Size, ...]]
"""Of a recorded program: its chunk, and the shapes of what is broadcast (a method's may change between rounds)."""
Decisions = dict[Key, str]
"""Why each program was refused; "" for those that were accepted."""
_ROOMS: Final = ("compile", "core", "models", "privacy", "simulation")


def saved(decisions: Decisions) -> dict[str, Any]:
    """As a checkpoint holds them."""
    made = {json.dumps([list(shape), [list(size) for size in sizes]]): why for (shape, sizes), why in decisions.items()}
    return {"code": code(), "made": made}


def restored(kept: Mapping[str, Any]) -> Decisions:
    """What a checkpoint holds; nothing where it was decided about other code."""
    if kept.get("code") != code():
        return {}
    return {_key(key): str(why) for key, why in kept["made"].items()}


def _key(text: str) -> Key:
    shape, sizes = json.loads(text)
    return Shape(*shape), tuple(torch.Size(size) for size in sizes)


@cache
def code() -> str:
    """A digest of everything that a recorded program comes of, beside the experiment itself."""
    digest = hashlib.sha256(f"{torch.__version__} {name()}".encode())
    package = Path(__file__).parents[1]
    for file in sorted(file for room in _ROOMS for file in (package / room).rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:32]
