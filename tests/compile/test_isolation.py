"""No pass reaches the boundary: what it sees holds no bound, no clip and no noise, and what it breaks is found."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.utils._pytree import tree_leaves

from tacit.compile import replay as recording
from tacit.compile.ir import trace
from tacit.core import tree
from tacit.errors import TacitError
from tacit.methods import REGISTRY, AdaPeD, Ditto, FedAvg
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import clipped_upload_sum as boundary
from tacit.privacy.mechanisms.stepwise import GUARDED_STEPS, Stepwise
from tacit.rounds.assemble import Privacy
from tacit.rounds.loop import Run
from tacit.simulation.isolation import keeps_clients_apart
from tests.worlds import CENTRAL, DISTRIBUTED, GROUPED, LOCAL, PRIVATE, largest_difference, run

aten = torch.ops.aten
PLANS = {
    "central": CENTRAL,
    "grouped": GROUPED,
    "local": LOCAL,
    "distributed": DISTRIBUTED,
    "stepwise": Privacy(Stepwise(0.5), (PRIVATE,)),
    "stepwise, summed": Privacy(Stepwise(0.5, seen="sum", least=1), (PRIVATE,)),
}
Pass = Callable[[GraphModule], None]


class Seen:
    """The graphs that passes were given, with a pass of one's own after them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, planted: Pass | None = None) -> None:
        self.traced: list[tuple[GraphModule, list[Tensor]]] = []
        simplify = recording.simplify

        def spied(program: Callable[..., Any], *inputs: Any) -> GraphModule:
            graph = trace(program, *inputs)
            self.traced.append((trace(program, *inputs), tree_leaves(inputs)))
            return graph

        def more(graph: GraphModule) -> GraphModule:
            graph = simplify(graph)
            if planted is not None:
                planted(graph)
                graph.graph.lint()
                graph.recompile()
            return graph

        monkeypatch.setattr(recording, "trace", spied)
        monkeypatch.setattr(recording, "simplify", more)


def recorded(method: Any, privacy: Privacy, **options: Any) -> Run:
    steps = {"steps": 4} if isinstance(privacy.plan, Stepwise) else {}
    it = run(method, privacy, rounds=1, chunk=20, rate=1.0, **steps, **options)
    it.engine = replace(it.engine, compile="require", programs={}, decisions={})
    it.go()
    return it


