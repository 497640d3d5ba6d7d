"""Seeded noise is keyed by the run: runs of one seed that differ in anything share none of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tacit.core.contract import Tree
from tacit.data.dataset import FederatedDataset
from tacit.methods import FedAvg
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import requests as plans
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy
from tacit.rounds.loop import Run, Schedule
from tacit.simulation.fingerprint import data_parts, digest, identity
from tests.worlds import PLANS, ragged, run

CLIP, CLIENTS = 0.5, 20


def loud(noise: float, clip: float = CLIP) -> Privacy:
    return Privacy(plans.Central(Fixed(clip)), (Level("private", delta=1e-3, noise=noise),))


def other_rows(of: FederatedDataset, client: int) -> FederatedDataset:
    x = of.x.clone()
    x[of.rows(client)] *= -5
    return replace(of, x=x)


def released(privacy: Privacy, data: FederatedDataset) -> torch.Tensor:
    """The model after one round in which everybody takes part."""
    it = run(FedAvg(), privacy, data, rounds=1, rate=1.0)
    it.go()
    return flat(it.progress.server.view.model)


def flat(model: Tree) -> torch.Tensor:
    return torch.cat([leaf.reshape(-1) for leaf in model.values()])


def test_the_difference_of_two_runs_of_one_seed_does_not_show_the_client_in_which_they_differ() -> None:
    """Under shared noise the models differ by that client alone: by no more than its bound."""
    one, other = (released(loud(100.0), data) for data in (ragged(), other_rows(ragged(), 1)))
    assert float((one - other).norm()) > 100 * CLIP / CLIENTS


def test_two_epsilons_at_one_seed_do_not_cancel_the_noise() -> None:
    """Under shared noise (z2 a - z1 b) / (z2 - z1) is the exact mean."""
    one, other, data = 1.0, 8.0, ragged()
    a, b = (released(loud(z), data) for z in (one, other))
    exact = released(loud(1e-9), data)
    guess = (other * a - one * b) / (other - one)
    assert float((guess - exact).norm()) > 0.3 * float((a - exact).norm())


@pytest.mark.parametrize("plan", [name for name in PLANS if name != "open"])
def test_no_client_draws_the_same_noise_beside_other_data_or_another_promise(plan: str) -> None:
    """Nor does the server; batches and cohorts stay those of the seed, so that runs can be compared."""
    more = replace(PLANS[plan], levels=(Level("private", delta=1e-3, noise=1.1), *PLANS[plan].levels[1:]))
    cases = ((PLANS[plan], ragged()), (PLANS[plan], other_rows(ragged(), 1)), (more, ragged()))
    runs = [run(FedAvg(), privacy, data) for privacy, data in cases]
    who = np.arange(4)
    draws = [it.engine.inputs_for({}, who, 0) for it in runs]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        one, other = draws[first], draws[second]
        for kind in ("gradient_key", "release_key"):
            assert not set(getattr(one, kind).flatten().tolist()) & set(getattr(other, kind).flatten().tolist())
        assert torch.equal(one.rows, other.rows)
        assert runs[first].engine.noise_of("server") != runs[second].engine.noise_of("server")
        assert np.array_equal(runs[first].draw(0), runs[second].draw(0))


@pytest.mark.parametrize("plan", PLANS)
def test_the_same_run_again_draws_the_same(plan: str) -> None:
    one, other = (run(FedAvg(), PLANS[plan], rounds=2) for _ in range(2))
    for it in (one, other):
        it.go()
    assert torch.equal(flat(one.progress.server.view.model), flat(other.progress.server.view.model))


def test_how_a_run_is_computed_is_no_part_of_it() -> None:
    assert identity(run(FedAvg(), chunk=3).engine) == identity(run(FedAvg()).engine)


def test_a_ledger_takes_no_second_run_on_other_data() -> None:
    """Its rounds have the same numbers and events, and would seem to be repetitions that cost nothing."""
    kept = Ledger.open(":memory:")
    for at, data in enumerate((ragged(), other_rows(ragged(), 1))):
        engine, shapes = run(FedAvg(), federation=data).engine, run(FedAvg(), federation=data)._shapes
        if at == 0:
            Run(engine, shapes, kept, Schedule(evaluate_every=100)).step()
            continue
        with pytest.raises(Exception, match="is the ledger of another run"):
            Run(engine, shapes, kept, Schedule(evaluate_every=100))


def test_a_digest_is_of_the_data_and_of_its_key() -> None:
    parts = [data_parts(data) for data in (ragged(), ragged(), other_rows(ragged(), 1))]
    one, again, other = (digest(each, b"key") for each in parts)
    assert one == again != other
    assert digest(parts[0], b"other key") not in (one, digest(parts[0]))
