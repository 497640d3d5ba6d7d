"""Queries of one batch compose inside its sample: k private gradients are a Poisson sample of the k-fold Gaussian,
for each step, counted batch by batch."""

import math
from collections import Counter
from dataclasses import dataclass

import dp_accounting as dp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import beta
from torch import nn
from torch.func import vmap

from tacit.core import tree
from tacit.core.contract import Batch, Method, Reply, Shared, Site, Tree
from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.methods import FedAvg, Multitask, PerFedAvg, PFedMe, PPSgd
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import describe, epsilon, from_json, to_json
from tacit.privacy.accounting.events import atoms
from tacit.privacy.accounting.sampling import Counts, Each, Queries, round_event
from tacit.privacy.ledger.statement import statement
from tacit.privacy.levels import Level, LevelOptions, by_fraction
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.record import Private
from tacit.privacy.plan import Account, CalibrationContext, multiplier_of
from tacit.rounds.assemble import Assembled, Privacy, Training, assemble
from tacit.sampling.cohorts import Poisson, PoissonBatches
from tests.privacy.test_audit import Linear
from tests.worlds import RECORD, assembled, ragged, run

# An accountant of the test's own: nothing of it is Tacit's or dp-accounting's.


def independent_epsilon(rate: float, z: float, queries: int, steps: int, delta: float) -> float:
    """Of `steps` Poisson samples that answer `queries` Gaussian queries of multiplier z each, for add and remove.

    What k queries show of a record is the sum of their answers: a Gaussian whose mean moves by sqrt(k) / z standard
    deviations if the record is in the sample. Losses go to the nearest point of a grid and are composed by an FFT.
    """
    return max(_composed(rate, math.sqrt(queries) / z, steps, delta, removed) for removed in (False, True))


