"""Devices that drop out and devices that do less: drawn for each device and round, from public coins alone.

Both draws depend on (seed, round, device) and on nothing else: not on data, on who else is asked, or on chunks.
"""

from dataclasses import dataclass

import numpy as np

from tacit.core.checked import checked
from tacit.core.rng import generator
from tacit.data.validate import proportion
from tacit.errors import TacitError


@checked
@dataclass(frozen=True)
class Availability:
    """Devices that drop out or do less. Both are drawn from public coins alone, never from data.

    Args:
        drop: the probability that a device that was asked sends nothing in a round, spends nothing, and rejoins.
        variability: (tau) a device takes between (1 - tau) and all of its local steps, uniformly drawn anew each round.
        even_work: all devices count from the fewest steps that any of them has, as in Hu et al. 2020.

    Raises:
        TacitError: a share outside of 0 to 1, or a drop of 1.

    >>> import tacit
    >>> tacit.Availability(drop=0.1).alike
    False
    """

    drop: float = 0.0
    variability: float = 0.0
    even_work: bool = False

    def __post_init__(self) -> None:
        proportion(self.drop, "drop")
        if self.drop == 1:
            raise TacitError("drop is 1, so every device would be dropped in every round: give less than 1")
        proportion(self.variability, "variability")

    @property
    def alike(self) -> bool:
        """Whether every device does all its work in every round."""
        return self == Availability()

    def present(self, seed: int, round: int, clients: np.ndarray, population: int) -> np.ndarray:
        """Those of `clients` that are not dropped in this round."""
        if not self.drop:
            return clients
        return clients[generator(seed, "drop", round).random(population)[clients] >= self.drop]

    def work(self, seed: int, round: int, clients: np.ndarray, steps: np.ndarray) -> np.ndarray:
        """How many local steps each of `clients` takes; `steps` is what each client of the population could."""
        most = np.full(len(clients), steps.min()) if self.even_work else steps[clients]
        if not self.variability:
            return most
        least = np.ceil((1 - self.variability) * most - 1e-9).astype(np.int64)
        drawn = generator(seed, "work", round).random(len(steps))[clients]
        return least + np.floor(drawn * (most - least + 1)).astype(np.int64)
