"""One run on human activities, described by a value and measured: what the pages of multitask learning are made of."""

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from papers.bench import Cell
from papers.multitask.har import sitting
from tacit.core.contract import Method
from tacit.core.dual_losses import with_intercept
from tacit.data.dataset import FederatedDataset, as_input
from tacit.estimation.multitask import Sharing, multitask_of, objective
from tacit.methods import Multitask
from tacit.models import SoftmaxRegression, initialise
from tacit.privacy import mechanisms as plans
from tacit.privacy.accounting.accountant import calibrate
from tacit.privacy.ledger.budget import BudgetTracker
from tacit.privacy.ledger.ledger import Budget, Charge, Ledger
from tacit.privacy.ledger.statement import statement
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed, Quantile
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import Poisson

PLAIN: Final = Availability()
WHOLE: Final = 512  # a batch that holds every row of a device
_NEVER = 10**6
ROW: Final = 1.01  # norm of a row with its constant feature of .1
_CLEAR = 5.0  # noise of a sum of about 250 rows, up to which their mean is worth taking off


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
    fold: int | None = None  # of five, of the rows that train, for choosing settings; None: the test rows


def certified(
    method: Method,
    epsilon: float,
    delta: float,
    rounds: int = 1,
    devices: Availability = PLAIN,
    centred: bool = True,
) -> Recipe:
    """Record level: certified solutions, and a noisy mean that centres a device's rows for a ninth of one query's cost.

    Where that mean would be noise above all (at small epsilons) rows stay as they are, and nothing is paid for it; the
    same if they are not to be `centred`.
    """
    from dp_accounting import GaussianDpEvent

    times = _most_present(rounds, devices.drop)
    centre = 3 * calibrate(GaussianDpEvent, epsilon, delta, "add/remove", "pld", times=1)
    beside: dict[Any, int] = {GaussianDpEvent(centre): 1} if centred and centre < _CLEAR else {}
    z = calibrate(GaussianDpEvent, epsilon, delta, "add/remove", "pld", times, beside)
    level = Level("private", epsilon=epsilon, delta=delta, noise=z)
    privacy = Privacy(plans.Record(ROW, times), (level,))
    return Recipe(method, rounds, privacy, batch=WHOLE, devices=devices, centre=centre if beside else None)


def _most_present(rounds: int, drop: float) -> int:
    """Rounds that 99% of the devices stay below."""
    from scipy.stats import binom

    return max(1, int(binom.ppf(0.99, rounds, 1 - drop)))


def device_level(method: Method, epsilon: float, delta: float, rounds: int = 4, batch: int = 64) -> Recipe:
    privacy = Privacy(plans.Local(Fixed(3.0), rounds), (Level("private", epsilon=epsilon, delta=delta),))
    return Recipe(method, rounds, privacy, batch=batch, centre=0.0)


def grouped(method: Method, epsilon: float, delta: float, opted_out: float, rounds: int = 40) -> Recipe:
    """A trusted server; `opted_out` is the share of people without privacy (FedHDP's menu of two)."""
    levels = (Level("private", epsilon=epsilon, delta=delta), Level("open"))
    # weighed alike, those who opted out would change nothing: the same noise lies on the same sum
    privacy = Privacy(plans.Grouped(Quantile(), ratio=0.1 if opted_out else 1.0), levels, {"open": opted_out})
    return Recipe(method, rounds, privacy, rate=0.5, centre=0.0)


def started(recipe: Recipe, seed: int, data: FederatedDataset | None = None) -> Run:
    """On human activities, or on other data."""
    data = sitting(seed, recipe.centre, recipe.fold) if data is None else data
    training = Training(
        recipe.rounds, Poisson(recipe.rate), recipe.batch, recipe.epochs, seed=seed, chunk=30, devices=recipe.devices
    )
    model = initialise(SoftmaxRegression(data.x.shape[1], 2), seed)
    made = assemble(data, model, recipe.method, recipe.privacy, training)
    run = Run(*made, Ledger.open(":memory:"), Schedule(_NEVER, _NEVER))
    _charge_centre(run, recipe, data)
    return run


def _charge_centre(run: Run, recipe: Recipe, data: FederatedDataset) -> None:
    """Before anything is trained on centred rows, every device pays for its noisy mean: one Gaussian query."""
    if run.plan.record is None or recipe.centre is None:
        return
    from dp_accounting import GaussianDpEvent

    accounts = [account for k in range(data.clients) if (account := run.plan.client(k)) is not None]
    charges = [Charge(a.scope, a.unit, a.relation, GaussianDpEvent(recipe.centre), 1) for a in accounts]
    accountant = run.plan.setting.accountant
    for a in accounts:  # what is promised stands in the ledger before the first charge
        run.ledger.budget(a.scope, a.unit, a.relation, a.epsilon, a.delta, accountant, Budget.at("private"))
    run.ledger.charge(recipe.rounds, charges)
    run.budget = BudgetTracker(run.plan, run.ledger, recipe.rounds + 1)  # what is left after that


def measure(recipe: Recipe, seed: int, history: int = 0) -> Cell:
    """Mean test error over the people, as models were received and as devices finished them; what was spent.

    With a covariance, who learns from whom; with `history`, primal and dual after every so many rounds.
    """
    run = started(recipe, seed)
    seen = []
    while history and run.progress.round < recipe.rounds and not run.budget.exhausted():
        run.step()
        if run.progress.round % history == 0:
            seen.append(objective(run))
    scores = run.go().scores
    assert scores is not None
    curve = {name: [getattr(each, name) for each in seen] for name in ("round", "primal", "dual")}
    cell: dict[str, Any] = {"error": float(1 - scores.personal.mean()), "spent": _spent(run), **curve}
    if isinstance(recipe.method, Multitask):
        sharing = Sharing.of(run)
        cell |= {"ids": list(sharing.ids), "correlation": _short(sharing.correlation), "origin": _short(sharing.origin)}
        cell["received"] = _received(run)
    return cell


def _spent(run: Run) -> float:
    """The largest epsilon of a device's account, by the ledger; 0 if it has no entry."""
    return max((line.epsilon for line in statement(run.ledger)), default=0.0)


def _received(run: Run) -> float:
    """Test error of the models that the server sends, before a device does anything with its own."""
    method, data, view = multitask_of(run), run.engine.federation, run.progress.server.view
    models = method.weights(view.extra["sums"], view.extra["covariance"])
    wrong = []
    for k in range(data.clients):
        own = data.test_rows(k)
        scores = with_intercept(as_input(data.test_x[own]), method.intercept) @ models[k].T
        wrong.append(float(((scores[:, 0] > 0) != (data.test_y[own] > 0)).double().mean()))
    return float(np.mean(wrong))


def _short(values: np.ndarray) -> list[list[float]]:
    return np.round(values, 4).tolist()
