"""Any module as a task: pure functions of the parameters, under `vmap` over clients and under `grad`."""

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import log_softmax
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm

from tacit.core.contract import Task, Tree
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.models.batch_norm import Moments, has_batch_statistics, localised, moments, using

__all__ = ["ModuleTask", "check", "has_batch_statistics", "params", "per_example_cross_entropy", "per_example_loss"]

Loss = Callable[[Tensor, Tensor], Tensor]
Params = Mapping[str, Tensor]
MEAN, VARIANCE = "running_mean", "running_var"


def per_example_cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy; every label counts (torch's own also looks for labels to ignore, which costs as much again)."""
    return -log_softmax(outputs, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def per_example_loss(outputs: Tensor, y: Tensor) -> Tensor:
    """Cross-entropy for classes, half the squared error for real targets."""
    if y.is_floating_point():
        return (outputs.squeeze(-1) - y).square() / 2
    return per_example_cross_entropy(outputs, y)


def params(module: nn.Module) -> Tree:
    """Clones of the trainable parameters, by name; frozen ones stay inside the module and are never shared."""
    return {name: leaf.detach().clone() for name, leaf in module.named_parameters() if leaf.requires_grad}


@dataclass(frozen=True, eq=False)
class ModuleTask:
    """A module and its loss; `loss(outputs, y)` gives one number for each example.

    By default it is cross-entropy, and for real targets half the squared error.

    The module is copied: nothing done here changes the one given. Batch normalisation uses the statistics of the
    batch in training. For prediction they are values: `statistics` measures them on a client's own rows, and with
    them a prediction for one row does not depend on the other rows of its batch. `kernels` is entered around every
    call of the module: a mode that does some of torch's functions faster, and the same numbers up to rounding.
    """

    module: nn.Module
    loss: Loss = per_example_loss
    kernels: Callable[[], AbstractContextManager[object]] = nullcontext
    norms: tuple[str, ...] = field(init=False)  # names of the batch normalisation layers

    def __post_init__(self) -> None:
        object.__setattr__(self, "module", localised(copy.deepcopy(self.module).train()))
        object.__setattr__(self, "norms", tuple(has_batch_statistics(self.module)))

    def on(self, device: torch.device) -> "ModuleTask":
        """The same, with what is not among the parameters it is given (buffers, frozen ones) on a device."""
        moved = ModuleTask(self.module, self.loss, self.kernels)
        moved.module.to(device)
        return moved

    def apply(self, params: Params, x: Tensor) -> Tensor:
        """Outputs for a batch. `params` may hold the leaves of `statistics`; they are then used, for every layer."""
        if not any(_leaf(name, MEAN) in params for name in self.norms):
            return self._call(params, x)
        own = {_leaf(name, kind): params[_leaf(name, kind)] for name in self.norms for kind in (MEAN, VARIANCE)}
        weights = {name: leaf for name, leaf in params.items() if name not in own}
        with using(self.module, lambda name, _: (own[_leaf(name, MEAN)], own[_leaf(name, VARIANCE)])):
            return self._call(weights, x)

    def _call(self, params: Params, x: Tensor) -> Tensor:
        with self.kernels():
            return functional_call(self.module, dict(params), (x,))

    def losses(self, params: Params, x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.apply(params, x), y)

    def statistics(self, params: Params, x: Tensor, mask: Tensor) -> Tree:
        """Mean and variance that each batch normalisation layer meets on the real rows; empty without such layers.

        A layer normalises by the real rows on the way, so that padding changes nothing.
        """
        found: Tree = {}

        def measure(name: str, inputs: Tensor) -> Moments:
            found[_leaf(name, MEAN)], found[_leaf(name, VARIANCE)] = pair = moments(inputs, mask)
            return pair

        if self.norms:
            with using(self.module, measure):
                self._call(params, x)
        return found

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


def check(module: nn.Module, federation: FederatedDataset, loss: Loss = per_example_loss) -> None:
    """Raises a `TacitError` where the module cannot be trained on the federation; runs it on two rows, no more."""
    _layers(module)
    _parameters(module, federation)
    x, y = federation.take(torch.tensor([0, len(federation.x) - 1]))
    task = ModuleTask(module, loss)
    outputs = _run(lambda: task.apply({}, x), module, x)
    expected = (2, federation.classes)
    if tuple(outputs.shape) != expected:
        raise TacitError(
            f"outputs for two rows have shape {tuple(outputs.shape)}, expected {expected}: change the last layer"
        )
    if tuple((got := task.loss(outputs, y)).shape) != (2,):
        raise TacitError(f"the loss of two rows has shape {tuple(got.shape)}, expected (2,): use reduction='none'")
    _pure(task, outputs, x)
    _vectorised(task, x)


def _layers(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise TacitError(f"layer '{name}' is dropout, which draws from a global generator: set p=0 or remove it")
        if isinstance(layer, _InstanceNorm) and layer.track_running_stats:
            raise TacitError(f"layer '{name}' keeps running statistics: set track_running_stats=False")


def _parameters(module: nn.Module, federation: FederatedDataset) -> None:
    for name, leaf in module.named_parameters():
        if not leaf.is_floating_point():
            raise TacitError(f"parameter '{name}' is {leaf.dtype}: parameters must be floating; make it a buffer")
    leaves = params(module)
    if not leaves:
        raise TacitError(f"{type(module).__name__} has no trainable parameters: set requires_grad on some")
    wanted = torch.float32 if federation.x.dtype == torch.uint8 else federation.x.dtype
    for name, leaf in leaves.items():
        if leaf.dtype != wanted:
            raise TacitError(
                f"parameter '{name}' is {leaf.dtype} and inputs are {wanted}: use federation.astype({leaf.dtype})"
            )


def _run(forward: Callable[[], Tensor], module: nn.Module, x: Tensor) -> Tensor:
    try:
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            return forward()
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        reason = str(error).strip().split("\n")[0]
        kind, shape = type(module).__name__, tuple(x.shape)
        raise TacitError(f"{kind} fails on inputs of shape {shape} ({reason}): fit the model to the inputs") from error


def _pure(task: ModuleTask, outputs: Tensor, x: Tensor) -> None:
    again = _run(lambda: task.apply({}, x), task.module, x)
    if not torch.equal(outputs.nan_to_num(), again.nan_to_num()):
        raise TacitError(
            f"{type(task.module).__name__} gives other outputs for the same rows: remove what is random in it"
        )


def _vectorised(task: ModuleTask, x: Tensor) -> None:
    """Two clients at once, as the engine runs them."""
    clients = {name: torch.stack([leaf, leaf]) for name, leaf in params(task.module).items()}
    try:
        _run(lambda: vmap(task.apply)(clients, torch.stack([x, x])), task.module, x)
    except TacitError as error:
        raise TacitError(f"{error} (while running two clients in one call: avoid control flow on values)") from error
