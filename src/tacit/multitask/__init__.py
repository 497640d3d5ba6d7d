"""Personal linear models that learn from one another, by a covariance of tasks that is learned, too."""

from tacit.multitask.models import MultitaskModels
from tacit.multitask.objective import Objective, objective
from tacit.multitask.published import AsPublished
from tacit.multitask.sharing import Sharing

__all__ = ["AsPublished", "MultitaskModels", "Objective", "Sharing", "objective"]
