"""The paper's own algorithm and calibration of noise (Lemma 4, Theorem 5), by its name: a claim, in no ledger.

It rests on Corollary 1, which says that the local dual is strongly convex with constant beta n / (2 lambda). It is not:
with |x| <= 1 the trace of X'X is at most n, so its least eigenvalue is at most 1, and the conjugate of the hinge is
linear. Corollary 3's sensitivity depends on the private alpha itself. What the same noise provably gives stands beside.

`PublishedMultitask` runs Algorithm 1 as it is printed, with b_t on alpha and p_t on u. It runs under the plan `Open`
alone: whoever reads its run's ledger finds no guarantee.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core.contract import Reply, Shared, Site, Tree
from tacit.errors import TacitError
from tacit.methods import Multitask
from tacit.privacy.accounting.accountant import answer
from tacit.privacy.mechanisms.noise import Seeded


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

    def provable_for_a_record(self, slack: float = 0.0) -> float:
        """Record-level epsilon (add/remove, PLD) of that noise, if messages were certified solutions of norm-one rows.

        Those of Algorithm 1 as printed are not: it centres a device's problem at its own alpha.
        """
        from dp_accounting import GaussianDpEvent

        sent = max(1, round(self.rounds * self.present))
        z = self.noise_of_message / (self.xi * (1 + slack))
        return answer({GaussianDpEvent(z): sent}, self.delta, "add/remove", "pld").epsilon

    @property
    def _first(self) -> float:
        return self.each_round / math.hypot(self.sampled, self.ratio)

    def _sigma(self, epsilon: float) -> float:
        return math.sqrt(2 * math.log(1.25 / self.delta)) / epsilon


@dataclass(frozen=True)
class PublishedMultitask(Multitask):
    """Algorithm 1, line by line, with the noise that Theorem 5 says gives (epsilon, delta). Nothing here proves it.

    |dalpha| of Corollary 3 is the device's own, as printed: the size of its noise tells of its data.
    """

    claimed: float = 8.0
    delta: float = 1e-3
    rounds: int = 40
    present: float = 1.0
    seed: int = 0

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        problem = self._problem(view, site.client)
        found, moved = problem.ascend(state["alpha"], site)  # line 4
        change = found - state["alpha"]
        said = self._said(float(view.extra["beta"]))
        rows = torch.tensor(self.sizes, dtype=moved.dtype)[site.client]
        key = torch.stack([site.round * 1_000_003 + self.seed, site.client]).long()
        alpha_noise, message_noise = (Seeded(key + 2**40 * at) for at in (1, 2))
        alpha_std, message_std = said.noise_of_alpha / rows, said.noise_of_message * change.norm()
        real = (torch.arange(len(change)) < rows).unsqueeze(1)
        alpha = state["alpha"] + self.xi * change  # line 5
        alpha = torch.where(real, alpha + alpha_std * _normal(alpha_noise, alpha), alpha)  # line 6
        return Reply(
            Shared({}, {"sums": self.xi * moved + message_std * _normal(message_noise, moved)}), {"alpha": alpha}
        )

    def _said(self, beta: float) -> AsPublished:
        """For a device of one row, whose alpha moves by one: both are multiplied in where they are known."""
        return AsPublished(
            self.claimed, self.delta, self.rounds, 1, self.strength, beta, xi=self.xi, present=self.present
        )


def _normal(noise: Seeded, like: Tensor) -> Tensor:
    return noise.normal(like.numel(), like.dtype).view_as(like)
