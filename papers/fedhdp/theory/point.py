"""Federated point estimation with clients that stay private or opt out: the papers' formulas (FedHDP's numbering).

Where a printed formula is not the exact one, its name ends in `as_published`, and the exact one stands beside it.
"""

import math
from dataclasses import dataclass, replace
from typing import Final, Literal

from papers.fedhdp.theory import multilevel as levels
from papers.fedhdp.theory.multilevel import Group, Menu, require
from tacit.errors import TacitError

PRIVATE: Final = 0
OPEN: Final = 1
"""Positions in the menu and in its shares."""

Hold = Literal["z", "message", "gamma2"]
"""What stays the same when the number of private clients changes: their z (their epsilon, with noise by the server),
the noise of each message (their epsilon, with local noise), or the noise of their mean."""


@dataclass(frozen=True)
class Problem:
    """N clients, N_p of them private; `gamma2` is the variance of the noise on the private clients' mean."""

    clients: int
    private: int
    alpha2: float
    tau2: float
    gamma2: float

    def __post_init__(self) -> None:
        if self.clients < 1 or not 0 <= self.private <= self.clients:
            raise TacitError(f"private must be between 0 and clients, not {self.private} of {self.clients}")
        require("alpha2", self.alpha2, positive=True)
        require("tau2", self.tau2)
        require("gamma2", self.gamma2)

    @property
    def opted_out(self) -> int:
        return self.clients - self.private

    @property
    def rho(self) -> float:
        """Share of clients that opted out, rho_np."""
        return self.opted_out / self.clients

    @property
    def sigma2(self) -> float:
        """sigma_c^2, the variance of a client's own estimate around phi."""
        return self.alpha2 + self.tau2

    @property
    def message_noise(self) -> float:
        """N_p gamma^2, each private message's part of the noise."""
        return self.private * self.gamma2

    @property
    def upsilon(self) -> float:
        """Y = tau^2 / alpha^2 (the papers' Upsilon^2)."""
        return self.tau2 / self.alpha2

    @property
    def capital_gamma(self) -> float:
        """G = N_p gamma^2 / alpha^2 (the papers' Gamma^2)."""
        return self.message_noise / self.alpha2

    @property
    def menu(self) -> Menu:
        private = Group(self.private, self.private**2 * self.gamma2)
        return Menu(self.alpha2, self.tau2, (private, Group(self.opted_out)))

    def with_private(self, private: int, hold: Hold = "z") -> "Problem":
        """As many private clients. With `hold="z"` the privacy of each is the same as before."""
        power = {"z": 2, "message": 1, "gamma2": 0}[hold]
        scale = (self.private / private) ** power if private else 1.0
        return replace(self, private=private, gamma2=self.gamma2 * scale)


def shares(problem: Problem, ratio: float) -> tuple[float, float]:
    """Weights of the private and the open mean, r N_p : N_np."""
    require("ratio", ratio)
    whole = problem.opted_out + ratio * problem.private
    if not whole:
        raise TacitError("with ratio 0 and nobody opted out no message is left; give a ratio above 0")
    return ratio * problem.private / whole, problem.opted_out / whole


def server_variance(problem: Problem, ratio: float) -> float:
    """sigma_s^2 for any ratio r."""
    return levels.server_variance(problem.menu, shares(problem, ratio))


def optimal_ratio(problem: Problem) -> float:
    """r* (Lemma 1): no ratio gives a smaller server variance."""
    return problem.sigma2 / (problem.sigma2 + problem.message_noise)


def optimal_variance(problem: Problem) -> float:
    """Eq. (11), sigma_s^2 at r*."""
    c, noise = problem.sigma2, problem.message_noise
    return c * (c + noise) / (c + problem.rho * noise) / problem.clients


def fedavg_variance(problem: Problem) -> float:
    """Eq. (12), sigma_s^2 at r = 1."""
    return (problem.sigma2 + (1 - problem.rho) * problem.message_noise) / problem.clients


