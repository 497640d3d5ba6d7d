"""Personal estimates for many small clients, privately: shrinkage in scikit-learn's manner."""

from tacit.estimation.bernoulli import BernoulliRates, beta_moments
from tacit.estimation.comparison import Comparison
from tacit.estimation.gaussian import GaussianMeans, suggest_radius
from tacit.estimation.mixture import MixtureMeans, lemma_radius

__all__ = [
    "BernoulliRates",
    "Comparison",
    "GaussianMeans",
    "MixtureMeans",
    "beta_moments",
    "lemma_radius",
    "suggest_radius",
]
