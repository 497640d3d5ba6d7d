"""Seeded noise is keyed by the run: runs of one seed that differ in anything share none of it."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from tacit.core.contract import Tree
from tacit.data.dataset import FederatedDataset
from tacit.methods import FedAvg
from tacit.privacy import mechanisms as plans
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.simulation.fingerprint import data_parts, digest, identity, plain
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


@dataclass(frozen=True)
class OwnMethod(FedAvg):
    """As a user writes one: nothing reads its fields but itself."""

    setting: Any = None
    workers: int = field(default=1, repr=False)  # leaves the result as it is


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, 1.0),
        (1, np.int64(1)),
        (0.1, np.float64(0.1)),
        (0.5, np.float32(0.5)),
        (0.5, torch.tensor(0.5)),
        (True, np.bool_(True)),
        ([1, 2], (1.0, 2.0)),
        ((1, 2), np.array([1, 2])),
        ((1, 2), torch.tensor([1.0, 2.0])),
        (((1, 2), (3, 4)), [[1, 2], [3, 4]]),
        ("data/x.csv", Path("data/x.csv")),
        ({"a": 1}, {"a": 1.0}),
    ],
    ids=repr,
)
def test_one_setting_has_one_text_however_it_is_written(one: Any, other: Any) -> None:
    assert plain(OwnMethod(setting=one)) == plain(OwnMethod(setting=other))


class Bare:
    """Without a text of its own."""

    def __init__(self, lr: float) -> None:
        self.lr = lr


DIFFERENT = [
    1, 2, 1.5, -1, 0, -0.0, 1e-300, float("nan"), float("inf"), True, False, None, "1", "1.0", "True", "None", "(1, 2)",
    (1, 2), (1, 3), (2, 1), (1,), (12,), (), ((1, 2),), ((1,), 2), ("a", "b"), ("a, b",), ("a', 'b",), {}, {"a": 1},
    {"a": 2}, {"a": "1"}, {"a": 1, "b": 2}, {"b": 2, "a": 1}, 2**53, 2**53 + 1, 10**400, np.float32(0.1), 0.1,
    0.1 + 1e-16, np.eye(50), np.eye(50) + (np.arange(50) == 25), Bare(0.1), Bare(0.2), Fixed(0.5), Fixed(0.6), FedAvg,
    FedAvg(), torch.float32, torch.float64,
]  # fmt: skip


def test_no_two_settings_share_a_text() -> None:
    texts = [plain(OwnMethod(setting=each)) for each in DIFFERENT]
    alike = [(a, b) for i, a in enumerate(texts) for b in texts[:i] if a == b]
    assert alike == []


SPELLINGS: dict[str, tuple[Callable[[], Privacy], Callable[[], Privacy]]] = {
    "epsilon": (
        lambda: Privacy(levels=(Level("p", epsilon=1, delta=1e-3),)),
        lambda: Privacy(levels=(Level("p", epsilon=np.float32(1.0), delta=1e-3),)),  # pyright: ignore
    ),
    "levels": (
        lambda: Privacy(plans.Central(Fixed(1)), (Level("p", delta=1e-3, noise=1),)),
        lambda: Privacy(plans.Central(Fixed(1.0)), [Level("p", delta=1e-3, noise=1.0)]),  # pyright: ignore
    ),
}


@pytest.mark.parametrize("case", SPELLINGS)
def test_noise_depends_on_what_is_set_and_not_on_how_it_is_written(case: str) -> None:
    one, other = (identity(run(FedAvg(), make()).engine) for make in SPELLINGS[case])
    assert one == other
    assert one != identity(run(FedAvg(), loud(1.25)).engine)


@pytest.mark.parametrize(("one", "other", "same"), [((1, 2), [1.0, 2.0], True), ((1, 2), (1, 3), False)])
def test_the_noise_of_a_method_of_ones_own_follows_its_settings(one: Any, other: Any, same: bool) -> None:
    a, b = (identity(run(OwnMethod(setting=each)).engine) for each in (one, other))
    assert (a == b) is same
    assert identity(run(OwnMethod(setting=one, workers=3)).engine) == a


def test_runs_on_other_frozen_weights_share_no_noise() -> None:
    """They are no part of what is trained, and decide what is uploaded all the same."""
    both = []
    for value in (0.5, 0.6):
        model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 3)).double()
        for leaf in model.parameters():
            nn.init.constant_(leaf, 0.1)
        nn.init.constant_(model[0].weight.requires_grad_(False), value)  # pyright: ignore
        made = assemble(ragged(), model, FedAvg(), loud(1.0), Training(rounds=1, dtype=torch.float64))
        both.append(identity(made.engine))
    assert both[0] != both[1]
