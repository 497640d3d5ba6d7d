"""Personal estimates for many small clients, privately: shrinkage in scikit-learn's manner."""

from tacit.estimation.bernoulli import BernoulliRates, beta_moments
from tacit.estimation.comparison import Comparison
from tacit.estimation.gaussian import GaussianMeans, suggest_radius

__all__ = ["BernoulliRates", "Comparison", "GaussianMeans", "beta_moments", "suggest_radius"]
