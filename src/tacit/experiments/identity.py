"""What makes a run the run it is: a digest of its data, start, method, privacy and training."""

import hashlib
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tacit.core import Method
from tacit.engine.assemble import Privacy, Training
from tacit.engine.loop import Schedule
from tacit.federation.data import Federation


def describe(
    federation: Federation, model: nn.Module, method: Method, privacy: Privacy, training: Training, schedule: Schedule
) -> dict[str, Any]:
    """A run that was put together in Python, as the tables of a configuration. Equal for equal runs only."""
    return {
        "name": federation.name,
        "data": {"name": federation.name, "clients": federation.clients, "digest": data_digest(federation)},
        "model": {"class": type(model).__name__, "digest": model_digest(model)},
        "method": {"value": plain(method)},
        "privacy": {"value": _privacy(privacy)},
        "training": {"value": plain(_result_of(training))},
        "evaluate": {"every": schedule.evaluate_every, "sample": schedule.sample or "all"},
    }


def identity(federation: Federation, model: nn.Module, method: Method, privacy: Privacy, training: Training) -> str:
    """Changes with anything that changes the trained models; not with the size of chunks."""
    parts = [plain(method), _privacy(privacy), plain(_result_of(training))]
    return _digest([data_digest(federation), model_digest(model), *parts])


def _privacy(privacy: Privacy) -> str:
    evaluation = "" if privacy.evaluation is None else plain(privacy.evaluation)
    return plain(privacy) + evaluation + " exactly" * (privacy.noise == "exact")


def _result_of(training: Training) -> Training:
    """Without what leaves the result as it is."""
    return replace(training, chunk=None, engine="local")


def data_digest(federation: Federation) -> str:
    arrays = [
        federation.x,
        federation.y,
        federation.test_x,
        federation.test_y,
        federation.common_x,
        federation.common_y,
    ]
    offsets = [federation.offsets, federation.test_offsets]
    return _digest([*(array for array in arrays if array is not None), *offsets, *federation.ids])


def model_digest(model: nn.Module) -> str:
    named = model.state_dict()
    return _digest([type(model).__name__, *named, *named.values()])


def plain(value: Any) -> str:
    """Its text, without places in memory."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


def _digest(parts: Iterable[str | Tensor | np.ndarray]) -> str:
    found = hashlib.blake2b(digest_size=8)
    for part in parts:
        data = part.encode() if isinstance(part, str) else _bytes(part)
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def _bytes(array: Tensor | np.ndarray) -> memoryview:
    flat = array.detach().cpu() if isinstance(array, Tensor) else torch.from_numpy(np.ascontiguousarray(array))
    return flat.contiguous().reshape(-1).view(torch.uint8).numpy().data
