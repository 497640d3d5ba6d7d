"""Programs are well formed after every pass; a pass that leaves none is named, and its program is not used."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from tacit.compile import pipeline
from tacit.compile.acceptance import Refused
from tacit.compile.ir import trace
from tacit.compile.pipeline import PASSES
from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.methods import Ditto, FedAvg
from tacit.models import MLP, FiveLayerCNN, TwoConvCNN, initialise
from tacit.rounds.assemble import Performance, Training, assemble
from tacit.sampling.cohorts import FixedSize
from tacit.simulation.cohort_program import Broadcast, CohortProgram
from tests.compile import verifier
from tests.compile.trials import record_scaled
from tests.compile.verifier import OPERATORS, Malformed, contract_of, verified, verify
from tests.worlds import CENTRAL

aten, ours = torch.ops.aten, torch.ops.tacit
METHODS = {"FedAvg": FedAvg(), "Ditto": Ditto()}


class World(NamedTuple):
    """The shape of a row, a model, epochs, and how many rows clients have."""

    shape: tuple[int, ...]
    model: Callable[[], nn.Module]
    epochs: int = 1
    sizes: tuple[int, ...] = (3, 8, 6, 8)


WORLDS = {
    "small MLP": World((24,), lambda: MLP(24, 3, (5,))),
    "MLP that meets few rows often": World((64,), lambda: MLP(64, 3, (16,)), 3, (8, 8, 8, 8)),
    "MLP with a large layer": World((8,), lambda: MLP(8, 3, (1024, 256))),
    "CNN": World((16, 16), lambda: FiveLayerCNN(1, 16, 3)),
    "CNN by Winograd's method": World((16, 16), lambda: TwoConvCNN(1, 16, 3, (16, 32, 16))),
}
"""Each takes other passes."""


def clients(of: World) -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)

    def rows(several: int) -> tuple[Tensor, Tensor]:
        return torch.rand(several, *of.shape, generator=draw), torch.randint(3, (several,), generator=draw)

    return from_clients({k: (*rows(n), *rows(1)) for k, n in enumerate(of.sizes)}, classes=3)


def engine(of: World, method: Method, compile: Any = "require") -> CohortProgram:
    training = Training(rounds=1000, sampler=FixedSize(4), batch=3, epochs=of.epochs)
    performance, model = Performance(chunk=4, compile=compile), initialise(of.model(), 0)
    return assemble(clients(of), model, method, CENTRAL, training, performance=performance).engine


def prepared(of: CohortProgram) -> CohortProgram:
    """With its programs recorded, or refused."""
    given = Broadcast(of.method.init(of.start).view, of.plan.release.start(), 0)
    for chunk in of.chunking.split(np.arange(4)):
        of.prepare(given, chunk)
    return of


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("method", METHODS)
def test_programs_are_well_formed_after_every_pass(world: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: Counter[str] = Counter()

    def counted(graph: GraphModule, contract: Any) -> None:
        seen["verified"] += 1
        verify(graph, contract)

    monkeypatch.setattr(verifier, "verify", counted)
    made = prepared(engine(WORLDS[world], METHODS[method]))
    assert all(program is not None for program in made.programs.values())
    assert seen["verified"] == 2 * len(PASSES) * len(made.programs)  # in single precision, and in double


# what a pass may do wrong, and what is then said of it


def output(graph: GraphModule) -> Any:
    return next(node for node in graph.graph.nodes if node.op == "output")


def put_behind_first_output(graph: GraphModule, target: Any, *args: Any, like: Tensor) -> None:
    end = output(graph)
    first, *rest = end.args[0]
    with graph.graph.inserting_before(end):
        node = graph.graph.call_function(target, (first, *args))
    node.meta["val"] = like
    end.args = ((node, *rest),)


def leave_a_dangling_use(graph: GraphModule) -> None:
    """Erases what an output reads; the node that took its place is of no graph."""
    end = output(graph)
    made = end.args[0][0]
    with graph.graph.inserting_before(end):
        stray = graph.graph.node_copy(made)
    stray.meta["val"] = made.meta["val"]
    graph.graph.erase_node(stray)
    end.args = ((stray, *end.args[0][1:]),)


def read_before_it_is_made(graph: GraphModule) -> None:
    made = output(graph).args[0][0]
    next(node for node in graph.graph.nodes if node.op == "placeholder").append(made)


def change_a_results_shape(graph: GraphModule) -> None:
    old = output(graph).args[0][0].meta["val"]
    put_behind_first_output(graph, aten.unsqueeze.default, 0, like=old.unsqueeze(0))


def change_a_results_type(graph: GraphModule) -> None:
    old = output(graph).args[0][0].meta["val"]
    node = output(graph)
    put_behind_first_output(graph, aten._to_copy.default, like=old.to(torch.float16))
    node.args[0][0].kwargs = {"dtype": torch.float16}


def leave_a_result_out(graph: GraphModule) -> None:
    end = output(graph)
    end.args = (end.args[0][:-1],)


def use_an_unknown_operator(graph: GraphModule) -> None:
    put_behind_first_output(graph, torch.nn.functional.relu, like=output(graph).args[0][0].meta["val"])


def say_nothing_of_a_result(graph: GraphModule) -> None:
    del output(graph).args[0][0].meta["val"]


def say_what_is_not_true(graph: GraphModule) -> None:
    """Of a node whose shape follows from its inputs'."""
    made = next(node for node in graph.graph.nodes if node.target is aten.mul.Tensor)
    made.meta["val"] = made.meta["val"].new_empty(7, 7)


