"""Any module as a task: pure functions of the parameters, under `vmap` over clients and under `grad`."""

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.core.columns import arguments, each
from tacit.core.columns import leaves as inputs_of
from tacit.core.contract import Task, Tree
from tacit.core.dropout import Draws, Key, drawing, draws
from tacit.data.dataset import WHOLE, FederatedDataset
from tacit.errors import TacitError
from tacit.models.frozen import check_only_trainable_move, copy_around_frozen
from tacit.models.layers import Layers, LowPrecision, Moments, has_batch_statistics, localised, moments, using
from tacit.models.losses import (
    LOSSES,
    Loss,
    binary_cross_entropy,
    find_loss,
    name_of,
    per_example_cross_entropy,
    per_example_loss,
    token_cross_entropy,
)
from tacit.models.metrics import ACCURACY, Kind, Metric, find_metrics, kind_of

__all__ = ["ModuleTask", "Objective", "check", "has_batch_statistics", "params"]

Params = Mapping[str, Tensor]
MEAN, VARIANCE = "running_mean", "running_var"


def params(module: nn.Module) -> Tree:
    """Clones of the trainable parameters, by name; frozen ones stay inside the module and are never shared."""
    return {name: leaf.detach().clone() for name, leaf in module.named_parameters() if leaf.requires_grad}


class Objective(NamedTuple):
    """What is minimised and what is measured, as a user says it; what is left out follows from the targets."""

    loss: Any = None  # see `find_loss`
    metrics: tuple[Any, ...] = ()  # see `find_metrics`; the first is the one that reports show


@dataclass(frozen=True, eq=False)
class ModuleTask:
    """A module and its loss; `loss(outputs, y)` gives one number for each example.

    By default it is cross-entropy, and for real targets half the squared error.

    The module is copied but for its frozen weights: nothing done here changes the one given. Batch normalisation uses
    the statistics of the batch in training. For prediction they are values: `statistics` measures them on a client's
    own rows, and with them a prediction for one row does not depend on the other rows of its batch. `kernels` is
    entered around every call of the module: a mode that does some of torch's functions faster, and the same numbers up
    to rounding.

    `drops`: whether the module has dropout, as `check` finds out. It then drops within `drawing` (in gradients, that
    is) and nowhere else. What is dropped of a row depends on the row's key, never on the other rows of its batch.

    `precision`: what products are computed in, where that is not the parameters' own type (`models/layers.py`).
    """

    module: nn.Module
    loss: Loss = per_example_loss
    kernels: Callable[[], AbstractContextManager[object]] = nullcontext
    drops: bool = False
    kind: Kind = "classes"  # of targets
    metrics: tuple[Metric, ...] = (ACCURACY,)
    precision: torch.dtype | None = None
    norms: tuple[str, ...] = field(init=False)  # names of the batch normalisation layers

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", localised(copy_around_frozen(self.module).train()))
        object.__setattr__(self, "norms", tuple(has_batch_statistics(self.module)))

    def on(self, device: torch.device) -> "ModuleTask":
        """The same, with what is not among the parameters it is given (buffers, frozen ones) on a device."""
        return replace(self, module=copy.deepcopy(self.module).to(device))

    def __deepcopy__(self, memo: dict[int, object]) -> "ModuleTask":
        return replace(self)

    @property
    def tokens(self) -> int:
        """Integers from 0 that all its embeddings know, where inputs have to be made up; 0 if it takes any numbers."""
        tables = (layer for layer in self.module.modules() if isinstance(layer, nn.Embedding | nn.EmbeddingBag))
        return min((table.num_embeddings for table in tables), default=0)

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """Outputs for a batch. `params` may hold the leaves of `statistics`; they are then used, for every layer."""
        if not any(_leaf(name, MEAN) in params for name in self.norms):
            return self._call(params, x)
        statistics = {_leaf(name, kind): params[_leaf(name, kind)] for name in self.norms for kind in (MEAN, VARIANCE)}
        weights = {name: leaf for name, leaf in params.items() if name not in statistics}
        with using(self.module, lambda name, _: (statistics[_leaf(name, MEAN)], statistics[_leaf(name, VARIANCE)])):
            return self._call(weights, x)

    def _call(self, params: Params, x: Tensor) -> Tensor:
        now = draws() if self.drops else None
        if now is None or now.rows == 1 or self.norms:
            return self._run(params, x, now)

        def one(row: Tensor, words: Tensor) -> Tensor:
            return self._run(params, row.unsqueeze(0), now.of_row(words)).squeeze(0)

        return vmap(one)(x, now.key.words)  # by itself, wherever a layer has the batch: as fast as all rows in one

    def _run(self, params: Params, x: Tensor, now: Draws | None) -> Tensor:
        rounded = nullcontext() if self.precision is None else LowPrecision(self.precision)
        with rounded, drawing(now), Layers(), self.kernels():
            return functional_call(self.module, dict(params), *arguments(x))

    def losses(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.apply(params, x), y)

    def statistics(self, params: Params, x: Tensor, mask: Tensor) -> Tree:
        """Mean and variance that each batch normalisation layer meets on the real rows; empty without such layers.

        A layer normalises by the real rows on the way, so that padding changes nothing.
        """
        measured: Tree = {}

        def measure(name: str, inputs: Tensor) -> Moments:
            measured[_leaf(name, MEAN)], measured[_leaf(name, VARIANCE)] = pair = moments(inputs, mask)
            return pair

        if self.norms:
            with using(self.module, measure):
                self._call(params, x)
        return measured

    def with_statistics(self, stats: Params) -> Task:
        """The same task, with these statistics in every `apply`."""
        return _Fixed(self, dict(stats)) if stats else self

    def with_rows(self, x: Tensor, mask: Tensor) -> Task:
        """The same task, where `apply` measures the statistics of its own parameters on these rows first.

        For methods that predict with parameters of their own choosing; as long as a client's training rows are given,
        right for all of them.
        """
        return _Measured(self, x, mask) if self.norms else self


