"""Personal linear models that learn from one another, by a covariance of tasks that is learned, too."""

from tacit.estimation.multitask.models import MultitaskModels, Sharing
from tacit.estimation.multitask.objective import Objective, objective

__all__ = ["MultitaskModels", "Objective", "Sharing", "objective"]
