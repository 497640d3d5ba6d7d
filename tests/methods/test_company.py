"""The methods that PrivateFL is compared with and added to: FedBN, FedGN, DP-SCAFFOLD, PP-SGD."""

import numpy as np
import pytest
import torch
from torch.utils._pytree import tree_map

from tacit.core import tree
from tacit.errors import TacitError
from tacit.experiments.build import build_method
from tacit.methods import FedAvg, KeepLocal, LocalSgd, Method, PPSgd, Scaffold
from tacit.models import MLP, initialise
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Assembled, Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import Poisson
from tests.worlds import CENTRAL, DISTRIBUTED, RECORD, assembled, largest_difference, ragged, run

TRAINING = Training(rounds=2, sampler=Poisson(0.5), batch=4, seed=3, dtype=torch.float64)


def normed(kind: str, privacy: Privacy) -> Assembled:
    model = initialise(MLP(6, 3, hidden=[8], norm=kind), 0)  # pyright: ignore[reportArgumentType]
    return assemble(ragged(), model, KeepLocal(("norm",), FedAvg()), privacy, TRAINING)


@pytest.mark.parametrize(("kind", "privacy"), [("batch", CENTRAL), ("group", CENTRAL), ("group", RECORD)])
def test_fedbn_and_fedgn_keep_their_norms_and_upload_the_rest(kind: str, privacy: Privacy) -> None:
    parts = normed(kind, privacy)
    assert not any("norm" in name for name in parts.shapes.upload)
    it = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=100))
    scores = it.go().scores
    assert scores is not None
    assert ((scores.personal >= 0) & (scores.personal <= 1)).all()


def test_fedbn_is_refused_for_single_records_and_told_of_fedgn() -> None:
    with pytest.raises(TacitError, match="use GroupNorm"):
        normed("batch", RECORD)


def test_the_control_of_dp_scaffold_costs_nothing_under_record() -> None:
    """It is made of the noisy steps: no further query of the data, and the same account as FedAvg."""
    scaffold, average = (assembled(method, RECORD) for method in (Scaffold(), FedAvg()))
    assert scaffold.engine.plan.setting.queries(3) == average.engine.plan.setting.queries(3) == (1, 1, 1)
    assert [scaffold.engine.plan.client(k) for k in range(20)] == [average.engine.plan.client(k) for k in range(20)]


@pytest.mark.parametrize("plan", [CENTRAL, DISTRIBUTED], ids=["central", "distributed"])
def test_both_parts_of_dp_scaffold_are_in_one_sensitivity_under_client_level_plans(plan: Privacy) -> None:
    it = run(Scaffold(), plan)
    assert {name.split("/")[0] for name in it._shapes.upload} == {"model", "extra"}
    if plan is DISTRIBUTED:
        assert it.plan.release.coding.size == tree.size(it._shapes.upload)  # pyright: ignore


def without_privacy(method: Method) -> Run:
    it = run(method, Privacy())
    it.go()
    return it


def test_pp_sgd_without_a_personal_part_is_fedavg() -> None:
    one, other = without_privacy(PPSgd(lr=0.2, personal_lr=0.0)), without_privacy(FedAvg(LocalSgd(0.2)))
    assert largest_difference(one.progress.server.view.model, other.progress.server.view.model) < 1e-12


def test_pp_sgd_steps_both_models_along_the_same_gradient() -> None:
    engine, _ = assembled(PPSgd(lr=0.1, personal_lr=0.3), Privacy())
    view = engine.method.init(engine.start).view
    inputs = engine.inputs_for(engine.method.join(view, engine.start), np.array([3]), 0)
    given = tree_map(lambda leaf: leaf[0], inputs._replace(state={}))
    site, _ = engine.site(engine.task, given, 0, 0)
    reply = engine.method.client(view, engine.method.join(view, engine.start), site)
    assert largest_difference(tree.scale(reply.upload.model, 3.0), reply.state) < 1e-12


def test_pp_sgd_is_refused_under_record_and_says_why() -> None:
    with pytest.raises(TacitError, match="one record more or less would move all other records' gradients"):
        assembled(PPSgd(), RECORD)
    assembled(PPSgd(noisy=True), RECORD)
    assembled(PPSgd(), CENTRAL)


def test_a_file_names_pp_sgd_and_its_keys() -> None:
    table = {"name": "pp-sgd", "lr": 0.2, "personal_lr": 0.05, "noisy": True}
    assert build_method(table) == PPSgd(0.2, 0.05, noisy=True)
