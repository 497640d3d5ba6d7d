"""Federated point estimation with any number of privacy levels, in closed form.

Client j wants phi_j = phi + p_j, p_j ~ N(0, tau^2). It knows an estimate of variance alpha^2 and sends it with noise.
The server averages the messages, and the client pulls its own estimate towards that average by Ditto's strength lambda.
Every error below is the expected squared error (the papers' Bayes risk is half of it).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tacit.errors import TacitError

Shares = Sequence[float]
"""The weight of each level's mean in the shared estimate; they add up to 1."""


@dataclass(frozen=True)
class Group:
    """The clients of one level. `noise` is the variance of the noise on their sum, (z S)^2; 0 without a guarantee."""

    clients: int
    noise: float = 0.0

    def __post_init__(self) -> None:
        if self.clients < 0:
            raise TacitError(f"a level cannot have {self.clients} clients; give 0 or more")
        require("the noise on a level's sum", self.noise)

    @property
    def gamma2(self) -> float:
        """Variance of the noise on the mean; 0 if nobody is there."""
        return self.noise / self.clients**2 if self.clients else 0.0

    @property
    def message_noise(self) -> float:
        """Variance of each client's part of that noise, N gamma^2; 0 if nobody is there."""
        return self.noise / self.clients if self.clients else 0.0


@dataclass(frozen=True)
class Menu:
    alpha2: float
    tau2: float
    groups: tuple[Group, ...]

    def __post_init__(self) -> None:
        require("alpha2", self.alpha2, positive=True)
        require("tau2", self.tau2)
        if not self.clients:
            raise TacitError("nobody is in any level; give at least one client")

    @property
    def clients(self) -> int:
        return sum(group.clients for group in self.groups)

    @property
    def sigma2(self) -> float:
        """Variance of a client's estimate around phi, sigma_c^2."""
        return self.alpha2 + self.tau2

    def move(self, source: int, target: int) -> "Menu":
        """One client changes its level; every level keeps its noise on the sum, hence its z and its epsilon."""
        counts = [group.clients for group in self.groups]
        counts[source] -= 1
        counts[target] += 1
        return replace(self, groups=tuple(Group(n, g.noise) for n, g in zip(counts, self.groups, strict=True)))


def precisions(menu: Menu) -> list[float]:
    """1 / variance of each level's mean; 0 if nobody is there."""
    return [group.clients / (menu.sigma2 + group.message_noise) for group in menu.groups]


def optimal_shares(menu: Menu) -> tuple[float, ...]:
    """Inverse variance: no other shares give the server a smaller error."""
    held = precisions(menu)
    return tuple(each / sum(held) for each in held)


def equal_shares(menu: Menu) -> tuple[float, ...]:
    """FedAvg: every client counts the same."""
    return tuple(group.clients / menu.clients for group in menu.groups)


def server_variance(menu: Menu, shares: Shares) -> float:
    check(menu, shares)
    held = [(share, each) for share, each in zip(shares, precisions(menu), strict=True) if share]
    return sum(share**2 / each for share, each in held)


def personal_mse(menu: Menu, shares: Shares, level: int, strength: float, *, knows_noise: bool = False) -> float:
    """Error of (own estimate + lambda * shared) / (1 + lambda), for lambda from 0 (alone) to infinity (shared).

    `knows_noise`: the client added its part of the noise itself and takes it out of what it received.
    """
    w, distance = _seen(menu, shares, level, knows_noise)
    pull = 1.0 if math.isinf(strength) else strength / (1 + strength)
    own = 1 - pull
    return own**2 * menu.alpha2 + 2 * own * pull * w * menu.alpha2 + pull**2 * distance


def best_strength(menu: Menu, shares: Shares, level: int, *, knows_noise: bool = False) -> float:
    """The lambda with the smallest personal error, exactly; infinity if the shared estimate alone is best."""
    w, distance = _seen(menu, shares, level, knows_noise)
    gain, loss = menu.alpha2 * (1 - w), distance - w * menu.alpha2
    if gain <= 1e-12 * menu.alpha2:  # the shared estimate holds nothing that the client does not know
        return 0.0
    return gain / loss if loss > 1e-15 * menu.alpha2 else math.inf


def best_mse(menu: Menu, shares: Shares, level: int, *, knows_noise: bool = False) -> float:
    strength = best_strength(menu, shares, level, knows_noise=knows_noise)
    return personal_mse(menu, shares, level, strength, knows_noise=knows_noise)


def bayes_mse(menu: Menu, level: int) -> float:
    """The least error any estimator can have that sees the client's own estimate and all other messages."""
    _present(menu, level)
    one = 1 / (menu.sigma2 + menu.groups[level].message_noise)
    others = sum(precisions(menu)) - one
    if others <= 1e-12 * one:
        return menu.alpha2
    return 1 / (1 / menu.alpha2 + 1 / (1 / others + menu.tau2))


def check(menu: Menu, shares: Shares) -> None:
    if len(shares) != len(menu.groups) or min(shares) < 0 or not math.isclose(sum(shares), 1):
        raise TacitError(f"shares must be one for each of {len(menu.groups)} levels and add up to 1, not {shares}")
    for share, group in zip(shares, menu.groups, strict=True):
        if share and not group.clients:
            raise TacitError(f"a level without clients cannot have the share {share:g}; give it 0")


def require(name: str, value: float, *, positive: bool = False) -> None:
    """A finite number of at least 0 (above 0), or an error that names it."""
    if math.isfinite(value) and value >= 0 and not (positive and value == 0):
        return
    raise TacitError(f"{name} must be {'above 0' if positive else 'at least 0'}, not {value}")


def _present(menu: Menu, level: int) -> None:
    if not menu.groups[level].clients:
        raise TacitError(f"level {level} has no clients, so that nobody's error can be told; choose another")


def _seen(menu: Menu, shares: Shares, level: int, knows_noise: bool) -> tuple[float, float]:
    """The client's own weight in the shared estimate, and that estimate's squared distance from phi_j."""
    _present(menu, level)
    group = menu.groups[level]
    w = shares[level] / group.clients
    removed = w**2 * group.message_noise if knows_noise else 0.0
    return w, server_variance(menu, shares) - removed + menu.tau2 * (1 - 2 * w)
