"""What a program's first results are for: somebody else, who says in which forms they may be handed over.

The privacy room is that somebody. This room knows nothing of it: neither what becomes of a result nor by which rules.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor


def _as_it_is(leaf: Any) -> Tensor:
    return leaf


class Handover(NamedTuple):
    """The first `leaves` results. A pass may hand over a product of two tensors instead of a stored one, where it is
    taken: `product(left, right, shape)` stands for left' right of each client, in this shape."""

    leaves: int = 0
    takes: Callable[[Tensor, Tensor], bool] = lambda left, right: False
    product: Callable[[Tensor, Tensor, tuple[int, ...]], Any] = lambda left, right, shape: None
    stored: Callable[[Any], Tensor] = _as_it_is


NOTHING = Handover()
