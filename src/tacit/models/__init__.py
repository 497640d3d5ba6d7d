"""Plain torch modules, and what turns any module into a task of the engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isqrt, prod
from typing import Any, TypeVar

import torch
from torch import nn

from tacit.core.checked import checked, shown
from tacit.core.rng import key
from tacit.data.validate import unknown
from tacit.errors import TacitError
from tacit.models.cnn import AlexNet, FiveLayerCNN, TwoConvCNN
from tacit.models.functional import ModuleTask, check, has_batch_statistics, params
from tacit.models.input_transform import Transform, Transformed, transformed
from tacit.models.linear import MLP, SoftmaxRegression

__all__ = [
    "MLP",
    "MODELS",
    "AlexNet",
    "FiveLayerCNN",
    "ModuleTask",
    "SoftmaxRegression",
    "Transform",
    "Transformed",
    "TwoConvCNN",
    "build",
    "check",
    "has_batch_statistics",
    "initialise",
    "params",
    "start",
    "transformed",
]

Module = TypeVar("Module", bound=nn.Module)
Shape = Sequence[int]


def _image(shape: Shape) -> dict[str, Any]:
    """Channels and side of [side, side], [channels, side, side], or a flat square grey image."""
    if len(shape) == 1 and isqrt(shape[0]) ** 2 == shape[0]:
        shape = (1, isqrt(shape[0]), isqrt(shape[0]))
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or shape[1] != shape[2]:
        raise TacitError(f"inputs of shape {tuple(shape)} are not square images: use 'softmax' or 'mlp'")
    return {"channels": shape[0], "side": shape[1]}


MODELS: dict[str, Callable[..., nn.Module]] = {
    "softmax": lambda shape, **options: SoftmaxRegression(prod(shape), **options),
    "mlp": lambda shape, **options: MLP(prod(shape), **options),
    "five-layer-cnn": lambda shape, **options: FiveLayerCNN(**(_image(shape) | options)),
    "two-conv-cnn": lambda shape, **options: TwoConvCNN(**(_image(shape) | options)),
    "alexnet": lambda shape, **options: AlexNet(**(_image(shape) | options)),
}


@checked
def build(
    name: str, input_shape: Shape, classes: int, *, transform: Mapping[str, Any] | None = None, **options: Any
) -> nn.Module:
    """A model of `MODELS` that fits the inputs and classes of a federation; `options` are the model's own.

    `transform`: options of a personal transform in front of it (see `transformed`), none if left out.
    """
    if name not in MODELS:
        raise unknown("model", name, MODELS)
    try:
        model = MODELS[name](tuple(input_shape), classes=classes, **options)
    except TypeError as error:
        raise TacitError(f"the model '{name}' does not take {options}: {error}") from error
    return model if transform is None else transformed(model, input_shape, **transform)


@checked
def initialise(module: Module, seed: int) -> Module:
    """Re-draws the parameters in place from the seed alone and returns the module; no global generator changes.

    Holds for layers with `reset_parameters`, as torch's have; parameters of other layers stay as they are.
    """
    with _seeded(seed):
        for layer in module.modules():
            for name in ("_reset_parameters", "reset_parameters"):  # attention has the first only
                getattr(layer, name, lambda: None)()
    return module


def start(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module as it is; a class or a function is called, and what it draws comes from the seed alone."""
    if isinstance(model, nn.Module):
        return model
    name = getattr(model, "__name__", type(model).__name__)
    try:
        with _seeded(seed):
            module = model()
    except (TypeError, TacitError) as error:
        raise TacitError(f"{name}() makes no model ({error}): give one, or lambda: Net(...)") from error
    if not isinstance(module, nn.Module):
        raise TacitError(f"{name}() gives {shown(module)}: give a model, or a function that returns one")
    return module


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "initialise")[0])
        yield
