"""Digests of what a run is made of: which run it is, and whose noise it draws.

Seeded noise is keyed by the identity of its run. Were it keyed by the seed alone, two runs of one seed that differ in
one client, or in epsilon, would draw the same noise, and the difference of their models would show what it hides. The
identity is made of the data itself, so it stays in memory; what is written down is keyed.
Cohorts and batches are drawn by the seed alone: runs that are to be compared ask the same clients.
"""

import hashlib
import math
import numbers
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core.columns import Columns, leaves
from tacit.data.dataset import FederatedDataset
from tacit.models.losses import contents, per_example_cross_entropy, per_example_loss
from tacit.privacy.membership import Change
from tacit.simulation.client_program import ClientProgram

Part = str | Tensor | np.ndarray


def identity(engine: ClientProgram, changes: Sequence[Change] = ()) -> str:
    """Changes with anything that changes the trained models: data, start, method, plan, levels, choices, sampling."""
    setting = engine.plan.setting
    said = (
        engine.method,
        engine.task.module,
        engine.plan.mechanism,
        engine.plan.evaluation and engine.plan.evaluation.plan.mechanism,
        setting.choices.menu,
        setting.sampler,
        setting.batches,
        setting.rounds,
        setting.accountant,
        setting.exact,
        engine.devices,
        tuple(changes),
        engine.seed,
        *([] if engine.task.precision is None else [str(engine.task.precision)]),
    )
    if engine.task.loss not in (per_example_loss, per_example_cross_entropy):  # the same number for the usual loss
        said = (*said, contents(engine.task.loss))
    frozen = {name: leaf for name, leaf in engine.task.module.state_dict().items() if isinstance(leaf, Tensor)}
    start = (part for name, leaf in {**frozen, **engine.start}.items() for part in (name, str(leaf.dtype), leaf))
    return digest([*map(plain, said), *start, setting.choices.level, *data_parts(engine.federation)])


def data_parts(federation: FederatedDataset) -> list[Part]:
    """All that a federation holds."""
    arrays = [
        federation.x,
        federation.y,
        federation.test_x,
        federation.test_y,
        federation.common_x,
        federation.common_y,
    ]
    tensors = [tensor for array in arrays if array is not None for tensor in leaves(array)]
    names = [name for name, *_ in federation.x.described] if isinstance(federation.x, Columns) else []
    offsets = [federation.offsets, federation.test_offsets]
    return [*tensors, *offsets, *federation.ids, *names]


def digest(parts: Iterable[Part], key: bytes = b"", size: int = 16) -> str:
    """Of the parts in their order, `size` bytes in hexadecimal. With a secret `key` nobody else can test a guess."""
    found = hashlib.blake2b(digest_size=size, key=key)
    for part in parts:
        data = part.encode() if isinstance(part, str) else _bytes(part)
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def plain(value: Any) -> str:
    """A setting as text: one for equal settings however they are written, another for others.

    Numbers go by value (1 is 1.0, whoever's number it is), sequences by what they hold, paths by their text. True is
    not 1. Dataclasses go by the fields that they show, anything else by its own text, without places in memory.
    """
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if isinstance(value, numbers.Real):
        return _number(value)
    if isinstance(value, np.ndarray | Tensor):
        return plain(value.tolist())  # all of it: their own texts leave out the middle
    if isinstance(value, tuple | list):
        return f"({', '.join(map(plain, value))})"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{plain(key)}: {plain(each)}' for key, each in value.items())}}}"
    if isinstance(value, str | Path):
        return repr(str(value))
    if (attributes := _attributes(value)) is not None:
        return f"{type(value).__qualname__}({', '.join(f'{name}={plain(each)}' for name, each in attributes.items())})"
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _attributes(value: Any) -> dict[str, Any] | None:
    """What a dataclass shows, or all that an object without a text of its own holds; None: it has a text."""
    if isinstance(value, type):
        return None
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value) if each.repr}
    return vars(value) if type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__") else None


def _number(value: Any) -> str:
    """Whole numbers without a point; -0.0 keeps its sign, and what is no number its name."""
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    number = float(value)
    whole = number.is_integer() and (number != 0 or math.copysign(1, number) > 0)
    return repr(int(number)) if whole else repr(number)


def _bytes(array: Tensor | np.ndarray) -> memoryview:
    flat = array.detach().cpu() if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    return flat.contiguous().reshape(-1).view(torch.uint8).numpy().data
