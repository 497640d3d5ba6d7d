"""How fast Algorithm 1 converges: Theorems 3 and 4 as printed, as they follow from Lemma 2, and with noise.

**As printed.** Lemma 3 has a factor 1 - xi that Lemma 2 has not, and its proof is not in the text: at xi = 1, where
devices add their whole steps, Theorems 3 and 4 ask for infinitely many rounds. Theorem 4 has n^2 in its denominators,
which belong to a mean of losses where (1) has their sum, and multiplies by (1 - xi)(1 - Theta) in k_0 where its source
(CoCoA+, Theorem 8) divides.

**As it follows.** Lemmas 1 and 2 need no noise and no such factor. With d_k = D(alpha_k) - D*, G >= d and
rho = xi (1 - Theta),

    E d_{k+1} <= (1 - rho s) d_k - rho sum_t J_t   for every s in (0, 1].                                      (10)

Losses that are 1/mu-smooth: sum_t J_t >= 0 for s <= mu / (mu + beta m_1 / (2 lambda)), m_1 = max_t Omega_tt |X_t|^2
(the largest eigenvalue), so that d_k falls by 1 - rho s a round. Losses of slope L: |u - alpha| <= 2 L for every row
(L where alpha and u have one sign, as for the hinge), so that -sum_t J_t <= s^2 C with
C = (reach L)^2 beta / (4 lambda) sum_t Omega_tt |X_t|^2 n_t, and the best s of a round is d / (2 C), at most 1.

**With noise.** Noise on alpha leaves the interval on which the hinge's conjugate is finite: D(alpha) is infinite after
the first noisy round, so that no bound of D can hold for the private algorithm as printed. For devices that solve their
block around what they have *sent* (`solver = "certified"`) there is one. Let h_t(s) be the least sum_i loss*(-a_i) with
X_t a = s, M = Omega / (2 lambda), and Q = diag(q_t), q_t = beta Omega_tt / (2 lambda). A device's exact answer is

    T(v)_t = argmin_s h_t(s) + ((M v)_t - q_t v_t) s + q_t |s|^2 / 2,   T = prox of h in the metric Q, of v - Q^-1 M v.

*Claim.* With v* the optimum, present a device's probability of taking part, e_t its error and p_t its noise of mean
zero and standard deviation sigma in each of d numbers, B_k = E |v_k - v*|^2_Q satisfies

    B_{k+1} <= (1 - present) B_k + present [((1 - xi + xi c) sqrt(B_k) + xi E)^2 + xi^2 sigma^2 d sum_t q_t],
    c = (1 - l / beta) / (1 + kappa),   E^2 = sum_t q_t |e_t|^2,

where l is the least eigenvalue of Omega's correlation, beta at least its largest, and kappa = min_t mu / (|X_t|^2 q_t)
for 1/mu-smooth losses, else 0.

*Proof.* v* = T(v*), by the optimality of v*. Q^-1/2 M Q^-1/2 is the correlation divided by beta, with eigenvalues
between l / beta and 1: v -> v - Q^-1 M v is Lipschitz with 1 - l / beta in the metric Q. h_t is mu / |X_t|^2-strongly
convex, because its conjugate, a sum of losses of linear functions, is |X_t|^2 / mu-smooth: the prox is Lipschitz with 1
/ (1 + kappa). So |T v - v*|_Q <= c |v - v*|_Q. Who takes part moves to v_t + xi (T(v)_t + e_t + p_t - v_t), the others
stay, and |.|^2_Q is a sum over devices: take the expectation over who takes part and over p, whose products with the
rest vanish; then |a + b| <= |a| + |b|, and E sqrt(.) <= sqrt(E .). []

c < 1 whenever Omega is positive definite, at xi = 1 and for the hinge, too; the noise leaves a floor of about
sigma^2 d sum_t q_t / (1 - c^2). lambda tr((W - W*) Omega^-1 (W - W*)') <= |v - v*|^2_Q / 2.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

import torch

from papers.multitask.blocks import Blocks
from tacit.methods.multitask.covariance import correlation


@dataclass(frozen=True)
class Constants:
    """What the theorems are made of, for one problem. `smooth` is mu; 0 for a loss with a corner.

    `reach`: how far apart alpha and u can be, in slopes L = 1; 1 where both have one sign.
    """

    xi: float
    theta: float  # Theta = p_max + (1 - p_max) Theta_max
    beta: float
    strength: float
    rows: tuple[int, ...]
    weights: tuple[float, ...]  # Omega_tt |X_t|^2
    smooth: float = 0.0
    reach: float = 1.0

    @property
    def step(self) -> float:
        """s of a smooth loss: the largest for which every J_t is at least 0."""
        return self.smooth / (self.smooth + self.beta * max(self.weights) / (2 * self.strength))

    @property
    def corner(self) -> float:
        """C of a loss with a corner."""
        total = sum(w * n for w, n in zip(self.weights, self.rows, strict=True))
        return self.reach**2 * self.beta / (4 * self.strength) * total

    @property
    def rho(self) -> float:
        return self.xi * (1 - self.theta)


def printed(about: Constants, rounds: int) -> list[float]:
    """Theorem 3's (16): n exp(-(1 - xi) xi (1 - Theta) s k), after k = 0, 1, ... rounds. Constant at xi = 1."""
    n, rate = sum(about.rows), (1 - about.xi) * about.rho * about.step
    return [n * math.exp(-rate * k) for k in range(rounds + 1)]


