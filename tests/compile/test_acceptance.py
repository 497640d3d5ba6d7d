"""A recorded program is accepted if it gives every client what the plain one gives, on clients that do not exist."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from tacit.compile import acceptance
from tacit.compile import replay as recording
from tacit.compile.acceptance import Refused, Trial
from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.methods import AdaPeD, Ditto, FedAvg, KeepLocal, LocalOnly, ServerAdam
from tacit.models import MLP, initialise
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Performance, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import FixedSize
from tacit.simulation import decisions, rehearsal
from tacit.simulation.chunks import Compile
from tacit.simulation.cohort_program import Broadcast, CohortProgram
from tacit.simulation.rehearsal import recorded
from tests.worlds import CENTRAL, RECORD, largest_difference, states

aten = torch.ops.aten
Pass = Callable[[GraphModule], None]
SIZES = (3, 8, 6, 8, 5, 8, 7, 8)
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["single", "double"])


def clients(scale: float = 1.0, sizes: tuple[int, ...] = SIZES) -> FederatedDataset:
    draw = torch.Generator().manual_seed(0)

    def rows(several: int) -> tuple[Tensor, Tensor]:
        return torch.rand(several, 6, generator=draw) * scale, torch.randint(3, (several,), generator=draw)

    return from_clients({k: (*rows(n), *rows(1)) for k, n in enumerate(sizes)}, classes=3)


def engine(
    method: Method = Ditto(), dtype: torch.dtype = torch.float32, data: FederatedDataset | None = None
) -> CohortProgram:
    training = Training(rounds=1000, sampler=FixedSize(4), batch=4, dtype=dtype)
    performance, model = Performance(chunk=4, compile="require"), initialise(MLP(6, 3, (5,)), 0)
    return assemble(data or clients(), model, method, CENTRAL, training, performance=performance).engine


def decided(of: CohortProgram) -> None:
    """Records the program of every chunk, or is refused."""
    view = of.method.init(of.start).view
    for shape in {of.chunking.shape(chunk) for chunk in of.chunking.split(np.arange(len(SIZES)))}:
        recorded(of, shape, Broadcast(view, of.plan.release.start(), 0))


def planted(monkeypatch: pytest.MonkeyPatch, bug: Pass) -> None:
    """A pass that comes after all others."""
    simplify = recording.simplify

    def with_bug(graph: GraphModule) -> GraphModule:
        graph = simplify(graph)
        bug(graph)
        graph.recompile()
        return graph

    monkeypatch.setattr(recording, "simplify", with_bug)


def change(graph: GraphModule, at: int, make: Callable[[Tensor], Tensor]) -> None:
    """Puts `make` behind an output."""
    (output,) = (node for node in graph.graph.nodes if node.op == "output")
    outputs: list[Node] = list(output.args[0])
    with graph.graph.inserting_before(output):
        outputs[at] = graph.graph.call_function(make, (outputs[at],))
    output.args = (tuple(outputs),)


def scaled(leaf: Tensor) -> Tensor:
    """One client's, by a thousandth."""
    factor = torch.ones(len(leaf), *[1] * (leaf.dim() - 1), dtype=leaf.dtype)
    factor[1] = 1.001
    return leaf * factor


def without_last(leaf: Tensor) -> Tensor:
    flat = leaf.reshape(len(leaf), -1)
    kept = torch.arange(flat.shape[1]) < flat.shape[1] - 1
    return (flat * kept).reshape(leaf.shape)


def without_nan(leaf: Tensor) -> Tensor:
    return leaf.nan_to_num(0.0)


UPLOAD, PERSONAL = 0, -1  # the first output is a leaf of uploads, the last one of what clients keep: one row each
LEAVES: dict[str, Callable[[Tensor], Tensor]] = {
    "scales one client's by 1.001": scaled,
    "drops a leaf's last number": without_last,
    "makes sense of a client that is not a number": without_nan,
}


