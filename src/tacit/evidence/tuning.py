"""The price of tuning: random search whose cost is charged, so that nobody states the winner's epsilon alone.

The search tries a geometric number of configurations, drawn from the choices one after the other. A trial is a whole
run without a fifth of every client's training rows, and its score: the mean over clients of the first metric on those
rows, each cut to [0, 1], so that a client moves their sum by at most 1; with noise. Test rows have no part in it. Only
the configuration of the best score comes out; not the other scores, and not how many trials there were. That costs what
the event `RepeatAndSelect` says (Papernot and Steinke 2022), whatever the number was. Then the winner is trained, from
the beginning, on all training rows and with its own noise. Its ledger begins with the search: every epsilon that
anybody prints of it is that of both.

Noise is calibrated so that search and training together keep each level's budget; both use the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from tacit.core import rng
from tacit.core.files import write_atomically
from tacit.data.partition import validation_split
from tacit.errors import TacitError
from tacit.evidence.certificate import TUNING
from tacit.experiments.build import Parts, build
from tacit.experiments.config import Config, full, with_overrides
from tacit.experiments.result import Result
from tacit.experiments.train import conduct, run_config
from tacit.privacy.accounting.accountant import calibrate
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.privacy.plan import Account
from tacit.rounds.assemble import assemble
from tacit.rounds.evaluate import Scores

VALIDATION: Final = 0.2  # of every client's training rows, by which trials are scored
_SECTIONS: Final = ("method.", "model.", "batch", "epochs", "steps")
"""What may be tuned: what no event depends on."""


@dataclass(frozen=True)
class Search:
    """What is tried: values of keys, the mean number of trials, and the noise of a score (in clients)."""

    choices: Mapping[str, Sequence[str]]
    mean: float = 5.0
    score_noise: float = 10.0

    def __post_init__(self) -> None:
        wrong = [key for key in self.choices if not key.startswith(_SECTIONS)]
        if wrong:
            raise TacitError(
                f"'{wrong[0]}' cannot be tuned: it changes what is charged; choose keys of method or model"
            )
        if not self.choices or not all(self.choices.values()):
            raise TacitError("nothing to choose from: give --try KEY=VALUE,VALUE at least once")
        if not (self.mean > 1 and self.score_noise > 0):
            raise TacitError(f"{self.mean:g} trials with noise {self.score_noise:g}: give more than 1, and more than 0")

    def event(self, training: Any) -> Any:
        """Of the whole search, from the event of one training."""
        import dp_accounting as dp
        from dp_accounting.dp_event import RepeatAndSelectDpEvent

        parts: Any = (training, dp.GaussianDpEvent(self.score_noise))
        return RepeatAndSelectDpEvent(dp.ComposedDpEvent(parts), self.mean, 1.0)

    @property
    def words(self) -> str:
        return (
            f"{', '.join(self.choices)} chosen by private selection among a random number of trials, {self.mean:g} on "
            "average; search and training are both in the ledger, and in every figure."
        )


def tune(config: Config, search: Search, folder: Path, progress: bool = False) -> tuple[dict[str, str], Result]:
    """Searches, then trains the winner in `folder`; both are charged to its ledger.

    Returns:
        The values that won, and the run. Its epsilon is that of the search and the training together.

    Raises:
        TacitError: if the plan charges clients by participation: what a trial would cost is not known beforehand.
    """
    config = _calibrated(config, search)
    charges = [_charge(account, config.rounds, search) for account in _accounts(config)]
    with Ledger.open(_beside(folder)) as ledger:  # durable before the first trial: a search that dies is not forgotten
        ledger.charge(0, charges)
    chosen = _select(config, search)
    result = run_config(_with(config, chosen), folder, progress=progress, earlier=charges)
    about = {"words": search.words, "choices": {key: list(values) for key, values in search.choices.items()}}
    write_atomically(folder / TUNING, (json.dumps(about | {"chosen": chosen}, indent=1) + "\n").encode())
    return chosen, result


def _select(config: Config, search: Search) -> dict[str, str]:
    """The configuration of the best noisy score."""
    draw = rng.generator(config.seed, "tuning")
    best: tuple[float, dict[str, str]] = (-np.inf, {})
    for trial in range(int(draw.geometric(1 / search.mean))):
        chosen = {key: str(draw.choice(list(values))) for key, values in search.choices.items()}
        parts = _trial(build(_with(config, chosen)), config.seed + 1 + trial)
        result = conduct(parts, full(_with(config, chosen)), None, False, False)
        score = score_of(result.scores) + float(draw.normal()) * search.score_noise
        best = max(best, (score, chosen), key=lambda pair: pair[0])
    return best[1]


def _trial(parts: Parts, seed: int) -> Parts:
    """The run of a trial: other draws and other noise, of the same clients at the same levels.

    Both are drawn by the experiment's own seed. Under another one somebody's rows would be other clients', and who is
    private here would have opted out there.
    """
    data, split_seed = parts.federation, parts.training.seed
    chosen = parts.privacy.choose(data, split_seed)
    levels = {name: chosen.of(k).name for k, name in enumerate(data.ids)}
    return parts._replace(
        federation=validation_split(data, VALIDATION, split_seed),
        privacy=replace(parts.privacy, choices=levels),
        training=replace(parts.training, seed=seed),
    )


def score_of(scores: Scores) -> float:
    """The sum over clients of the first metric, cut to [0, 1]: one client moves it by at most 1, whatever it holds.

    Raises:
        TacitError: a metric whose smaller values are better: no cut makes a fair score of it.
    """
    if not scores.metric.larger:
        raise TacitError(
            f"the metric '{scores.metric.name}' is better when smaller: name one first that is larger for a better "
            "model, such as accuracy or r2"
        )
    return float(np.clip(np.nan_to_num(scores.personal, nan=0.0, posinf=1.0, neginf=0.0), 0.0, 1.0).sum())


def _with(config: Config, chosen: Mapping[str, str]) -> Config:
    return with_overrides(config, [f"{key}={value}" for key, value in chosen.items()])


def _accounts(config: Config) -> tuple[Account, ...]:
    parts = build(config)
    plan = assemble(*parts[:5], performance=parts.performance, objective=parts.objective).engine.plan
    if not plan.levels:
        raise TacitError(f"plan '{plan.name}' charges clients by participation: tuning is for central, grouped")
    return plan.levels


def _training(event: Any, times: int) -> Any:
    import dp_accounting as dp

    return dp.SelfComposedDpEvent(event, times)


def _charge(account: Account, rounds: int, search: Search) -> Charge:
    event = search.event(_training(account.event, account.count * rounds))
    return Charge(account.scope, account.unit, account.relation, event)


def _calibrated(config: Config, search: Search) -> Config:
    """Each level's noise such that search and training together cost its budget; a level with given noise keeps it."""
    levels = dict(config.levels)
    for account in _accounts(config):
        name = account.scope.removeprefix("level:")
        if levels[name].noise is None and account.epsilon is not None:
            times = account.count * config.rounds
            z = calibrate(_whole(account, times, search), account.epsilon, account.delta, account.relation, "rdp")
            levels[name] = levels[name].model_copy(update={"noise": z})
    return config.model_copy(update={"levels": levels})


def _whole(account: Account, times: int, search: Search) -> Callable[[float], Any]:
    """Search and training as one event of the noise multiplier."""
    import attr
    import dp_accounting as dp

    def of(z: float) -> Any:
        noise = dp.GaussianDpEvent(z)
        sampled = hasattr(account.event, "event")
        training = _training(attr.evolve(account.event, event=noise) if sampled else noise, times)
        parts: Any = (search.event(training), training)
        return dp.ComposedDpEvent(parts)

    return of


def _beside(folder: Path) -> Path:
    place = folder.with_name(f"{folder.name}-search.sqlite")
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists() or folder.exists():
        raise TacitError(f"{folder} or {place} is there already: a search is charged once; give another --out")
    return place