def _composed(rate: float, shift: float, steps: int, delta: float, removed: bool) -> float:
    points, width = 1 << 18, 80.0
    grid = (np.arange(points) - points // 2) * (width / points)
    edges = np.append(grid - width / points / 2, np.inf)
    edges[0] = -np.inf
    if removed:  # -log(1 - q + q L) with x ~ N(0, 1), falling in x
        masses = np.diff(1 - ndtr(_where(-edges, rate, shift)))
    else:  # log(1 - q + q L) with x ~ (1 - q) N(0, 1) + q N(shift, 1)
        x = _where(edges, rate, shift)
        masses = np.diff((1 - rate) * ndtr(x) + rate * ndtr(x - shift))
    total = np.fft.irfft(np.fft.rfft(np.fft.ifftshift(masses)) ** steps, points)
    total = np.fft.fftshift(total)

    def spent(epsilon: float) -> float:
        above = grid > epsilon
        return float(np.sum(total[above] * -np.expm1(epsilon - grid[above])))

    low, high = 0.0, width / 2
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (middle, high) if spent(middle) > delta else (low, middle)
    return high


def _where(loss: np.ndarray, rate: float, shift: float) -> np.ndarray:
    """The x at which log(1 - q + q exp(shift x - shift^2 / 2)) is `loss`; -inf below the least loss."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        ratio = 1 + np.expm1(np.minimum(loss, 700)) / rate
        x = np.log(np.maximum(ratio, 0)) / shift + shift / 2
    return np.where(loss == np.inf, np.inf, np.where(ratio <= 0, -np.inf, x))


def sampled(rate: float, z: float, queries: int = 1) -> dp.DpEvent:
    return dp.PoissonSampledDpEvent(rate, dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), queries))


def test_the_independent_accountant_knows_the_closed_form_of_a_gaussian() -> None:
    """Every record in every batch: ten queries of multiplier 5 are one Gaussian (Balle and Wang 2018)."""
    shift, found = math.sqrt(10) / 5, independent_epsilon(1.0 - 1e-12, 5.0, 2, 5, 1e-5)
    delta = ndtr(shift / 2 - found / shift) - math.exp(found) * ndtr(-shift / 2 - found / shift)
    assert delta == pytest.approx(1e-5, rel=1e-3)


@pytest.fixture(scope="module")
def thousand() -> FederatedDataset:
    """One client of 1,000 rows."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(1000, 2)), draw.integers(2, size=1000)
    return from_clients({"a": (x, y, x[:2], y[:2])}, classes=2, dtype=torch.float64)


def account_of(made: Assembled, client: int = 0) -> Account:
    account = made.engine.plan.client(client)
    assert account is not None
    return account


@pytest.mark.parametrize(
    ("target", "too_little", "cost"), [(1.0, 1.0335, 3.95), (2.0, 0.80641, 8.03), (8.0, 0.51527, 27.65)]
)
def test_pfedme_costs_what_it_is_calibrated_to_by_an_accountant_of_its_own(
    thousand: FederatedDataset, target: float, too_little: float, cost: float
) -> None:
    """With its defaults. Queries that are charged as samples of their own get too little noise, which costs more."""
    privacy = Privacy(plans.Record(participations=1), (Level("private", target, 1e-5),))
    training = Training(1, Poisson(1.0), batch=10, dtype=torch.float64)
    made = assemble(thousand, nn.Linear(2, 2), PFedMe(), privacy, training)
    noise = made.engine.plan.record
    assert noise is not None
    z = float(noise.multipliers[0])
    assert 0.97 * target < independent_epsilon(0.01, z, 3, 100, 1e-5) <= 1.01 * target
    assert z > 1.5 * too_little
    rate = account_of(made).event.sampling_probability
    assert independent_epsilon(rate, too_little, 3, 100, 1e-5) == pytest.approx(cost, rel=0.02)


def test_an_attack_disproves_what_independent_samples_would_cost_and_not_what_is_charged() -> None:
    """64 private gradients on each Poisson batch of a client of 50 rows, one of them loud or not there. The attacker
    looks at the first eight steps alone, at the likelihood ratio of the answers, with a threshold fixed beforehand."""
    trials, rows, seen, z, queries, delta, threshold = 5000, 50, 8, 2.0, 64, 1e-3, 5.0
    menu, batches = LevelOptions((Level("private", delta=delta, noise=z),)), PoissonBatches(1)
    choices = by_fraction(menu, 1, {}, 0)
    given_ = CalibrationContext(["a"], np.array([rows]), choices, Poisson(1.0), batches, 1, queries=Each(queries))
    account = plans.Record(participations=1).plan(given_).client(0)
    assert account is not None
    charged = epsilon({account.event: account.count}, delta, "add/remove")
    independent = epsilon({sampled(account.event.sampling_probability, z): queries * rows}, delta, "add/remove")

    shift, hits = math.sqrt(queries) / z, []
    for canary in (True, False):
        score = np.zeros(trials)
        drawn = [batches.draw(7, 0, 2 * k + canary, rows) for k in range(trials)]
        for step in range(seen):
            loud = torch.tensor([bool((index[step][mask[step]] == 0).any()) and canary for index, mask in drawn])
            x = _answers(loud, queries, z, 2 * step + canary) * shift  # their mean, in its standard deviations
            score += np.log1p(np.expm1(shift * x - shift**2 / 2) / rows)
        hits.append(int((score > threshold).sum()))
    hit, false = _at_least(hits[0], trials), 1 - _at_least(trials - hits[1], trials)
    bound = math.log((hit - delta) / false)  # epsilon is at least this, with 99% confidence
    assert independent < bound < charged
    assert charged >= 0.999 * independent_epsilon(1 / rows, z, queries, rows, delta)


def _answers(loud: torch.Tensor, queries: int, z: float, seed: int) -> np.ndarray:
    """The mean of so many private gradients on one batch of each trial, which holds the loud record or not."""

    def ask(there: torch.Tensor) -> torch.Tensor:
        batch = Batch(torch.full((1, 1), -50.0), torch.ones(1), there.reshape(1))
        query = Private(Linear(), lambda _: batch, 1.0, torch.tensor(z), torch.tensor(1.0), Fast())
        return query({"w": torch.zeros(1)}, 0)["w"][0]

    torch.manual_seed(seed)
    lanes = loud.repeat_interleave(queries)
    return vmap(ask, randomness="different")(lanes).reshape(len(loud), queries).mean(1).numpy()


class Fast(Seeded):
    """Torch's own normal numbers: millions of them in seconds."""

    def __init__(self) -> None:
        super().__init__(torch.zeros(2, dtype=torch.int64))

    def noisy(self, values: torch.Tensor, std: torch.Tensor, divisor: torch.Tensor) -> torch.Tensor:
        return (values + std * torch.randn_like(values)) / divisor


def _at_least(successes: int, trials: int) -> float:
    """Clopper and Pearson's lower bound of a probability, at 99.5%."""
    return float(beta.ppf(0.005, successes, trials - successes + 1))


@dataclass(frozen=True)
class Twice(FedAvg):
    """Uploads how far two answers of one batch, and those of two batches, lie apart."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        first, again, other = (site.private_grad(view.model, step) for step in (0, 0, 1))
        return Reply(Shared(tree.sub(again, first)), {"other": tree.norm(tree.sub(other, first))})

    def join(self, view: Shared, start: Tree) -> Tree:
        return {"other": torch.zeros((), dtype=torch.float64)}


def test_all_queries_of_a_step_are_answered_by_the_same_draw() -> None:
    """With next to no noise two answers agree, and those of another step do not."""
    privacy = Privacy(plans.Record(0.5), (Level("private", delta=1e-3, noise=1e-9),), allow_large_delta=True)
    it = run(Twice(), privacy, ragged(4, most=12), rounds=1, rate=1.0)
    inputs = it.engine.inputs_for({"other": torch.zeros(4, dtype=torch.float64)}, np.arange(4), 0)
    view = it.engine.method.init(it.engine.start).view
    message, state, _ = it.engine.encoded(it.engine.task, 0, view, {}, torch.tensor(0), inputs)
    assert max(float(leaf.abs().max()) for leaf in message.body.values()) < 1e-6
    assert float(state["other"].max()) > 0.01


def counted(method: Method, federation: FederatedDataset | None = None) -> Queries:
    return assembled(method, RECORD, federation).engine.plan.setting.queries


@pytest.mark.parametrize(
    ("method", "one", "three"),
    [
        (FedAvg(), (1,), (1, 1, 1)),
        (PFedMe(), (3,), (3, 3, 3)),
        (PFedMe(inner_steps=7), (7,), (7, 7, 7)),
        (PerFedAvg(), (2,), (3, 2, 1)),
        (PerFedAvg(hessian="hessian-free"), (4,), (7, 4, 1)),
        (PerFedAvg(inner=0.0), (1,), (1, 1, 1)),
        (PPSgd(noisy=True), (1,), (1, 1, 1)),
        (Multitask(solver="gradient", loss="logistic"), (1,), (1, 1, 1)),
        (Multitask(solver="certified"), (1,), (1, 1, 1)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_queries_are_counted_batch_by_batch(method: Method, one: tuple[int, ...], three: tuple[int, ...]) -> None:
    def of(rows: int) -> tuple[int, ...]:
        x, y = np.ones((rows, 6)), np.zeros(rows, np.int64)
        data = from_clients({"a": (x, y, x, y), "b": (x, y, x, y)}, classes=3, dtype=torch.float64)
        return counted(method, data)(-(-rows // 4))

    assert (of(4), of(12)) == (one, three)


def test_a_batch_is_charged_for_the_most_that_any_longer_program_asks_of_it() -> None:
    """A client of fewer steps may run within a program that is filled up for others."""
    found = counted(PerFedAvg(), ragged())  # clients of 1 to 3 steps
    assert [found(steps) for steps in (1, 2, 3)] == [(3,), (3, 2), (3, 2, 1)]
    assert Counts({1: (5,), 3: (1, 2, 3)})(1) == (5,)
    assert Counts({1: (5,), 3: (1, 2, 3)})(2) == (1, 2)
    with pytest.raises(TacitError, match=r"programs of \[3\] steps, not of 4"):
        Counts({3: (1, 1, 1)})(4)


@dataclass(frozen=True)
class Anchored(FedAvg):
    """Asks its first batch again before every step: the longer the program, the more often."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        w = view.model
        for step in range(site.steps):
            anchor = site.private_grad(view.model, 0)
            moved = tree.axpy(-0.1, tree.add(anchor, site.private_grad(w, step)), w)
            w = site.advance(step, moved, w)
        return Reply(Shared(tree.sub(w, view.model)), state)


def test_a_method_whose_program_depends_on_its_length_is_charged_for_what_runs() -> None:
    it = run(Anchored(), RECORD, ragged(), chunk=20)
    paid = it.engine.plan.setting.queries
    assert [paid(steps) for steps in (1, 2, 3)] == [(4,), (4, 1), (4, 1, 1)]
    it.go()
    charged = {to_json(entry.event) for entry in it.ledger.entries()}
    assert len(charged) >= 3  # by rate and by steps


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=30), st.floats(0.3, 5.0), st.integers(11, 2000))
def test_a_round_is_one_sample_for_each_batch_that_is_asked(asked: list[int], z: float, rows: int) -> None:
    """k-fold noise z is noise z / sqrt(k), inside the sample; nothing is lost and nothing is averaged."""
    batches = PoissonBatches(10)
    event_of, count = round_event(batches, rows, asked)
    if not any(asked):
        assert count == 0
        return
    event = event_of(z)
    assert multiplier_of(event) == z
    assert from_json(to_json(event)) == event
    found = Counter({(round(e.event.noise_multiplier, 9), n) for e, n in atoms({event: count}).items()})  # pyright: ignore
    assert found == Counter((round(z / math.sqrt(k), 9), n) for k, n in Counter(k for k in asked if k).items())


