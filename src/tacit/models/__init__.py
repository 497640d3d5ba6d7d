"""Plain torch modules, and what turns any module into a task of the engine."""

import inspect
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isqrt, prod
from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from tacit.core.checked import checked, shown
from tacit.core.registry import Registry
from tacit.core.rng import key
from tacit.errors import TacitError
from tacit.models.functional import ModuleTask, check, has_batch_statistics, params
from tacit.models.input_transform import Transform, Transformed, transformed
from tacit.models.networks import MLP, AlexNet, FiveLayerCNN, SoftmaxRegression, TwoConvCNN
from tacit.models.pretrained import pretrained

__all__ = [
    "FITTED",
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
    "pretrained",
    "seeded",
    "start",
    "transformed",
]

Module = TypeVar("Module", bound=nn.Module)
Shape = Sequence[int]
Shapes = Shape | Sequence[Shape]
"""Of a row, or of each of several inputs."""


def _image(shape: Shape) -> dict[str, Any]:
    """Channels and side of [side, side], [channels, side, side], or a flat square grey image."""
    if len(shape) == 1 and isqrt(shape[0]) ** 2 == shape[0]:
        shape = (1, isqrt(shape[0]), isqrt(shape[0]))
    if len(shape) == 2:
        shape = (1, *shape)
    if len(shape) != 3 or shape[1] != shape[2]:
        raise TacitError(f"inputs of shape {tuple(shape)} are not square images: use 'softmax' or 'mlp'")
    return {"channels": shape[0], "side": shape[1]}


MODELS: Registry[Callable[..., nn.Module]] = Registry(
    "model",
    "tacit.models",
    {
        "softmax": SoftmaxRegression,
        "mlp": MLP,
        "five-layer-cnn": FiveLayerCNN,
        "two-conv-cnn": TwoConvCNN,
        "alexnet": AlexNet,
        "pretrained": pretrained,
    },
)
FITTED = ("inputs", "shape", "channels", "side", "classes", "seed")
"""Parameters of a model that follow from data and experiment. A model has those of them that it needs."""


@checked
def build(
    name: str,
    input_shape: Shapes,
    classes: int,
    *,
    transform: Mapping[str, Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    """A model of `MODELS`, or of an import path, that fits a federation; `options` are the model's own.

    Of the inputs it is told what it has a parameter for: `inputs` (how many numbers a row has), `shape`, or `channels`
    and `side` of a square image; and the `seed`, if it does not draw from torch's generator. `transform`: options of a
    personal transform in front of it (see `transformed`).

    >>> build("mlp", (8, 8), 10, hidden=[3]).inputs
    64
    """
    kind = MODELS.find(name)
    known = inspect.signature(kind).parameters
    fitted = {"shape": tuple(input_shape), "classes": classes, "seed": seed} | _measured(name, input_shape, known)
    try:
        model = kind(**{key: value for key, value in fitted.items() if key in known} | options)
    except TypeError as error:
        raise TacitError(f"the model '{name}' does not take {options}: {error}") from error
    return model if transform is None else transformed(model, _one_input(name, input_shape), **transform)


def _measured(name: str, shape: Shapes, known: Container[str]) -> dict[str, Any]:
    """What a model wants to know of one input: how many numbers, or channels and side."""
    wanted = {"inputs", "channels", "side"} & {each for each in FITTED if each in known}
    if not wanted:
        return {}
    one = _one_input(name, shape)
    return {"inputs": prod(one)} | (_image(one) if "side" in known else {})


def _one_input(name: str, shape: Shapes) -> tuple[int, ...]:
    if (several := [each for each in shape if not isinstance(each, int)]) or not shape:
        raise TacitError(f"rows have {len(several)} inputs, and the model '{name}' takes one: name a model of your own")
    return tuple(each for each in shape if isinstance(each, int))


@checked
def initialise(module: Module, seed: int) -> Module:
    """Re-draws the parameters in place from the seed alone and returns the module; no global generator changes.

    Holds for layers with `reset_parameters`, as torch's have; parameters of other layers stay as they are. So does a
    whole module that has frozen parameters: it was trained before.
    """
    if not all(leaf.requires_grad for leaf in module.parameters()):
        return module
    with seeded(seed):
        for layer in module.modules():
            for name in ("_reset_parameters", "reset_parameters"):  # attention has the first only
                getattr(layer, name, lambda: None)()
    return module


def start(model: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """A module as it is; a class or a function is called, and what it draws comes from the seed alone."""
    if isinstance(model, nn.Module):
        return _with_shapes(model)
    name = getattr(model, "__name__", type(model).__name__)
    try:
        with seeded(seed):
            module = model()
    except (TypeError, TacitError) as error:
        raise TacitError(f"{name}() makes no model ({error}): give one, or lambda: Net(...)") from error
    if not isinstance(module, nn.Module):
        raise TacitError(f"{name}() gives {shown(module)}: give a model, or a function that returns one")
    return _with_shapes(module)


def _with_shapes(module: Module) -> Module:
    """The module, if no layer waits for a first batch to know its shape."""
    for name, leaf in module.named_parameters():
        if is_lazy(leaf):
            raise TacitError(f"parameter '{name}' of a lazy layer has no shape yet: call the model on a batch before")
    return module


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Within, what torch draws comes from the seed alone, and its generator is afterwards as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key(seed, "initialise")[0])
        yield
