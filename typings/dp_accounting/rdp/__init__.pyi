from collections.abc import Sequence
from typing import Any

import numpy as np
from dp_accounting import DpEvent, NeighboringRelation

class RdpAccountant:
    rdp: np.ndarray
    _rdp: np.ndarray

    def __init__(
        self, orders: Sequence[float] | None = ..., neighboring_relation: NeighboringRelation = ...
    ) -> None: ...
    def compose(self, event: DpEvent, count: int = ...) -> RdpAccountant: ...
    def get_epsilon(self, target_delta: float) -> float: ...

def __getattr__(name: str) -> Any: ...
