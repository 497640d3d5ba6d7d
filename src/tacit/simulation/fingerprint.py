"""Digests of what a run is made of: which run it is, and whose noise it draws.

Seeded noise is keyed by the identity of its run. Were it keyed by the seed alone, two runs of one seed that differ in
one client, or in epsilon, would draw the same noise, and the difference of their models would show what it hides. The
identity is made of the data itself, so it stays in memory; what is written down is keyed.
Cohorts and batches are drawn by the seed alone: runs that are to be compared ask the same clients.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.data.dataset import FederatedDataset
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
    )
    start = (part for name, leaf in engine.start.items() for part in (name, str(leaf.dtype), leaf))
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
    offsets = [federation.offsets, federation.test_offsets]
    return [*(array for array in arrays if array is not None), *offsets, *federation.ids]


def digest(parts: Iterable[Part], key: bytes = b"", size: int = 16) -> str:
    """Of the parts in their order, `size` bytes in hexadecimal. With a secret `key` nobody else can test a guess."""
    found = hashlib.blake2b(digest_size=size, key=key)
    for part in parts:
        data = part.encode() if isinstance(part, str) else _bytes(part)
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def plain(value: Any) -> str:
    """Its text, without places in memory."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _bytes(array: Tensor | np.ndarray) -> memoryview:
    flat = array.detach().cpu() if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    return flat.contiguous().reshape(-1).view(torch.uint8).numpy().data
