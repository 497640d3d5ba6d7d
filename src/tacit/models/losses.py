"""Losses: one number for each example, by name, as a torch criterion, or as a function of outputs and targets.

A batch's loss is the mean over its examples, and under `Record` each example's own loss is what is differentiated and
clipped. So a loss may not mix examples: what a criterion's reduction does to a batch is done within each example here.
An example with several targets (outputs of a regression, labels, positions of a sequence) has the mean over its own.
"""

import copy
import hashlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, huber_loss, log_softmax

from tacit.core.registry import Registry
from tacit.errors import TacitError

Loss = Callable[[Tensor, Tensor], Tensor]
IGNORE: Final = -100
"""A label that is no label: its position is left out, as torch and Hugging Face do."""


def per_example_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy; every label counts (torch's own also looks for labels to ignore, which costs as much again)."""
    return -log_softmax(outputs, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def per_example_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy for classes, half the squared error for real targets."""
    if y.is_floating_point():
        return mean_of_each((aligned(outputs, y) - y).square() / 2)
    return per_example_cross_entropy(outputs, y)


def squared_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean squared error of an example's targets."""
    return mean_of_each((aligned(outputs, y) - y).square())


def absolute_error(outputs: Tensor, y: Tensor) -> Tensor:
    """The mean absolute error of an example's targets."""
    return mean_of_each((aligned(outputs, y) - y).abs())


def huber(outputs: Tensor, y: Tensor) -> Tensor:
    """Squared near zero, absolute beyond 1 (Huber 1964)."""
    return mean_of_each(huber_loss(aligned(outputs, y), y, reduction="none"))


def binary_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """For yes/no labels, one or several a row, by one output (a logit) each."""
    outputs = aligned(outputs, y)
    return mean_of_each(binary_cross_entropy_with_logits(outputs, y.to(outputs.dtype), reduction="none"))


def token_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """For a label at each position: outputs [rows, ..., classes], labels [rows, ...], of which `IGNORE` do not count.

    The mean over an example's positions; 0 for an example without any.
    """
    real = y != IGNORE
    each = per_example_cross_entropy(outputs, torch.where(real, y, 0))
    return torch.where(real, each, 0.0).flatten(1).sum(1) / real.flatten(1).sum(1).clamp(min=1)


def aligned(outputs: Tensor, y: Tensor) -> Tensor:
    """Outputs [rows, 1] for targets [rows] as [rows]: their difference would else be [rows, rows]."""
    return outputs.squeeze(-1) if outputs.dim() == y.dim() + 1 and outputs.shape[-1] == 1 else outputs


def mean_of_each(values: Tensor) -> Tensor:
    """[rows, ...] to [rows]."""
    return values.flatten(1).mean(1) if values.dim() > 1 else values


LOSSES: Registry[Loss] = Registry(
    "loss",
    "tacit.losses",
    {
        "cross-entropy": per_example_cross_entropy,
        "half-squared-error": per_example_loss,
        "mse": squared_error,
        "mae": absolute_error,
        "huber": huber,
        "binary-cross-entropy": binary_cross_entropy,
        "token-cross-entropy": token_cross_entropy,
    },
)


@dataclass(frozen=True, eq=False)
class Criterion:
    """A torch criterion, whatever its reduction: "sum" adds up an example's own numbers, any other takes their mean."""

    module: nn.Module
    settings: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        module = copy.deepcopy(self.module)
        if any(True for _ in module.parameters()):
            raise TacitError(f"{type(module).__name__} has parameters of its own, which nobody would train: put them "
                             "into the model")  # fmt: skip
        public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
        object.__setattr__(self, "settings", public | dict(module.named_buffers()))
        if hasattr(module, "reduction"):
            vars(module)["reduction"] = "none"
        object.__setattr__(self, "module", module)

    def __call__(self, outputs: Tensor, y: Tensor) -> Tensor:
        outputs = aligned(outputs, y)
        if self._classes and outputs.dim() == y.dim() + 1:
            outputs = outputs.movedim(-1, 1)  # torch has classes second
        elif not self._classes and not y.is_floating_point():
            y = y.to(outputs.dtype)
        return self._reduced(self.module(outputs, y), y)

    @property
    def _classes(self) -> bool:
        return isinstance(self.module, nn.CrossEntropyLoss | nn.NLLLoss | nn.MultiMarginLoss | nn.MultiLabelMarginLoss)

    def _reduced(self, values: Tensor, y: Tensor) -> Tensor:
        if values.dim() < 2:
            return values
        real = torch.ones_like(values, dtype=torch.bool)
        if "ignore_index" in self.settings and y.shape == values.shape:
            real = y != self.settings["ignore_index"]
        total = torch.where(real, values, 0.0).flatten(1).sum(1)
        adds = self.settings.get("reduction") in ("sum", "batchmean")
        return total if adds else total / real.flatten(1).sum(1).clamp(min=1)


def find_loss(loss: str | Loss | nn.Module | type[nn.Module], dtype: torch.dtype = torch.float32) -> Loss:
    """The loss that is meant by a name, an import path, a torch criterion (or its class), or a function.

    >>> find_loss("mse")(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
    tensor([0., 4.])
    """
    meant: Any = LOSSES.find(loss) if isinstance(loss, str) else loss
    if isinstance(meant, type):
        try:
            meant = meant()
        except TypeError as error:
            raise TacitError(f"{meant.__name__}() makes no loss ({error}): give an instance, or a function") from error
    if isinstance(meant, nn.Module):
        return Criterion(meant.to(dtype))
    if callable(meant):
        return cast(Loss, meant)
    raise TacitError(f"the loss is {meant!r}: give a name ({', '.join(LOSSES)}), a torch criterion or a function")


def is_binary(loss: Loss) -> bool:
    """Whether its outputs are logits of yes/no labels."""
    return loss is binary_cross_entropy or (isinstance(loss, Criterion) and isinstance(
        loss.module, nn.BCEWithLogitsLoss | nn.MultiLabelSoftMarginLoss))  # fmt: skip


def name_of(loss: Loss) -> str:
    """In reports."""
    if isinstance(loss, Criterion):
        return type(loss.module).__name__
    known = next((name for name, builtin in LOSSES.builtin.items() if builtin is loss), None)
    return known or getattr(loss, "__name__", type(loss).__name__)


def contents(value: Any) -> Any:
    """What makes a loss the loss it is, for digests: of a function its code, and the values that it was made with."""
    if isinstance(value, Criterion):
        return (type(value.module).__qualname__, value.settings)
    if isinstance(value, partial):
        return (contents(value.func), value.args, value.keywords)
    if not inspect.isfunction(value):
        return value
    cells = [contents(cell.cell_contents) for cell in value.__closure__ or ()]
    return (f"{value.__module__}.{value.__qualname__}", _code(value.__code__), cells, value.__defaults__ or ())


def _code(code: CodeType) -> str:
    constants = [_code(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts]
    return hashlib.blake2b(code.co_code + repr((constants, code.co_names)).encode(), digest_size=8).hexdigest()
