"""Ditto's personal models have a life of their own: epochs, rate, decay, a last solve, a strength of their choice."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Batch, Shared, Site, Tree
from tacit.errors import TacitError
from tacit.experiments.build import method_of
from tacit.experiments.config import parse
from tacit.methods import Ditto, FedAvg, KeepLocal, LocalSgd
from tacit.methods.proximal_solve import solve
from tacit.models import ModuleTask, SoftmaxRegression, params
from tacit.privacy.mechanisms.gradient import Exact
from tacit.rounds.assemble import Privacy
from tacit.rounds.evaluate import alone
from tests.worlds import GROUPED, assembled, largest_difference, ragged, run, states

MODEL = SoftmaxRegression(4, 3).double()
TASK = ModuleTask(MODEL)
SHARED = tree.each(lambda leaf: torch.zeros_like(leaf), params(MODEL))
ROWS = 24


def site(labels: Tensor, x: Tensor, epochs: int, level: int = 0) -> Site:
    """All rows in one batch, so many times."""

    def batch(step: int) -> Batch:
        return Batch(x, labels, torch.ones(len(x), dtype=torch.bool))

    gradient = Exact(TASK, batch)
    live, place = torch.ones(epochs, dtype=torch.bool), torch.arange(len(x))
    return Site(TASK, epochs, live, batch, gradient, gradient, level=torch.tensor(level), rows=lambda step: place)


def rows(seed: int = 0) -> Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def learnable(x: Tensor) -> Tensor:
    return x[:, :3].argmax(1)


def slope(theta: Tree, strength: float, here: Site) -> float:
    """The norm of the gradient of f(theta) + strength / 2 |theta - shared|^2."""
    return float(tree.norm(tree.axpy(strength, tree.sub(theta, SHARED), here.grad(theta, 0))))


@pytest.mark.parametrize("strength", [0.3, 100.0])
def test_the_last_solve_ends_where_the_objective_is_flat(strength: float) -> None:
    """FedHDP's eq. (5); stable also where a plain gradient step of this rate would not be."""
    x = rows()
    here = site(learnable(x), x, 300)
    assert slope(solve(SHARED, strength, here, LocalSgd(0.5)), strength, here) < 0.01
    assert slope(SHARED, strength, here) > 0.1


def test_each_level_has_its_strength_in_the_last_solve() -> None:
    x, ditto = rows(), Ditto(strength=(0.0, 1e9), solve_epochs=5)
    moved = [
        tree.strip("personal", ditto.adapt(Shared(SHARED), {}, site(learnable(x), x, 5, level))) for level in (0, 1)
    ]
    assert largest_difference(moved[0], SHARED) > 0.01
    assert largest_difference(moved[1], SHARED) < 1e-6


def test_a_client_chooses_its_strength_by_its_own_held_out_rows() -> None:
    """Where the others' labels help with them it leaves the shared model; where these mislead it stays there."""
    x, y = rows(), learnable(rows())
    misled = torch.where(torch.arange(ROWS) % 4 == 3, (y + 1) % 3, y)
    ditto = Ditto(strength="optimal", personal=LocalSgd(1.0), solve_epochs=20)
    chosen = [tree.strip("personal", ditto.adapt(Shared(SHARED), {}, site(labels, x, 20))) for labels in (y, misled)]
    assert float(tree.norm(tree.sub(chosen[0], SHARED))) > 0.5
    assert largest_difference(chosen[1], SHARED) == 0


def test_held_out_rows_have_no_part_in_what_they_judge() -> None:
    x, y = rows(), learnable(rows())
    other = torch.where(torch.arange(ROWS) % 4 == 3, (y + 1) % 3, y)
    one, two = (solve(SHARED, 0.1, site(labels, x, 5), LocalSgd(0.5), part=True) for labels in (y, other))
    assert largest_difference(one, two) == 0
    assert largest_difference(*(solve(SHARED, 0.1, site(labels, x, 5), LocalSgd(0.5)) for labels in (y, other))) > 0


def test_a_personal_model_that_stayed_behind_gives_way_to_the_shared_one() -> None:
    x = rows()
    here = site(learnable(x), x, 50)
    good = solve(SHARED, 0.0, here, LocalSgd(1.0))
    stale, kept = tree.prefix("personal", SHARED), tree.prefix("personal", good)
    assert largest_difference(tree.strip("personal", Ditto().adapt(Shared(good), stale, here)), good) == 0
    assert largest_difference(tree.strip("personal", Ditto().adapt(Shared(SHARED), kept, here)), good) == 0