@pytest.mark.parametrize("name", PLANS)
def test_what_passes_see_holds_no_bound_and_no_clip(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is neither given to the program nor made in it, and uploads are not yet clipped where it ends."""
    seen = Seen(monkeypatch)
    bound = 0.4375  # of no other number in the program
    plan = PLANS[name].plan
    privacy = replace(PLANS[name], plan=replace(plan, bound=bound) if isinstance(plan, Stepwise) else plan)
    if not isinstance(plan, Stepwise):
        privacy = replace(privacy, plan=replace(plan, clip=replace(plan.clip, bound=bound)))  # pyright: ignore
    it = recorded(FedAvg(), privacy)
    assert all(it.engine.programs.values())
    ((graph, inputs),) = seen.traced
    limits = {bound, bound * (1 - 1e-5), bound**2}
    numbers = [*inputs, *graph.buffers()]
    assert not any(float(leaf) in limits for each in numbers if each.is_floating_point() for leaf in each.flatten())
    for node in graph.graph.nodes:
        if node.target is GUARDED_STEPS:
            continue  # which is one operation, its bound in it
        assert not any(argument in limits for argument in node.args if isinstance(argument, float)), node
        assert node.target not in (aten.sqrt.default, aten.isfinite.default, aten.linalg_vector_norm.default)


def test_the_boundary_is_no_operation_that_a_graph_could_name() -> None:
    for name in ("clipped_upload_sum", "compiled_sum", "reference_sum", "encoded_sum", "clip", "weighted_sum"):
        assert not hasattr(torch.ops.tacit, name)


def outputs_of(end: Node) -> list[Any]:
    found: Any = end.args[0]
    return list(found)


def scaled(factor: float) -> Pass:
    """A pass that multiplies every upload, after all has been accepted."""

    def plant(graph: GraphModule) -> None:
        end = next(node for node in graph.graph.nodes if node.op == "output")
        first, *others = outputs_of(end)
        with graph.graph.inserting_before(end):
            large = graph.graph.call_function(aten.mul.Tensor, (first, factor))
        end.args = ((large, *others),)

    return plant


@pytest.mark.parametrize("factor", [1.001, 1e6, float("nan")])
def test_whatever_a_pass_makes_of_an_upload_it_keeps_to_its_bound(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if acceptance were fooled: nothing is checked here but the sum."""
    Seen(monkeypatch, scaled(factor))
    monkeypatch.setattr(recording, "accept", lambda *_: None)
    totals: list[Any] = []
    it = run(FedAvg(), CENTRAL, rounds=1, chunk=1, rate=1.0, dtype=torch.float32)
    it.engine = replace(it.engine, compile="require", programs={}, decisions={})
    keep = type(it.engine)._keep
    monkeypatch.setattr(type(it.engine), "_keep", lambda *given: totals.append(given[-1].totals) or keep(*given))
    it.go()
    assert all(it.engine.programs.values())
    assert len(totals) == 20
    norms = [float(tree.norm(tree.each(lambda leaf: leaf.double(), total.body))) for total in totals]
    assert max(norms) <= 0.5
    assert (max(norms) > 0.49) == (factor > 1)


def mixed(graph: GraphModule) -> None:
    """A pass that lets a thousandth of every client's upload into its neighbour's."""
    end = next(node for node in graph.graph.nodes if node.op == "output")
    first, *others = outputs_of(end)
    with graph.graph.inserting_before(end):
        beside = graph.graph.call_function(aten.roll.default, (first, [1], [0]))
        both = graph.graph.call_function(aten.add.Tensor, (first, beside), {"alpha": 1e-3})
    end.args = ((both, *others),)


def test_a_pass_that_mixes_clients_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    Seen(monkeypatch, mixed)
    monkeypatch.setattr(recording, "accept", lambda *_: None)
    with pytest.raises(TacitError, match="what is computed of one client depends on another"):
        recorded(FedAvg(), CENTRAL)


@pytest.mark.parametrize("name", ["fedavg", "ditto", "adaped", "scaffold", "fedem"])
def test_true_programs_keep_clients_apart(name: str) -> None:
    it = recorded(REGISTRY[name](), CENTRAL, dtype=torch.float32)
    assert all(it.engine.programs.values())


def around(graph: GraphModule) -> None:
    """A pass that adds what went into the last guarded step to the upload, beside what came out."""
    end = next(node for node in graph.graph.nodes if node.op == "output")
    guard = [node for node in graph.graph.nodes if node.target is GUARDED_STEPS][-1]
    first, *others = outputs_of(end)
    with graph.graph.inserting_before(end):
        total = graph.graph.call_function(aten.sum.dim_IntList, (guard.args[0], [1]))
        shaped = graph.graph.call_function(aten.view.default, (total, [20, 1, 1]))
        leaked = graph.graph.call_function(aten.add.Tensor, (first, shaped), {"alpha": 1e-9})
    end.args = ((leaked, *others),)


def test_a_pass_that_leads_data_around_a_noisy_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers so small that no comparison with the plain program would see them."""
    Seen(monkeypatch, around)
    monkeypatch.setattr(recording, "accept", lambda *_: None)
    with pytest.raises(TacitError, match="other than by steps with noise"):
        recorded(FedAvg(), PLANS["stepwise"])


@pytest.mark.parametrize("method", [AdaPeD(), Ditto()], ids=["adaped", "ditto"])
def test_noisy_steps_are_recorded_whole_and_give_the_numbers_of_the_plain_program(
    method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, privacy = Seen(monkeypatch), Privacy(Stepwise(0.5, 0.1), (Level("private", epsilon=8.0, delta=1e-3),))
    it = recorded(method, privacy)
    assert all(it.engine.programs.values())
    ((graph, _),) = seen.traced
    guards = [node for node in graph.graph.nodes if node.target is GUARDED_STEPS]
    assert len(guards) == 4 * (1 + isinstance(method, AdaPeD))
    for guard in guards:  # level and key are the client's own, as they were given
        assert guard.args[1].op == guard.args[2].op == "placeholder"
    plain = run(method, privacy, rounds=1, chunk=20, rate=1.0, steps=4)
    plain.go()
    views = [tree.join(each.progress.server.view) for each in (plain, it)]
    assert largest_difference(*views) < 1e-9


def test_a_program_of_one_client_alone_is_apart() -> None:
    it = run(FedAvg(), CENTRAL, rounds=1, chunk=1, rate=1.0)
    view, clients = it.progress.server.view, np.array([3])
    inputs = it.engine.inputs_for({}, clients, 0)
    assert keeps_clients_apart(
        lambda view, public, round, given: it.engine.uploads(it.engine.task, 0, view, public, round, given),
        view,
        {},
        torch.tensor(0),
        inputs,
    )
    assert boundary.stored(torch.ones(1)) == 1
