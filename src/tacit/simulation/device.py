"""Where clients compute: on any torch device. Every draw, the server, the store and checkpoints stay on the CPU."""

from contextlib import AbstractContextManager, nullcontext
from typing import Final, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from tacit.errors import TacitError

CPU: Final = torch.device("cpu")
Values = TypeVar("Values")


def device_of(name: str) -> torch.device:
    """The device of that name; a `TacitError` where torch knows none, or it cannot compute here."""
    try:
        device = torch.device(name)
    except RuntimeError:
        raise TacitError(f"device is '{name}', which torch does not know: use 'cpu', 'cuda' or 'cuda:1'") from None
    try:
        float(torch.ones(1, dtype=torch.float64, device=device))  # bounds and noise are reckoned in float64
    except (RuntimeError, AssertionError, TypeError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise TacitError(f"device is '{name}', which cannot compute here ({reason}): use 'cpu'") from None
    return device


def on(device: torch.device, values: Values) -> Values:
    """`values`, however nested, with every tensor on the device."""
    return pytree.tree_map_only(Tensor, lambda leaf: leaf.to(device), values)


def within(device: torch.device) -> AbstractContextManager[object]:
    """Within, a tensor that is made without naming a device is made on this one: methods need not know of devices."""
    return nullcontext() if device == CPU else device
