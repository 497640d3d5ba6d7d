"""The paper's own calibration of noise (Lemma 4, Theorem 5), by its name. A claim: no entry of a ledger comes of it.

It rests on Corollary 1, which says that the local dual is strongly convex with constant beta n / (2 lambda). It is not:
with |x| <= 1 the trace of X'X is at most n, so its least eigenvalue is at most 1, and the conjugate of the hinge is
linear. Corollary 3's sensitivity depends on the private alpha itself. What the same noise provably gives stands beside.
"""

import math
from dataclasses import dataclass

from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import answer


@dataclass(frozen=True)
class AsPublished:
    """Noise of a device that is said to give (epsilon, delta) over `rounds` rounds of which a share `present` is sent.

    `sampled` is q = local steps / n, `ratio` is r = eps_2 / eps_1, `alpha_norm` |dalpha| of Corollary 3.
    """

    epsilon: float
    delta: float
    rounds: int
    rows: int
    strength: float
    beta: float
    xi: float = 1.0
    alpha_norm: float = 1.0
    present: float = 1.0
    sampled: float = 1.0
    ratio: float = 1.0

    def __post_init__(self) -> None:
        for name in ("epsilon", "delta", "rounds", "rows", "strength", "beta", "present", "sampled", "ratio"):
            if not getattr(self, name) > 0:
                raise TacitError(f"{name} is {getattr(self, name)}: give a number above 0")

    @property
    def each_round(self) -> float:
        """Theorem 5: epsilon = (epsilon of a round) p sqrt(K)."""
        return self.epsilon / (self.present * math.sqrt(self.rounds))

    @property
    def noise_of_alpha(self) -> float:
        """Standard deviation of b_t: sigma_1 (Lemma 4) times the sensitivity of Corollary 2."""
        return self._sigma(self._first) * (8 * self.strength + self.beta) / (self.beta * self.rows)

    @property
    def noise_of_message(self) -> float:
        """Standard deviation of p_t: sigma_2 (Lemma 4) times the sensitivity of Corollary 3."""
        return self._sigma(self.ratio * self._first) * 2 * self.xi * self.alpha_norm

    def provable(self, bound: float | None = None) -> float:
        """Device-level epsilon (replace, PLD) of that noise on messages of norm at most `bound`; by default xi n."""
        from dp_accounting import GaussianDpEvent

        z = self.noise_of_message / (2 * (self.xi * self.rows if bound is None else bound))
        sent = max(1, round(self.rounds * self.present))
        return answer({GaussianDpEvent(z): sent}, self.delta, "replace", "pld").epsilon

    @property
    def _first(self) -> float:
        return self.each_round / math.hypot(self.sampled, self.ratio)

    def _sigma(self, epsilon: float) -> float:
        return math.sqrt(2 * math.log(1.25 / self.delta)) / epsilon
