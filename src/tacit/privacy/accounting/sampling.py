"""What an accountant must know of whoever draws clients and rows: the objects that really draw state it."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from tacit.privacy.accounting.accountant import Relation


@runtime_checkable
class Sampler(Protocol):
    """Draws a round's clients."""

    @property
    def relation(self) -> Relation: ...

    @property
    def sensitivity(self) -> float:
        """Of a sum of contributions of norm at most 1, under that relation."""
        ...

    def rate(self, population: int) -> float:
        """Expected share of the clients in a round."""
        ...

    def most(self, population: int, rounds: int) -> int | None:
        """How often a client is asked in so many rounds, at most; None if chance alone limits it.

        Where there is such a number, participations are charged to the client and nothing else is. A sampler that could
        not keep to its own number for so many rounds refuses.
        """
        ...

    def draw(self, seed: int, round: int, eligible: np.ndarray) -> np.ndarray: ...

    def event(self, inner: Any, population: int) -> Any:
        """The event of a mechanism `inner` applied to the clients drawn."""
        ...


class BatchRule(Protocol):
    """Draws a client's rows for every local step."""

    def steps(self, n: int) -> int: ...

    def expected(self, n: int) -> float:
        """Expected batch size of a client with `n` rows."""
        ...

    def event(self, inner: Any, n: int) -> Any:
        """The event of a mechanism `inner` applied to one step's rows; refuses where no accountant models the draw."""
        ...

    def draw(
        self, seed: int, round: int, client: int, n: int, purpose: str = "batches"
    ) -> tuple[np.ndarray, np.ndarray]: ...
