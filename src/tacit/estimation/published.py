"""Equation (6) and its private form to the letter: leave-one-out moments, the variance of what was seen taken for the
variance of the prior. Kept to compare with; `moments="debiased"` is what to use."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit.estimation.messages import Domain, Exact, Message, source

Array = NDArray[np.float64]


class Published(NamedTuple):
    estimates: Array
    pull: Array  # 1 - a_i
    centre: float
    variance: float


def published_rates(rates: Array, trials: Array, message: Message, seed: int | None) -> Published:
    """Each client's weight a_i = n / (mu (1 - mu) / s^2 - 1 + n) from the others' messages; private: without the -1.

    Where s^2 or mu (1 - mu) is 0, or noise makes the weight leave [0, 1], it is brought there.
    """
    sent = message.send(rates[:, None], Domain(0.5, 0.5), source(seed, "message", 0))[:, 0]
    m, mean = len(sent), sent.mean()
    others = (sent.sum() - sent) / (m - 1)
    # X_l - mu_l = m / (m - 1) (X_l - mean), for the leave-one-out mean mu_l
    around = np.square((sent - mean) * m / (m - 1))
    variance = (around.sum() - around) / (m - 2)
    room = others * (1 - others)
    ratio = np.divide(room, variance, out=np.full(m, np.inf), where=variance > 0)
    weight = trials / (np.maximum(ratio - isinstance(message, Exact), 0.0) + trials)
    estimates = weight * rates + (1 - weight) * others
    return Published(estimates, 1 - weight, float(mean), float(variance.mean()))