def test_unequal_batches_cost_more_than_the_least_and_less_than_the_most() -> None:
    def cost(asked: tuple[int, ...], accountant: str) -> float:
        event_of, count = round_event(PoissonBatches(10), 200, asked)
        return epsilon({event_of(1.0): count}, 1e-5, "add/remove", accountant)  # type: ignore[arg-type]

    for accountant in ("pld", "rdp"):
        least, found, most = (cost(asked, accountant) for asked in ((2,) * 20, (3, *(2,) * 18, 1), (3,) * 20))
        assert 0.99 * least < found < most


def test_a_round_in_words_says_how_many_queries_a_sample_answers() -> None:
    event_of, _ = round_event(PoissonBatches(10), 1000, (3, 2, 2, 1))
    words = describe(event_of(1.5), "record")
    assert "3 queries with Gaussian noise, multiplier 1.500, of one Poisson sample" in words
    assert "2 times 2 queries with Gaussian noise" in words
    assert "1 times" not in words
    assert "1 queries" not in words


def test_an_unequal_round_is_charged_whole_and_the_budget_ends_the_run() -> None:
    """Calibrated to 3 participations, all of 5 rounds' cohorts being everybody: a fourth is not paid for."""
    level = Level("private", 8.0, 1e-3)
    it = run(PerFedAvg(), Privacy(plans.Record(0.5, participations=3), (level,)), ragged(4), rounds=5, rate=1.0)
    assert it.go().stopped == "every client has used up its budget"
    assert it.progress.round == 3
    lines = statement(it.ledger)
    assert len(lines) == 4
    assert all(0.97 * 8.0 < line.epsilon <= 8.0 and line.stated is None for line in lines)


def test_every_client_is_calibrated_to_its_own_batches() -> None:
    menu = LevelOptions((Level("private", 4.0, 1e-4),))
    sizes, choices = np.array([40, 60]), by_fraction(menu, 2, {}, 0)
    counts = Counts({2: (3, 1), 3: (3, 2, 1)})
    given_ = CalibrationContext(["a", "b"], sizes, choices, Poisson(0.5), PoissonBatches(20), 10, queries=counts)
    plan = plans.Record(participations=2).plan(given_)
    for k, asked in enumerate([(3, 2), (3, 2, 1)]):
        account = plan.client(k)
        assert account is not None
        parts = [(e.event.event.count, e.count) for e in account.event.events]
        assert sorted(parts) == sorted(Counter(asked).items())
        assert 3.9 < epsilon({account.event: 2 * account.count}, 1e-4, "add/remove") <= 4.0
    assert Each(2)(3) == (2, 2, 2)
