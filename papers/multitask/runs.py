"""One run on human activities, described by a value and measured: what the pages of multitask learning are made of."""

from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from papers.bench import Cell
from papers.multitask.har import sitting
from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.estimation.multitask import Sharing, objective
from tacit.methods import Multitask
from tacit.models import SoftmaxRegression, initialise
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import calibrate
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import Poisson

PLAIN: Final = Availability()
WHOLE: Final = 512  # a batch that holds every row of a device
_NEVER = 10**6
_BOUND = 0.5  # of one example's gradient


@dataclass(frozen=True)
class Recipe:
    """`centre`: noise of the mean that a device takes off its rows, in sensitivities; None takes nothing off."""

    method: Method
    rounds: int = 40
    privacy: Privacy = field(default_factory=lambda: Privacy())
    rate: float = 1.0
    batch: int = 64
    epochs: int = 1
    devices: Availability = PLAIN
    centre: float | None = None


def record_level(
    method: Method, epsilon: float | None, delta: float, rounds: int, epochs: int = 1, devices: Availability = PLAIN
) -> Recipe:
    """Private gradients of whole devices' rows; one further Gaussian query of the budget pays for the centre."""
    plain = Recipe(method, rounds, batch=WHOLE, epochs=epochs, devices=devices, centre=0.0)
    if epsilon is None:
        return plain
    from dp_accounting import GaussianDpEvent

    times = epochs * (_most_present(rounds, devices.drop) + 1)
    z = calibrate(GaussianDpEvent, epsilon, delta, "add/remove", "pld", times=times)
    privacy = Privacy(plans.Record(_BOUND, times // epochs), (Level("private", epsilon=epsilon, delta=delta),))
    return replace(plain, privacy=privacy, centre=z)


def _most_present(rounds: int, drop: float) -> int:
    """Rounds that 99% of the devices stay below."""
    from scipy.stats import binom

    return max(1, int(binom.ppf(0.99, rounds, 1 - drop)))


def device_level(method: Method, epsilon: float, delta: float, rounds: int = 4, epochs: int = 1) -> Recipe:
    privacy = Privacy(plans.Local(Fixed(0.3), rounds, project=True), (Level("private", epsilon=epsilon, delta=delta),))
    return Recipe(method, rounds, privacy, epochs=epochs, centre=0.0)


def grouped(method: Method, epsilon: float, delta: float, opted_out: float, rounds: int = 40) -> Recipe:
    """A trusted server; `opted_out` is the share of people without privacy (FedHDP's menu of two)."""
    levels = (Level("private", epsilon=epsilon, delta=delta), Level("open"))
    # weighed alike, those who opted out would change nothing: the same noise lies on the same sum
    privacy = Privacy(plans.Grouped(ratio=0.1 if opted_out else 1.0), levels, {"open": opted_out})
    return Recipe(method, rounds, privacy, rate=0.5, centre=0.0)


def started(recipe: Recipe, seed: int) -> Run:
    data = sitting(seed, recipe.centre)
    training = Training(
        recipe.rounds, Poisson(recipe.rate), recipe.batch, recipe.epochs, seed=seed, chunk=30, devices=recipe.devices
    )
    model = initialise(SoftmaxRegression(data.x.shape[1], 2), seed)
    made = assemble(data, model, recipe.method, recipe.privacy, training)
    run = Run(*made, Ledger.open(":memory:"), Schedule(_NEVER, _NEVER))
    _charge_centre(run, recipe, data)
    return run


def _charge_centre(run: Run, recipe: Recipe, data: FederatedDataset) -> None:
    """Before anything is trained on centred rows, every device pays for its noisy mean like for one more round."""
    if run.plan.record is None:
        return
    accounts = [account for k in range(data.clients) if (account := run.plan.client(k)) is not None]
    assert recipe.centre is not None
    assert all(abs(float(z) - recipe.centre) < 1e-9 for z in run.plan.record.multipliers)
    charges = [Charge(a.scope, a.unit, a.relation, a.event, a.count) for a in accounts]
    run.ledger.charge(recipe.rounds, charges)
    run.budget = BudgetTracker(run.plan, run.ledger, recipe.rounds + 1)  # what is left after that


def measure(recipe: Recipe, seed: int, history: bool = False) -> Cell:
    """Mean test error over the people; with a covariance, who learns from whom; with `history` the primal objective."""
    run = started(recipe, seed)
    rounds, primal = [], []
    while history and run.progress.round < recipe.rounds:
        run.step()
        rounds.append(run.progress.round)
        primal.append(objective(run).primal)
    scores = run.go().scores
    assert scores is not None
    cell: dict[str, Any] = {"error": float(1 - scores.personal.mean()), "rounds": rounds, "primal": primal}
    if isinstance(recipe.method, Multitask):
        sharing = Sharing.of(run)
        cell |= {"ids": list(sharing.ids), "correlation": _short(sharing.correlation), "origin": _short(sharing.origin)}
    return cell


def _short(values: np.ndarray) -> list[list[float]]:
    return np.round(values, 4).tolist()
