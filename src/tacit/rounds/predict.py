"""The trained models as plain modules: the shared one, each client's personal one, one for a client that is new."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Final, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import vmap

from tacit.core import tree
from tacit.core.columns import Columns, Rows, leaves
from tacit.core.contract import Method, Shared, Task, Tree
from tacit.data.dataset import as_input, features
from tacit.errors import TacitError
from tacit.models.functional import ModuleTask
from tacit.rounds.loop import Run
from tacit.simulation.chunks import Inputs
from tacit.simulation.client_program import ClientProgram

OWN_ROWS: Final = 256  # training rows that a client's batch statistics are taken from, as in the evaluation


def shared_module(run: Run, model: nn.Module) -> nn.Module:
    """A copy of `model` with the shared parameters, ready to predict."""
    return with_leaves(model, run.progress.server.view.model)


def personal_module(run: Run, model: nn.Module, client: str) -> nn.Module:
    """What the method predicts with for one client, as a module: adapted on its training rows, on nothing else.

    For nearly every method that is a copy of `model`. A method that predicts with several networks at once (FedEM) or
    with none of them (multitask learning) gives a `MethodModule`.
    """
    view, (state, position) = run.progress.server.view, _kept(run, client)
    return module_of(run.engine, view, run.progress.round, state, position, model)


def module_of(
    engine: ClientProgram, view: Shared, round: int, state: Tree, position: int, model: nn.Module
) -> nn.Module:
    """The same for the client at a place, from the last broadcast and the client's own state."""
    adapted, rows = _adapted(engine, view, round, state, position)
    return predictor(engine.method, engine.task, view, adapted, model, rows)


def predictor(method: Method, task: ModuleTask, view: Shared, state: Tree, model: nn.Module, rows: Tensor) -> nn.Module:
    """A method's `predict` as a module. Batch statistics are those of `rows`, the client's own."""
    calls = _Calls(task)
    with torch.no_grad():
        outputs = method.predict(calls, view, state, rows[:2])
    if len(calls.made) != 1 or calls.made[0][1] is not outputs:
        return MethodModule(method, task.with_rows(rows, _all(rows)), view, state).eval()
    leaves = calls.made[0][0]
    with torch.no_grad():
        return with_leaves(model, leaves | task.statistics(leaves, rows, _all(rows)))


def outputs(run: Run, client: str, x: Any) -> Tensor:
    """Outputs of a client's personal model, [rows, classes]; adapted on its training data, never on `x`."""
    engine, view = run.engine, run.progress.server.view
    state, rows = _adapted(engine, view, run.progress.round, *_kept(run, client))
    task = engine.task.with_rows(rows, _all(rows))
    with torch.no_grad():
        return engine.method.predict(task, view, state, rows_like(x, engine.federation.x))


class MethodModule(nn.Module):
    """A method's own way to predict, on fixed values: several networks mixed, or a model of the method's making."""

    def __init__(self, method: Method, task: Task, view: Shared, state: Tree) -> None:
        super().__init__()
        self.method, self.task, self.view, self.state = method, task, view, state

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        values = named or inputs
        x: Any = Columns.of(values) if len(values) > 1 or named else next(iter(inputs))
        return self.method.predict(self.task, self.view, self.state, x)


@dataclass(frozen=True, eq=False)
class _Calls:
    """A task that remembers with which parameters it was called, and what came of it."""

    task: ModuleTask
    made: list[tuple[Tree, Tensor]] = field(default_factory=list)

    def apply(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        outputs = self.task.apply(params, x)
        self.made.append((dict(params), outputs))
        return outputs

    def losses(self, params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.task.loss(self.apply(params, x), y)

    @property
    def loss(self) -> Any:
        return self.task.loss


def with_leaves(model: nn.Module, leaves: Mapping[str, Tensor]) -> nn.Module:
    """A copy of `model` with these parameters in place of its own, ready to predict."""
    module = copy.deepcopy(model)
    module.load_state_dict({name: leaf.detach().clone() for name, leaf in leaves.items()}, strict=False)
    return module.eval()


def _kept(run: Run, client: str) -> tuple[Tree, int]:
    """A client's state, and its place."""
    position = client_position(run, client)
    first = run.engine.method.join(run.progress.server.view, run.engine.start)
    return tree.each(lambda leaf: leaf[0], run.store.read(np.array([position]), first)), position


def _adapted(engine: ClientProgram, view: Shared, round: int, state: Tree, position: int) -> tuple[Tree, Tensor]:
    """A client's state, adapted as its method says, and some of its training rows."""
    batched = tree.each(lambda leaf: leaf.unsqueeze(0), state)
    inputs = engine.inputs_for(batched, np.array([position]), round, "adapt")
    full = inputs.full

    def one(client: Inputs) -> Tree:
        site, _ = engine.site(engine.task, client, round, full)
        return engine.method.adapt(view, client.state, site)

    state = {name: leaf[0] for name, leaf in vmap(one)(inputs).items()}
    held = engine.federation.rows(position)
    rows, _ = engine.federation.take(torch.arange(held.start, min(held.stop, held.start + OWN_ROWS)))
    return state, rows


def _all(rows: Tensor) -> Tensor:
    return torch.ones(len(rows), dtype=torch.bool)


def client_position(run: Run, client: str) -> int:
    """Where a client stands among all; an error names the nearest id."""
    ids, client = run.engine.federation.ids, str(client)  # a number names the client of that text
    if client not in ids:
        near = get_close_matches(client, ids, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"ids are like '{ids[0]}'"
        raise TacitError(f"there is no client '{client}' among the {len(ids):,}: {hint}")
    return ids.index(client)


def rows_like(x: Any, template: Rows, fitted: Rows | None = None) -> Rows:
    """Rows in the form that models were trained on: the same inputs, shapes, types and scale.

    Args:
        x: the rows, as they were given for training.
        template: training rows as they were given; of bytes, that they are images.
        fitted: training rows as the model sees them, where that is other.
    """
    columns: Any = template if isinstance(template, Columns) else None
    templates = leaves(template)
    if columns is not None and isinstance(x, Mapping) and columns.names:
        x = [cast("Mapping[str, Any]", x).get(name) for name in columns.names]
    tensors: list[Any] = [x] if columns is None else [*x.tensors] if isinstance(x, Columns) else [*x]
    if len(tensors) != len(templates) or any(each is None or isinstance(each, str) for each in tensors):
        wanted = f"[rows, {', '.join(map(str, templates[0].shape[1:]))}]" if columns is None else columns
        raise TacitError(
            f"what is to be predicted is not {wanted}: give arrays of these shapes"
        )  # never a training row
    seen = leaves(template if fitted is None else fitted)
    rows = [_one_like(each, *pair) for each, pair in zip(tensors, zip(templates, seen, strict=True), strict=True)]
    seen_as: Any = rows[0] if columns is None else Columns(columns.names, rows)
    return seen_as


def _one_like(x: Any, template: Tensor, seen: Tensor) -> Tensor:
    dtype = seen.dtype if seen.dtype != torch.uint8 else torch.float32
    number = dtype if dtype.is_floating_point else torch.float32
    images = None if template.is_floating_point() else template.dtype == torch.uint8
    rows = features(x, "what is to be predicted", number, images)
    if tuple(rows.shape[1:]) != tuple(template.shape[1:]) or rows.dim() == 0:
        raise TacitError(
            f"rows to predict have shape {tuple(rows.shape)}: give [rows, {', '.join(map(str, template.shape[1:]))}]"
        )
    return as_input(rows).to(dtype)