@DTYPES
@pytest.mark.parametrize("at", [UPLOAD, PERSONAL], ids=["upload", "personal"])
@pytest.mark.parametrize("name", LEAVES)
def test_a_pass_that_is_wrong_for_one_client_is_found(
    name: str, at: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    decided(engine(dtype=dtype))
    planted(monkeypatch, lambda graph: change(graph, at, LEAVES[name]))
    with pytest.raises(Refused, match="inputs"):
        decided(engine(dtype=dtype))


@DTYPES
def test_a_pass_that_lets_padding_train_is_found(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are not live are then live for everybody: wrong for padded clients alone."""

    def always_live(graph: GraphModule) -> None:
        for node in graph.graph.nodes:
            if node.op == "placeholder" and node.meta["val"].dtype == torch.bool and node.meta["val"].dim() == 2:
                with graph.graph.inserting_after(node):
                    every = graph.graph.call_function(torch.ones_like, (node,))
                node.replace_all_uses_with(every, lambda user, every=every: user is not every)

    planted(monkeypatch, always_live)
    with pytest.raises(Refused):
        decided(engine(dtype=dtype))


def test_a_wrong_compiled_operation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """In single precision alone: the passes are right, what they call is not."""
    planted(
        monkeypatch,
        lambda graph: change(graph, PERSONAL, lambda x: scaled(x) if x.dtype == torch.float32 else x),
    )
    with pytest.raises(Refused, match=r"differs by 1\.\de-03 of its size on tame"):
        decided(engine())


def test_a_client_at_a_kink_is_no_reason_to_refuse_and_no_reason_to_accept() -> None:
    """A rounding decides: the plain program, a little moved, differs as much. It is tried on other inputs."""

    class AtAKink:
        clients: int = 3
        exact: acceptance.Program | None = None

        def __init__(self, kinks: int) -> None:
            self.kinks = kinks

        def tame(self, number: int) -> Trial:
            x = torch.rand(3, 5, generator=torch.Generator().manual_seed(number)) + 0.5
            if number < self.kinks:
                x[1, 2] = 1.0
            return Trial("tame", (x,))

        def wild(self, number: int) -> None: ...

        def in_double(self, trial: Trial) -> tuple[Any, ...]:
            return trial.inputs

    def plain(x: Tensor) -> Tensor:
        return torch.where(x > 1 + 1e-7, x + 1, x)

    def rounded_otherwise(x: Tensor) -> Tensor:
        return torch.where(x > 1 - 1e-7, x + 1, x)

    acceptance.accept(acceptance.Pair(plain, rounded_otherwise), None, AtAKink(2))
    with pytest.raises(Refused, match="no inputs were found"):
        acceptance.accept(acceptance.Pair(plain, rounded_otherwise), None, AtAKink(6))
    with pytest.raises(Refused, match="client 1 differs"):  # nothing there depends on a rounding
        acceptance.accept(acceptance.Pair(torch.exp, lambda x: x.exp() + (x == 1.0)), None, AtAKink(1))


def test_what_is_decided_does_not_depend_on_anybodys_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same program, compared on the same inputs, whatever the rows are."""
    seen: list[list[Tensor]] = []
    accept = recording.accept

    def noted(pair: Any, double: Any, trials: Any) -> None:
        from torch.utils import _pytree as pytree

        seen.append([leaf.clone() for n in range(2) for leaf in pytree.tree_leaves(trials.tame(n).inputs)])
        accept(pair, double, trials)

    monkeypatch.setattr(recording, "accept", noted)
    for data in (clients(), clients(1e30), clients(0.0)):
        decided(engine(data=data))
    first, *others = seen
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))


def run(method: Method, compile: Compile, folder: Path | None = None, rounds: int = 40) -> Run:
    training = Training(rounds=rounds, sampler=FixedSize(4), batch=4)
    performance, model = Performance(chunk=4, compile=compile), initialise(MLP(6, 3, (5,)), 0)
    parts = assemble(clients(), model, method, CENTRAL, training, performance=performance)
    return Run(
        *parts,
        ledger=Ledger.open(":memory:" if folder is None else folder / "ledger.sqlite"),
        schedule=Schedule(1000, 1000),
        folder=folder,
    )