def write_to_an_input(graph: GraphModule) -> None:
    made = next(node for node in graph.graph.nodes if node.target is aten.mul.Tensor)
    made.target = aten.mul_.Tensor


def write_over_what_is_read_later(graph: GraphModule) -> None:
    first, second = (node for node in graph.graph.nodes if node.target is aten.mul.Tensor)
    assert second.args[0] is first
    second.target = aten.mul_.Tensor


def multiply_what_does_not_fit(graph: GraphModule) -> None:
    made = next(node for node in graph.graph.nodes if node.target is aten.bmm.default)
    made.args = (made.args[1], made.args[1])


def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    first = x * 2.0
    second = first * 3.0
    return torch.bmm(second, y), first + 1.0, first.sum((1, 2))


X, Y = torch.rand(4, 2, 3), torch.rand(4, 3, 5)
BUGS: dict[Callable[[GraphModule], None], str] = {
    leave_a_dangling_use: "",
    read_before_it_is_made: "",
    change_a_results_shape: "result 0 was",
    change_a_results_type: "result 0 was",
    leave_a_result_out: "gives 2 results, and gave 3",
    use_an_unknown_operator: "operation that programs do not have",
    say_nothing_of_a_result: "does not say",
    say_what_is_not_true: "and says",
    write_to_an_input: "not the program's own",
    write_over_what_is_read_later: "has written over it",
    multiply_what_does_not_fit: "bmm",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_pass_that_leaves_no_program_is_named_and_the_recording_refused(
    bug: Callable[[GraphModule], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "PASSES", verified([(bug.__name__, bug), *PASSES]))
    with pytest.raises(Refused, match=f"the pass {bug.__name__} left no program.*{BUGS[bug]}"):
        record_scaled(program, X, Y)


def test_a_refusal_is_logged_with_the_name_of_the_pass_and_the_plain_program_runs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pipeline, "PASSES", verified([*PASSES, ("careless", change_a_results_shape)]))
    with caplog.at_level(logging.WARNING, "tacit"):
        made = prepared(engine(WORLDS["small MLP"], FedAvg(), compile="auto"))
    assert list(made.programs.values()) == [None] * len(made.programs)
    assert "the pass careless left no program" in caplog.text


def test_a_model_may_bring_operators_of_its_own() -> None:
    with torch.no_grad():
        graph = trace(program, X, Y)
        put_behind_first_output(graph, torch.nn.functional.relu, like=output(graph).args[0][0].meta["val"])
        contract = contract_of(graph)
    assert torch.nn.functional.relu in contract.operators
    with pytest.raises(Malformed, match="operation that programs do not have"):
        verify(graph, contract_of(trace(program, X, Y)))


# going without a pass


@pytest.mark.parametrize("name", [name for name in dict(PASSES) if name != "eliminate_dead_code"])
def test_a_program_without_a_pass_is_well_formed_and_gives_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared with the plain one before it is accepted."""
    monkeypatch.setattr(pipeline, "PASSES", verified(each for each in PASSES if each[0] != name))
    prepared(engine(WORLDS["MLP that meets few rows often"], Ditto()))


def test_every_operator_of_this_room_has_a_line_in_the_manual() -> None:
    """And every pass."""
    manual = (Path(pipeline.__file__).parent / "README.md").read_text()
    assert [name for name, _ in PASSES if f"`{name}`" not in manual] == []
    assert [str(target) for target in OPERATORS if f"`{target._schema.name.partition('::')[2]}" not in manual] == []
