from typing import Any

from dp_accounting import NeighboringRelation

class PrivacyLossDistribution:
    def get_delta_for_epsilon(self, epsilon: Any) -> Any: ...
    def get_epsilon_for_delta(self, delta: float) -> float: ...
    def compose(self, pld: PrivacyLossDistribution, tail_mass_truncation: float = ...) -> PrivacyLossDistribution: ...
    def self_compose(self, num_times: int, tail_mass_truncation: float = ...) -> PrivacyLossDistribution: ...

def from_gaussian_mechanism(
    standard_deviation: float,
    *,
    sensitivity: float = ...,
    value_discretization_interval: float = ...,
    sampling_prob: float = ...,
    pessimistic_estimate: bool = ...,
    use_connect_dots: bool = ...,
    neighboring_relation: NeighboringRelation = ...,
) -> PrivacyLossDistribution: ...
def from_laplace_mechanism(
    parameter: float, *, sensitivity: float = ..., value_discretization_interval: float = ...
) -> PrivacyLossDistribution: ...
def from_randomized_response(
    noise_parameter: float,
    num_buckets: int,
    *,
    value_discretization_interval: float = ...,
    neighboring_relation: NeighboringRelation = ...,
) -> PrivacyLossDistribution: ...
def __getattr__(name: str) -> Any: ...