def broken(graph: GraphModule) -> None:
    raise KeyError("a pass that does not know an operation")


def test_a_pass_that_fails_costs_a_line_in_the_log_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain, failed = run(Ditto(), "off"), run(Ditto(), "auto")
    planted(monkeypatch, broken)
    with caplog.at_level(logging.WARNING, "tacit"):
        for each in (plain, failed):
            for _ in range(2):
                each.step()
    assert failed.engine.recorded
    assert set(failed.engine.programs.values()) == {None}
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(failed.engine.programs)
    assert "the plain one runs: KeyError: 'a pass that does not know an operation'" in said[0]
    assert largest_difference(states(plain), states(failed)) < 1e-5


def test_where_compilation_is_required_a_refusal_is_an_error_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    planted(monkeypatch, broken)
    with pytest.raises(TacitError, match=r"compile is 'require', and a program cannot be recorded \(KeyError"):
        run(Ditto(), "require").step()


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"privacy": RECORD}, "Poisson batches"), ({"native": False}, "no compiled kernels: install a C compiler")],
)
def test_where_compilation_is_required_and_cannot_be_had_nothing_starts(
    options: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not options.get("native", True):
        monkeypatch.setattr("tacit.simulation.cohort_program.compiled", lambda: False)
    training = Training(rounds=10, batch=4)
    model, privacy = initialise(MLP(6, 3, (5,)), 0), options.get("privacy", CENTRAL)
    parts = assemble(clients(), model, FedAvg(), privacy, training, performance=Performance(compile="require"))
    with pytest.raises(TacitError, match=reason):
        Run(*parts, ledger=Ledger.open(":memory:"))


def test_compile_is_one_of_three_words() -> None:
    with pytest.raises(TacitError, match=r"compile='yes'.*'auto' or 'off' or 'require'"):
        Performance(compile="yes")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("refused", [False, True])
def test_a_resumed_run_does_as_was_decided_without_comparing_again(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if refused:
        with monkeypatch.context() as broken_once:
            planted(broken_once, broken)
            first = run(Ditto(), "auto", tmp_path)
            first.step()
    else:
        first = run(Ditto(), "auto", tmp_path)
        first.step()
    first.save()
    monkeypatch.setattr(recording, "accept", lambda *_: pytest.fail("compared again"))
    again = run(Ditto(), "auto", tmp_path)
    again.resume()
    assert again.engine.decisions == first.engine.decisions
    again.step()
    assert again.engine.programs.keys() == first.engine.programs.keys()
    assert all((made is None) == refused for made in again.engine.programs.values())


def test_what_was_decided_about_other_code_is_decided_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    made: decisions.Decisions = {
        (rehearsal.Shape(4, 2, 1, 8), (torch.Size([3, 2]),)): "because",
    }
    kept = decisions.saved(made)
    assert decisions.restored(kept) == made
    assert decisions.restored(kept | {"code": "another"}) == {}
    assert decisions.restored({}) == {}


@pytest.mark.parametrize("method", [FedAvg(), Ditto(), AdaPeD(), LocalOnly()], ids=lambda m: type(m).__name__)
def test_tame_programs_are_accepted_whatever_the_inputs_that_are_drawn(
    method: Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(5):
        monkeypatch.setattr(rehearsal, "_SEED", 1000 * seed)
        decided(engine(method))


def test_a_recorded_program_reads_the_real_rows_and_not_those_it_was_compared_on() -> None:
    results = [run(Ditto(), compile) for compile in ("off", "require")]
    for each in results:
        for _ in range(3):
            each.step()
    assert all(results[1].engine.programs.values())
    assert largest_difference(*(states(each) for each in results)) < 1e-5


def test_states_of_two_precisions_are_recorded_in_the_stores_own() -> None:
    decided(engine(KeepLocal(("bias",), FedAvg(optimizer=ServerAdam()))))
