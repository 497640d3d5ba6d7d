"""What the options of multitask learning must satisfy."""

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.methods.multitask.dual_losses import LOSSES
from tacit.methods.optimizers import check

if TYPE_CHECKING:
    from tacit.methods.multitask.method import Multitask


def check_options(method: "Multitask") -> None:
    _one_of("loss", method.loss, tuple(LOSSES))
    _one_of("solver", method.solver, ("sdca", "gradient"))
    _one_of("start", method.start, ("identity", "mean"))
    if isinstance(method.covariance, str):
        _one_of("covariance", method.covariance, ("learned", "identity", "mean"))
    if isinstance(method.strength, tuple):
        raise TacitError(f"multitask's strength is {method.strength}: give one number for all")
    for name in ("strength", "xi", "ridge", "lr", "intercept"):
        check(f"multitask's {name}", getattr(method, name), positive=True)
    check("multitask's momentum", method.momentum, below=1.0)
    if method.momentum and method.solver == "sdca":
        raise TacitError(f"multitask's momentum is {method.momentum}, and 'sdca' has none: use solver 'gradient'")
    if method.xi > 1:
        raise TacitError(f"multitask's xi must be at most 1, not {method.xi}")
    if not 0 < method.floor <= 1:
        raise TacitError(f"multitask's floor must lie in (0, 1], not {method.floor}: 0.05 is usual")
    if method.inner < 1:
        raise TacitError(f"multitask's inner must be at least 1 round, not {method.inner}")
    if method.beta is not None:
        check("multitask's beta", method.beta, positive=True)
    if method.solver == "gradient" and method.loss == "hinge":
        raise TacitError("multitask's loss is 'hinge', which has a corner: use 'logistic' or 'squared' with gradients")


def _one_of(name: str, value: Any, known: tuple[str, ...]) -> None:
    if value not in known:
        raise TacitError(f"multitask's {name} is {value!r}: use one of {', '.join(known)}")


def given_covariance(given: Any, tasks: int) -> Tensor:
    """A user's own covariance, checked: square, symmetric, positive definite, scaled to trace one."""
    if isinstance(given, str):
        return torch.zeros(0, 0)
    omega = torch.tensor(given, dtype=torch.float64)
    if omega.shape != (tasks, tasks):
        raise TacitError(
            f"the covariance has shape {tuple(omega.shape)} and there are {tasks} devices: give one row each"
        )
    if not torch.allclose(omega, omega.T) or float(torch.linalg.eigvalsh(omega)[0]) <= 0:
        raise TacitError("the covariance is not symmetric and positive definite: add a ridge to its diagonal")
    return omega / omega.trace()