def _leaf(layer: str, kind: str) -> str:
    return f"{layer}.{kind}" if layer else kind


@dataclass(frozen=True, eq=False)
class _Fixed:
    task: ModuleTask
    stats: Tree

    def apply(self, params: Params, x: Tensor) -> Tensor:
        return self.task.apply({**params, **self.stats}, x)

    @property
    def loss(self) -> Loss:
        return self.task.loss

    def losses(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(self.apply(params, x), y)


@dataclass(frozen=True, eq=False)
class _Measured:
    task: ModuleTask
    x: Tensor
    mask: Tensor

    def apply(self, params: Params, x: Tensor) -> Tensor:
        return self.task.apply({**params, **self.task.statistics(params, self.x, self.mask)}, x)

    @property
    def loss(self) -> Loss:
        return self.task.loss

    def losses(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(self.apply(params, x), y)


def check(
    module: nn.Module,
    federation: FederatedDataset,
    objective: Objective = Objective(),
    precision: torch.dtype | None = None,
) -> ModuleTask:
    """The module as a task. Raises a `TacitError` where it cannot be trained; runs it on two rows, no more."""
    _layers(module)
    _parameters(module, federation)
    x, y = federation.take(torch.tensor([0, len(federation.x) - 1]))
    task = ModuleTask(module, precision=precision)
    outputs = _numbers(module, _run(lambda: task.apply({}, x), task.module, x))
    loss = _loss(objective, outputs, y, federation.classes)
    kind = kind_of(y, loss)
    task = replace(task, loss=loss, kind=kind, metrics=find_metrics(objective.metrics, kind, loss))
    _one_number_each(task, outputs, y)
    _pure(task, outputs, x)
    task = replace(task, drops=_drops(task, x))
    _vectorised(task, x, y)
    check_only_trainable_move(task, task.module, params(module), x, y, task.tokens)
    return task


def _numbers(module: nn.Module, outputs: Any) -> Tensor:
    """Outputs that a loss can be taken of."""
    kind = type(module).__name__
    if not isinstance(outputs, Tensor):
        raise TacitError(f"{kind} gives a {type(outputs).__name__}: let its forward return one tensor, [rows, ...]")
    if not outputs.is_floating_point():
        raise TacitError(f"{kind} gives {outputs.dtype}: let its forward return floating-point numbers, such as logits")
    if not bool(outputs.isfinite().all()):
        raise TacitError(f"{kind} gives numbers that are not finite for the first rows: check its start and its layers")
    return outputs


def _loss(objective: Objective, outputs: Tensor, y: Tensor, classes: int) -> Loss:
    """The one that was asked for; else the one that fits the targets."""
    if objective.loss is not None:
        loss = find_loss(objective.loss, outputs.dtype)
        if loss is per_example_cross_entropy and y.dim() > 1:
            raise TacitError("the loss is 'cross-entropy', and rows have several labels: use 'token-cross-entropy'")
    elif y.dtype == torch.bool:
        loss = binary_cross_entropy
    elif y.is_floating_point() or y.dim() == 1:
        loss = per_example_loss
    else:
        loss = token_cross_entropy if outputs.dim() == y.dim() + 1 else binary_cross_entropy
    wanted = _expected(loss, y, classes)
    if wanted and tuple(outputs.shape) not in wanted:
        raise TacitError(
            f"outputs for two rows have shape {tuple(outputs.shape)}, expected {' or '.join(map(str, wanted))}: "
            "change the last layer"
        )
    return loss


def _expected(loss: Loss, y: Tensor, classes: int) -> list[tuple[int, ...]]:
    """Shapes of outputs that one of our own losses takes; none for any other loss."""
    if loss is per_example_cross_entropy or (loss is per_example_loss and not y.is_floating_point()):
        return [(2, classes)]
    if loss is token_cross_entropy:
        return [(*y.shape, classes)]
    if loss not in LOSSES.builtin.values():
        return []
    return [(2, 1), (2,)] if y.dim() == 1 else [tuple(y.shape)]


def _one_number_each(task: ModuleTask, outputs: Tensor, y: Tensor) -> None:
    """Of the loss, and of each metric under `vmap`, as clients are evaluated."""
    name = name_of(task.loss)
    losses = _of_user(lambda: task.loss(outputs, y), f"the loss '{name}'", outputs, y)
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (2,):
        shape = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise TacitError(
            f"the loss '{name}' of two rows has shape {shape}, expected (2,): give one number for each example "
            "(in torch, reduction='none')"
        )
    rows = outputs[None], y[None], torch.ones(1, 2, dtype=torch.bool)
    for metric in task.metrics:
        value = _of_user(partial(vmap(metric), *rows), f"the metric '{metric.name}'", outputs, y)
        if tuple(value.shape) != (1,):
            raise TacitError(
                f"the metric '{metric.name}' of two rows has shape {tuple(value.shape[1:])}: give one number a row"
            )


def _of_user(call: Callable[[], Any], what: str, outputs: Tensor, y: Tensor) -> Any:
    """Of code that a user may have written, anything may come."""
    try:
        return call()
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise TacitError(
            f"{what} fails on outputs of shape {tuple(outputs.shape)} and targets of shape {tuple(y.shape)} "
            f"({reason}): fit it to both"
        ) from error


def fit_inputs(module: nn.Module, federation: FederatedDataset, dtype: torch.dtype) -> FederatedDataset:
    """Integers and truth values as they are if the module takes them so, else as numbers of its type."""
    if all(leaf.dtype not in WHOLE for leaf in inputs_of(federation.x)):
        return federation
    numbers = federation.as_numbers(dtype)
    task = ModuleTask(module)
    return next((each for each in (federation, numbers) if _takes(task, each)), federation)


def _takes(task: ModuleTask, federation: FederatedDataset) -> bool:
    x, _ = federation.take(torch.tensor([0, len(federation.x) - 1]))
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return bool(task.apply({}, x).is_floating_point())
    except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError, AttributeError):
        return False


def _layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise TacitError(f"layer '{name}' keeps running statistics: set track_running_stats=False")
        for option in ("max_norm", "scale_grad_by_freq", "sparse"):
            if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and getattr(layer, option):
                raise TacitError(
                    f"embedding '{name}' has {option}, which is no function of its weights: leave {option} out"
                )


def _parameters(module: nn.Module, federation: FederatedDataset) -> None:
    for name, leaf in module.named_parameters():
        if not leaf.is_floating_point():
            raise TacitError(f"parameter '{name}' is {leaf.dtype}: parameters must be floating; make it a buffer")
    leaves = params(module)
    if not leaves:
        raise TacitError(f"{type(module).__name__} has no trainable parameters: set requires_grad on some")
    numbers = [torch.float32 if x.dtype == torch.uint8 else x.dtype for x in inputs_of(federation.x)]
    wanted = next((dtype for dtype in numbers if dtype not in WHOLE), None)
    for name, leaf in leaves.items():
        if wanted is not None and leaf.dtype != wanted:
            raise TacitError(
                f"parameter '{name}' is {leaf.dtype} and inputs are {wanted}: use federation.astype({leaf.dtype})"
            )


_REMEDIES: Final = (  # of torch's messages, what to do
    (
        r"data-dependent control flow|\.item\(\)|value decides",
        "its control flow depends on values: use torch.where; give Hugging Face's attention_mask four dimensions",
    ),
    (r"dynamic shape|nonzero|masked_select", "its shapes depend on values: use masks and torch.where"),
    (r"random(ness)? (operation|error)", "it draws random numbers: torch's dropout is the only randomness that runs"),
    (r"Batching rule not implemented for (?P<name>[\w:]+)", "{name} runs for one client only: use other operations"),
    (r"is not possible because there exists a Tensor", "it writes into a tensor: make a new one, as torch.cat does"),
    (r"argument #1 'indices'|tensors used as indices", "indices must be integers: call x.long() in forward"),
    (r"index out of range|out of bounds", "an index is beyond the table: raise num_embeddings"),
)


def _run(forward: Callable[[], Tensor], module: nn.Module, x: Tensor, otherwise: str = "") -> Tensor:
    """`otherwise`: what to do about an error that is not in the table."""
    with torch.random.fork_rng(devices=[]), torch.no_grad(), _entered(module) as layers:
        try:
            return forward()
        except (RuntimeError, ValueError, IndexError, TypeError, NotImplementedError) as error:
            kind, shape, reason = type(module).__name__, tuple(x.shape), str(error).strip().split("\n")[0]
            where = f" in layer '{layers[-1]}'" if layers and layers[-1] else ""
            if isinstance(error, TacitError):
                raise TacitError(f"{kind} fails{where}: {error}") from error
            remedy = _remedy(str(error)) or otherwise or "fit the model to the inputs"
            raise TacitError(f"{kind} fails{where} on inputs of shape {shape} ({reason}): {remedy}") from error


def _remedy(message: str) -> str | None:
    matches = ((re.search(pattern, message), remedy) for pattern, remedy in _REMEDIES)
    return next((remedy.format(**match.groupdict()) for match, remedy in matches if match), None)


@contextmanager
def _entered(module: nn.Module) -> Iterator[list[str]]:
    """The names of the layers that have been entered and not left."""
    names: list[str] = []

    def leave(*_: object) -> None:
        names.pop()

    layers = list(module.named_modules())
    hooks = [layer.register_forward_pre_hook(lambda *_, name=name: names.append(name)) for name, layer in layers]
    hooks += [layer.register_forward_hook(leave) for _, layer in layers]
    try:
        yield names
    finally:
        for hook in hooks:
            hook.remove()


def _pure(task: ModuleTask, outputs: Tensor, x: Tensor) -> None:
    buffers = {name: leaf.clone() for name, leaf in task.module.named_buffers()}
    again = _run(lambda: task.apply({}, x), task.module, x)
    if not torch.equal(outputs.nan_to_num(), again.nan_to_num()):
        kind, now = type(task.module).__name__, dict(task.module.named_buffers())
        changed = [name for name in buffers if not torch.equal(buffers[name], now[name])]
        raise TacitError(
            f"{kind} gives other outputs for the same rows: "
            + (f"forward writes to buffer '{changed[0]}'; make it a parameter, or keep it fixed" if changed else
               "remove what is random in it (torch's dropout may stay)")
        )  # fmt: skip


def _drops(task: ModuleTask, x: Tensor) -> bool:
    now = Draws(Key(torch.zeros(1, 3, dtype=torch.int64)))
    _run(lambda: task._run({}, x[:1], now), task.module, x)
    return bool(now.calls)


def _vectorised(task: ModuleTask, x: Tensor, y: Tensor) -> None:
    """Two clients at once, as the engine trains them."""
    clients = {name: torch.stack([leaf, leaf]) for name, leaf in params(task.module).items()}
    key = Key(torch.zeros(2, 3, dtype=torch.int64))

    def gradient(params: Params, x: Tensor) -> Tensor:
        with drawing(key):
            slopes = grad(lambda leaves: task.losses(leaves, x, y).sum())(dict(params))
        return torch.cat([leaf.flatten() for leaf in slopes.values()])

    batch = each(lambda leaf: torch.stack([leaf, leaf]), x)
    _run(
        lambda: vmap(gradient)(clients, batch),
        task.module,
        x,
        "it runs for one client and not for several in one call",
    )
