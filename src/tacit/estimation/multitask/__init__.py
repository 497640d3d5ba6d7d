"""Personal linear models that learn from one another, by a covariance of tasks that is learned, too."""

from tacit.estimation.multitask.models import MultitaskModels
from tacit.estimation.multitask.objective import Objective, objective
from tacit.estimation.multitask.sharing import Sharing

__all__ = ["MultitaskModels", "Objective", "Sharing", "objective"]
