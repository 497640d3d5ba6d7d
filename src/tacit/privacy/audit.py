"""Attacks that try to disprove a stated epsilon.

An attack gives a score to each of many outputs, made with a canary and without. A threshold on the score is a test of
which world it was; its error rates, with confidence, imply a lower bound of epsilon. A bound above the claim disproves
the claim; a bound below it proves nothing.
"""

from dataclasses import dataclass

import numpy as np

from tacit.errors import TacitError


@dataclass(frozen=True)
class Verdict:
    lower_bound: float  # epsilon is at least this, with the stated confidence
    claim: float
    confidence: float

    @property
    def disproved(self) -> bool:
        return self.lower_bound > self.claim


def audit(
    with_canary: np.ndarray, without: np.ndarray, claim: float, delta: float, confidence: float = 0.999
) -> Verdict:
    """A lower bound of epsilon from scores in both worlds, for the best threshold in both directions.

    The thresholds are chosen on the first half of the scores and judged on the second, so choosing costs nothing.
    """
    if min(len(with_canary), len(without)) < 20:
        raise TacitError(f"an audit needs at least 20 scores in each world, not {len(with_canary)} and {len(without)}")
    best = 0.0
    for a, b in ((with_canary, without), (without, with_canary)):
        for sign in (1.0, -1.0):
            best = max(best, _bound(sign * a, sign * b, delta, 1 - (1 - confidence) / 8))
    return Verdict(best, claim, confidence)


def _bound(likely: np.ndarray, unlikely: np.ndarray, delta: float, confidence: float) -> float:
    """log((P[likely > t] - delta) / P[unlikely > t]), pessimistic in both probabilities."""
    (choose_a, judge_a), (choose_b, judge_b) = (np.array_split(x, 2) for x in (likely, unlikely))
    candidates = np.quantile(np.concatenate([choose_a, choose_b]), np.linspace(0.01, 0.99, 99))
    guesses = [_ratio(choose_a, choose_b, t, delta, confidence) for t in candidates]
    return _ratio(judge_a, judge_b, candidates[int(np.argmax(guesses))], delta, confidence)


def _ratio(likely: np.ndarray, unlikely: np.ndarray, threshold: float, delta: float, confidence: float) -> float:
    hit = _lower(int((likely > threshold).sum()), len(likely), confidence)
    false = 1 - _lower(int((unlikely <= threshold).sum()), len(unlikely), confidence)
    return float(np.log((hit - delta) / false)) if hit > delta and false > 0 else 0.0


def _lower(successes: int, trials: int, confidence: float) -> float:
    """Clopper and Pearson's lower confidence bound of a probability."""
    from scipy.stats import beta

    return float(beta.ppf(1 - confidence, successes, trials - successes + 1)) if successes else 0.0
