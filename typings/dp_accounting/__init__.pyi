from enum import Enum
from typing import Any

from dp_accounting.dp_event import ComposedDpEvent as ComposedDpEvent
from dp_accounting.dp_event import DpEvent as DpEvent
from dp_accounting.dp_event import GaussianDpEvent as GaussianDpEvent
from dp_accounting.dp_event import LaplaceDpEvent as LaplaceDpEvent
from dp_accounting.dp_event import NonPrivateDpEvent as NonPrivateDpEvent
from dp_accounting.dp_event import NoOpDpEvent as NoOpDpEvent
from dp_accounting.dp_event import PoissonSampledDpEvent as PoissonSampledDpEvent
from dp_accounting.dp_event import RandomizedResponseDpEvent as RandomizedResponseDpEvent
from dp_accounting.dp_event import SampledWithoutReplacementDpEvent as SampledWithoutReplacementDpEvent
from dp_accounting.dp_event import SelfComposedDpEvent as SelfComposedDpEvent
from dp_accounting.dp_event import ZCDpEvent as ZCDpEvent

class NeighboringRelation(Enum):
    ADD_OR_REMOVE_ONE = 1
    REPLACE_ONE = 2
    REPLACE_SPECIAL = 3

class UnsupportedEventError(Exception): ...

def __getattr__(name: str) -> Any: ...
