from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

class DpEvent: ...

@dataclass(frozen=True)
class NoOpDpEvent(DpEvent): ...

@dataclass(frozen=True)
class NonPrivateDpEvent(DpEvent): ...

@dataclass(frozen=True)
class RandomizedResponseDpEvent(DpEvent):
    noise_parameter: float
    num_buckets: int

@dataclass(frozen=True)
class GaussianDpEvent(DpEvent):
    noise_multiplier: float

@dataclass(frozen=True)
class LaplaceDpEvent(DpEvent):
    noise_multiplier: float

@dataclass(frozen=True)
class SelfComposedDpEvent(DpEvent):
    event: DpEvent
    count: int

@dataclass(frozen=True)
class ComposedDpEvent(DpEvent):
    events: Sequence[DpEvent]

@dataclass(frozen=True)
class PoissonSampledDpEvent(DpEvent):
    sampling_probability: float
    event: DpEvent

@dataclass(frozen=True)
class SampledWithoutReplacementDpEvent(DpEvent):
    source_dataset_size: int
    sample_size: int
    event: DpEvent

@dataclass(frozen=True)
class RepeatAndSelectDpEvent(DpEvent):
    event: DpEvent
    mean: float
    shape: float

@dataclass(frozen=True)
class ZCDpEvent(DpEvent):
    rho: float
    xi: float = ...

def __getattr__(name: str) -> Any: ...
