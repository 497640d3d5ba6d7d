"""Personal linear models that learn from one another, by a covariance of tasks that is learned, too."""

from papers.multitask.published import AsPublished
from tacit.estimation.multitask.models import MultitaskModels
from tacit.estimation.multitask.objective import Objective, objective
from tacit.estimation.multitask.sharing import Sharing

__all__ = ["AsPublished", "MultitaskModels", "Objective", "Sharing", "objective"]