def printed_rounds(about: Constants, gap: float) -> float:
    """Theorem 4: rounds after which the averaged dual is said to be within `gap` of the optimum; infinite at xi = 1."""
    share, n, m = (1 - about.xi) * (1 - about.theta), sum(about.rows), len(about.rows)
    if not share:
        return math.inf
    size = m * sum(each**2 for each in about.rows) / (about.strength * n**2)  # L = 1
    k0 = max(0, math.ceil(share * math.log(n / (size / 2))))
    start = k0 + math.ceil(2 / share * (4 * size / gap - 1))
    return max(start, k0) + math.ceil(1 / share * max(1.0, 2 * size / gap))


def followed(about: Constants, gap: float, rounds: int) -> list[float]:
    """What Lemma 2 gives of E D(alpha_k) - D*, from `gap` at the start, without noise."""
    return list(_followed(about, gap, rounds))


def _followed(about: Constants, gap: float, rounds: int) -> Iterator[float]:
    yield gap
    for _ in repeat(None, rounds):
        if about.smooth:
            gap *= 1 - about.rho * about.step
        elif about.corner > 0:
            s = min(1.0, gap / (2 * about.corner))
            gap = (1 - about.rho * s) * gap + about.rho * s**2 * about.corner
        yield gap


@dataclass(frozen=True)
class Noisy:
    """What the bound with noise is made of."""

    contraction: float  # c
    curvatures: tuple[float, ...]  # q_t
    noise: float  # sigma, of each number of a message
    numbers: int  # d
    error: float = 0.0  # |e_t|, the same for all
    xi: float = 1.0
    present: float = 1.0

    @property
    def each_round(self) -> float:
        return self.xi**2 * self.noise**2 * self.numbers * sum(self.curvatures)

    def after(self, distance: float) -> float:
        """The bound of E |v - v*|^2_Q one round later."""
        errors = self.xi * self.error * math.sqrt(sum(self.curvatures))
        moved = ((1 - self.xi + self.xi * self.contraction) * math.sqrt(distance) + errors) ** 2 + self.each_round
        return (1 - self.present) * distance + self.present * moved

    def over(self, distance: float, rounds: int) -> list[float]:
        """From `distance` at the start, after 0, 1, ... rounds."""
        found = [distance]
        for _ in range(rounds):
            found.append(self.after(found[-1]))
        return found


def contraction(of: Blocks, beta: float, smooth: float = 0.0) -> float:
    """c of `Noisy`, for a safe beta."""
    least = float(torch.linalg.eigvalsh(correlation(of.omega))[0])
    q = beta * of.omega.diagonal() / (2 * of.strength)
    kappa = float((smooth / (of.tops * q)).min())
    return (1 - least / beta) / (1 + kappa)
