"""Personal estimates for many small clients, privately: shrinkage in scikit-learn's manner.

Names are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit.estimation.bernoulli import BernoulliRates, beta_moments
    from tacit.estimation.comparison import Comparison
    from tacit.estimation.gaussian import GaussianMeans, suggest_radius
    from tacit.estimation.logistic import LogisticRegressions
    from tacit.estimation.mixture import MixtureMeans, lemma_radius
    from tacit.estimation.mixture_prior import MixturePriorRegressions
    from tacit.estimation.regression import LinearRegressions

_HOME = {
    "BernoulliRates": "bernoulli",
    "Comparison": "comparison",
    "GaussianMeans": "gaussian",
    "LinearRegressions": "regression",
    "LogisticRegressions": "logistic",
    "MixtureMeans": "mixture",
    "MixturePriorRegressions": "mixture_prior",
    "beta_moments": "bernoulli",
    "lemma_radius": "mixture",
    "suggest_radius": "gaussian",
}

__all__ = [
    "BernoulliRates",
    "Comparison",
    "GaussianMeans",
    "LinearRegressions",
    "LogisticRegressions",
    "MixtureMeans",
    "MixturePriorRegressions",
    "beta_moments",
    "lemma_radius",
    "suggest_radius",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tacit.estimation' has no attribute '{name}'")
    return getattr(import_module(f"tacit.estimation.{_HOME[name]}"), name)