def fedavg_gap(problem: Problem) -> float:
    """Eq. (13), what r = 1 loses against r*."""
    c, noise, rho = problem.sigma2, problem.message_noise, problem.rho
    return rho * (1 - rho) * noise**2 / (c + rho * noise) / problem.clients


def fedavg_gap_limit(problem: Problem) -> float:
    """Of eq. (13) for many clients with gamma^2 and rho held. (With z held, gamma^2 falls and the gap goes to 0.)"""
    return (1 - problem.rho) ** 2 * problem.gamma2 if problem.rho else 0.0


def dp_fedavg_variance(problem: Problem) -> float:
    """Everybody private, the server adding the noise once, at the same z: then only N_p gamma / N is left of it.

    The same as `fedavg_variance`, so DP-FedAvg's gap is eq. (13).
    """
    noise_of_sum = problem.private**2 * problem.gamma2
    return problem.sigma2 / problem.clients + noise_of_sum / problem.clients**2


def dp_fedavg_variance_as_published(problem: Problem) -> float:
    """Everybody private, each message keeping the noise N_p gamma^2 that it had among N_p: more than z asks for."""
    return (problem.sigma2 + problem.message_noise) / problem.clients


def dp_fedavg_gap_as_published(problem: Problem) -> float:
    """Eq. (14)."""
    c, noise, rho = problem.sigma2, problem.message_noise, problem.rho
    return noise * rho * (c + noise) / (c + rho * noise) / problem.clients


def dp_fedavg_gap_limit_as_published(problem: Problem) -> float:
    """Of eq. (14) for many clients with gamma^2 and rho held."""
    return (1 - problem.rho) * problem.gamma2 if problem.rho else 0.0


def strength_open(problem: Problem) -> float:
    """Eq. (15), lambda_np* = 1 / Y at r*: exact. Infinity when all clients want the same point."""
    return _ratio(1.0, problem.upsilon)


def strength_private_as_published(problem: Problem) -> float:
    """Eq. (16), lambda_p* at r*: exact for a client that takes its own noise out of what it received, else too big."""
    return _strength(problem, problem.clients)


def strength_private(problem: Problem) -> float:
    """The exact lambda_p* at r* for a client that does not know its noise: eq. (16) with N - 1 for N."""
    return _strength(problem, problem.clients - 1)


def personal_mse(
    problem: Problem, *, private: bool, strength: float, ratio: float | None = None, knows_noise: bool = False
) -> float:
    """Of a private or an open client, for any lambda and r (None: r*)."""
    given = shares(problem, optimal_ratio(problem) if ratio is None else ratio)
    return levels.personal_mse(problem.menu, given, _level(private), strength, knows_noise=knows_noise)


def best_strength(problem: Problem, *, private: bool, ratio: float | None = None, knows_noise: bool = False) -> float:
    """The exact minimiser of `personal_mse` over lambda."""
    given = shares(problem, optimal_ratio(problem) if ratio is None else ratio)
    return levels.best_strength(problem.menu, given, _level(private), knows_noise=knows_noise)


def best_mse(problem: Problem, *, private: bool, ratio: float | None = None, knows_noise: bool = False) -> float:
    given = shares(problem, optimal_ratio(problem) if ratio is None else ratio)
    return levels.best_mse(problem.menu, given, _level(private), knows_noise=knows_noise)


def bayes_mse(problem: Problem, *, private: bool) -> float:
    """The least any estimator can reach that sees the client's own estimate and the others' messages."""
    return levels.bayes_mse(problem.menu, _level(private))


def two_level_ratio(sigma2: float, first: Group, second: Group) -> float:
    """r* of two private levels: how much a client of the second counts against one of the first."""
    return (sigma2 + first.message_noise) / (sigma2 + second.message_noise)


def _level(private: bool) -> int:
    return PRIVATE if private else OPEN


def _strength(problem: Problem, n: int) -> float:
    y, g, opted_out = problem.upsilon, problem.capital_gamma, problem.opted_out
    above = n + n * y + opted_out * g
    return _ratio(above, n * y * (y + 1) + (opted_out + 1) * y * g + g)


def _ratio(above: float, below: float) -> float:
    return above / below if below else math.inf