def test_personal_epochs_go_over_a_rounds_batches_so_many_times() -> None:
    x = rows()
    here = site(learnable(x), x, 3)
    sgd, start = LocalSgd(0.1), Ditto().join(Shared(SHARED), SHARED)
    twice = Ditto(strength=0.0, personal=sgd, personal_epochs=2).client(Shared(SHARED), start, here)
    plain = sgd.run(sgd.run(SHARED, here, here.grad), here, here.grad)
    assert largest_difference(tree.strip("personal", twice.state), plain) == 0


@pytest.mark.parametrize("ditto", [Ditto(strength="optimal"), Ditto(solve_epochs=2), Ditto(personal_epochs=2)])
@pytest.mark.parametrize("privacy", [Privacy(), GROUPED], ids=["open", "grouped"])
def test_the_shared_model_and_the_ledger_are_those_of_fedavg(ditto: Ditto, privacy: Privacy) -> None:
    """Nothing of personal training leaves: whatever is chosen, uploads, releases and charges are the same."""
    one, other = run(ditto, privacy, rounds=2), run(FedAvg(), privacy, rounds=2)
    for found in (one, other):
        found.go()
    if not one.engine.plan.private:  # noise is keyed by the run, so that private ones differ by theirs
        assert largest_difference(one.progress.server.view.model, other.progress.server.view.model) == 0
    assert one.ledger.histories() == other.ledger.histories()


def test_the_last_solve_sees_every_row_of_a_client_though_rounds_take_one_step() -> None:
    engine = assembled(Ditto(solve_epochs=3)).engine
    inputs = engine.inputs_for({}, np.array([5]), 0, "adapt")
    first = engine.federation.offsets[5]
    drawn = inputs.rows[0][inputs.mask[0]].sub(first).bincount()
    assert drawn.tolist() == [3] * engine.federation.sizes[5]
    assert engine.inputs_for({}, np.array([0]), 0, "adapt").live.any()


def test_personal_models_are_no_worse_than_the_shared_one_on_average() -> None:
    """The same by one client alone, as in a federation, as in a simulation."""
    ran = run(Ditto(strength="optimal", solve_epochs=2), Privacy(), ragged(4, most=40), rounds=4)
    ran.go()
    view = ran.progress.server.view
    found = [alone(ran.engine, view, {}, place, 4) for place in range(4)]
    shared, personal = np.array([each for each in found if each is not None]).T
    assert personal.mean() >= shared.mean() - 0.05


@pytest.mark.slow
def test_recorded_programs_train_personal_models_alike() -> None:
    plain, recorded = (run(Ditto(personal_epochs=2), Privacy(), rounds=3, chunk=5) for _ in range(2))
    recorded.engine = replace(recorded.engine, compile="require", programs={})
    for found in (plain, recorded):
        found.go()
    assert largest_difference(states(plain), states(recorded)) < 1e-9


def test_a_file_can_say_it_all() -> None:
    method = {"name": "ditto", "lr": 0.2, "decay": 0.9, "personal_lr": 0.5, "personal_decay": 1.0, "personal_epochs": 3}
    made = method_of(parse({"method": method}))
    assert made == Ditto(FedAvg(LocalSgd(0.2, decay=0.9)), personal=LocalSgd(0.5, decay=1.0), personal_epochs=3)
    solved = {"name": "ditto", "strength": "optimal", "solve_epochs": 8}
    assert method_of(parse({"method": solved})) == Ditto(strength="optimal", solve_epochs=8)
    assert KeepLocal(("head",), Ditto(strength="optimal")).adapt_epochs == 5


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"personal_epochs": 0}, "personal_epochs must be above 0"),
        ({"solve_epochs": -1}, "solve_epochs must be at least 0"),
        ({"solve_epochs": 2, "personal_epochs": 2}, "leave it out"),
        ({"strength": "optimal", "personal_epochs": 2}, "leave it out"),
        ({"strength": ()}, "give one number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, object], words: str) -> None:
    with pytest.raises(TacitError, match=words):
        Ditto(**given)  # pyright: ignore[reportArgumentType]
