"""The same attack on a small federation: one canary, many trainings, in some of which it is there.

Hundreds of canaries among five clients would be another federation. Here a single one is planted or not, by the toss of
a coin for each training, with other draws and other noise each time. Trainings are independent, so error rates of a
threshold are plain binomials: the threshold is chosen on the first half of the trainings and judged on the second.
"""

import numpy as np
from scipy.special import ndtri
from scipy.stats import beta

from tacit.core import rng
from tacit.errors import TacitError
from tacit.evidence import run_audit
from tacit.evidence.run_audit import SEEN, RunAudit, audited, claim_of, directions, others, score, set_up, watch
from tacit.experiments.build import Parts
from tacit.privacy.accounting.accountant import Profile
from tacit.privacy.accounting.gaussian import gaussian_epsilon
from tacit.privacy.accounting.risk import trade_off
from tacit.privacy.audit import audit

LEAST = 100


def audit_repeatedly(parts: Parts, runs: int, level: str | None = None, confidence: float = 0.95) -> RunAudit:
    """Trains `runs` times with one canary there or not, and tells from each training's releases which it was.

    Args:
        parts: of the run that is attacked; its data and rounds are used as they are.
        runs: how many trainings.
        level: the canary's; the first private level if left out.
        confidence: of the bounds.

    Raises:
        TacitError: too few trainings, or a plan that promises nothing.
    """
    if runs < LEAST:
        raise TacitError(f"{runs} trainings: give at least {LEAST}, or leave out --runs for the attack on a single one")
    parts, name = audited(parts, level)
    seed = parts.training.seed
    candidates = run_audit.make_canaries(parts.federation, run_audit.LEAST, seed)
    canary = candidates.first(planted=True)
    worlds = {coin: set_up(parts, candidates.first(coin), name) for coin in (True, False)}
    planted = rng.generator(seed, "coins").random(runs) < 0.5
    run, _ = watch(worlds[True], seed)
    along, net = directions(run, canary), others(run, parts.federation)
    scores = np.array(
        [score(watch(worlds[bool(coin)], seed + 1 + at)[1], along, net, None)[0] for at, coin in enumerate(planted)]
    )
    epsilon, delta, relation, deltas = claim_of(run, parts.privacy.accountant)
    plain = audit(scores[planted], scores[~planted], epsilon, delta, confidence).lower_bound
    misses, alarms, correct = error_rates(scores, planted, (1 - confidence) / 2)
    mu = gaussian_mu(misses, alarms)
    return RunAudit(
        plan=run.plan.name,
        method=type(run.engine.method).__name__,
        unit=run.plan.unit,
        relation=relation,
        claim=epsilon,
        delta=delta,
        lower_bound=plain,
        gaussian_lower_bound=gaussian_epsilon(1 / mu, delta) if mu > SEEN else 0.0,
        rejected=rejects(deltas, epsilon, misses, alarms),
        correct=correct,
        guesses=runs - runs // 2,
        canaries=1,
        confidence=confidence,
        path=run.engine.path,
        runs=runs,
    )


def gaussian_mu(misses: float, alarms: float) -> float:
    """The mu of the Gaussian curve through these error rates: no smaller one allows them."""
    return max(-float(ndtri(alarms)) - float(ndtri(misses)), 0.0)


def error_rates(scores: np.ndarray, planted: np.ndarray, error: float) -> tuple[float, float, int]:
    """Upper bounds of misses and of false alarms, each with probability 1 - `error`, and how many guesses were right.

    At the threshold that separates best in the first half; they are those of the second.
    """
    half = len(scores) // 2
    first, inside = scores[:half], planted[:half]
    errors = [np.mean(first[inside] <= at) + np.mean(first[~inside] > at) for at in np.sort(first)]
    threshold = np.sort(first)[int(np.argmin(errors))]
    guessed, truth = scores[half:] > threshold, planted[half:]
    misses, alarms = int((~guessed[truth]).sum()), int(guessed[~truth].sum())
    upper = [_upper(misses, int(truth.sum()), error), _upper(alarms, int((~truth).sum()), error)]
    return upper[0], upper[1], int((guessed == truth).sum())


def _upper(happened: int, trials: int, error: float) -> float:
    """Clopper and Pearson's upper confidence bound of a probability."""
    return 1.0 if happened >= trials else float(beta.ppf(1 - error, happened + 1, trials - happened))


def rejects(deltas: Profile, epsilon: float, misses: float, alarms: float) -> bool:
    """Whether error rates so small lie below the claim's own trade-off curve, on either side of it."""
    lines = np.linspace(0, max(2 * epsilon, 1.0), 2048)
    least = trade_off(lines, deltas(lines), np.array([alarms, misses]))
    return bool(misses < least[0] or alarms < least[1])
