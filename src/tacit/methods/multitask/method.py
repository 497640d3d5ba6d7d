"""Multitask learning with a learned covariance of tasks (Hu et al. 2020, after MOCHA): a linear model for each device.

The server needs every device's own message, so it gathers them: allowed where the noise is added on the device.

What the options of multitask learning must satisfy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from tacit.core.checked import checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.core.dual_losses import LOSSES, with_intercept
from tacit.errors import TacitError
from tacit.methods.multitask.covariance import Kind, clustered, identity, learned, mean_regularised, safe_correction
from tacit.methods.multitask.finish import chosen_model
from tacit.methods.multitask.local_dual import Columns, LocalProblem
from tacit.methods.optimizers import check

_MOVING = ("learned", "low-rank", "clustered")
"""Covariances that are made of the models, after every `inner` rounds."""


def check_options(method: "Multitask") -> None:
    _one_of("loss", method.loss, tuple(LOSSES))
    _one_of("solver", method.solver, ("sdca", "certified", "gradient"))
    _one_of("start", method.start, ("identity", "mean"))
    if isinstance(method.covariance, str):
        _one_of("covariance", method.covariance, (*_MOVING, "identity", "mean"))
    if isinstance(method.strength, tuple):
        raise TacitError(f"multitask's strength is {method.strength}: give one number for all")
    for name in ("strength", "xi", "ridge", "lr", "intercept", "slack"):
        check(f"multitask's {name}", getattr(method, name), positive=True)
    check("multitask's momentum", method.momentum, below=1.0)
    if method.momentum and method.solver != "gradient":
        raise TacitError(
            f"multitask's momentum is {method.momentum}, and '{method.solver}' has none: use solver 'gradient'"
        )
    if method.folds and (method.folds < 2 or not method.finish or method.solver != "certified"):
        raise TacitError(f"multitask's folds are {method.folds}: give 5, with finish and solver 'certified', or 0")
    if method.solver == "certified" and LOSSES[method.loss].lipschitz > 1:
        raise TacitError(f"multitask's loss is '{method.loss}', whose slope has no bound: use 'hinge' or 'logistic'")
    if method.xi > 1:
        raise TacitError(f"multitask's xi must be at most 1, not {method.xi}")
    if not 0 < method.floor <= 1:
        raise TacitError(f"multitask's floor must lie in (0, 1], not {method.floor}: 0.05 is usual")
    for name in ("rank", "clusters"):
        if getattr(method, name) < 1:
            raise TacitError(f"multitask's {name} must be at least 1, not {getattr(method, name)}")
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


@checked
@dataclass(frozen=True)
class Multitask(Method):
    """min over W and Omega of sum_t sum_i loss(w_t x_ti, y_ti) + lambda tr(W Omega^-1 W'), tr Omega = 1 (1).

    A round is one pass of Algorithm 1's inner loop: each device improves its block of the dual and sends
    u_t = xi X_t dalpha_t; w_t = 1/(2 lambda) sum_s Omega_ts v_s, where v_s is the sum of what s has sent (6). After
    every `inner` rounds Omega is set by (3). Several classes are learned one against the rest, under one Omega.

    `solver` "certified" is the algorithm for the record plan: a device solves its block (7) around what it has sent,
    which is public, instead of around its own alpha, to a duality gap that is certified before anything leaves. One
    record then moves u_t by at most xi (1 + slack) times the plan's bound on a row (docs/proofs/certified-minimum.md).
    "gradient" follows private gradients of the primal instead, in the metric of Omega: its messages have the same
    meaning. `finish` lets a device solve its own block once more before it predicts, with what it knows of itself in
    place of what it has sent; with `folds` it chooses on its own rows how much of what it received it keeps, down to
    nothing: its local model. Nothing of that leaves.

    Args:
        loss: "hinge", "logistic" or "squared".
        strength: lambda, above 0.
        covariance: "learned", "low-rank", "clustered", "identity" (each device alone), "mean" (all near their mean), or
            Omega itself.
        ridge: of "mean" and "clustered", above 0.
        start: of "learned", "low-rank" and "clustered".
        inner: rounds between two updates of Omega.
        floor: the least eigenvalue of a learned Omega, as a share of the mean one.
        rank: of "low-rank": models are mixtures of so many.
        clusters: of "clustered": groups of devices that learn from one another.
        xi: the share of a dual step that is taken and sent, up to 1.
        beta: the bound on what devices do at once; None is the least that is safe.
        solver: "sdca", "certified" (for the record plan) or "gradient".
        slack: of "certified": what the certificate leaves open, as a share of a record.
        lr: with gradients.
        momentum: of the server, with gradients.
        finish: whether a device solves its block once more before it predicts.
        folds: of "finish" with "certified", by which a device chooses between what it received and its own; 0: none.
        intercept: the constant feature.
        sizes: rows of each device; known in a run.

    Raises:
        TacitError: a number outside its range, an unknown word, or options that have no effect together.

    Example:
        >>> import tacit
        >>> tacit.Multitask(loss="squared", strength=0.01).covariance
        'learned'
    """

    gather: ClassVar[bool] = True

    loss: str = "hinge"
    strength: float = 0.1  # lambda
    covariance: Kind | tuple[tuple[float, ...], ...] = "learned"
    ridge: float = 1.0  # of "mean"
    start: Literal["identity", "mean"] = "identity"  # of "learned"
    inner: int = 10
    floor: float = 0.05
    rank: int = 3  # of "low-rank"
    clusters: int = 3  # of "clustered"
    xi: float = 1.0
    beta: float | None = None  # None: the least that is safe for this Omega; the paper's is xi m, never less
    solver: Literal["sdca", "certified", "gradient"] = "sdca"
    slack: float = 0.04  # of "certified": what the certificate leaves open, as a share of a record
    lr: float = 1.0
    momentum: float = 0.0  # of the server, with gradients
    finish: bool = False
    folds: int = 0  # of "finish" with "certified": by which a device chooses between what it received and its own
    intercept: float = 1.0  # the constant feature; a small one spends little of a clipped message on the intercept
    sizes: tuple[int, ...] = field(default=(), metadata={"option": False})  # rows of each device, known in a run

    def __post_init__(self) -> None:
        check_options(self)

    def sized(self, sizes: Sequence[int]) -> "Multitask":
        given_covariance(self.covariance, len(sizes))
        return replace(self, sizes=tuple(int(n) for n in sizes))

    def init(self, params: Tree) -> Server:
        if not self.sizes:
            raise TacitError("Multitask does not know its devices: use it as the outermost method, in a run")
        columns, tasks = Columns.of(params, self.intercept), len(self.sizes)
        sums = columns.zeros.new_zeros(tasks, *columns.zeros.shape)
        omega = self._first(tasks, sums.dtype)
        speed = {"speed": sums} if self.momentum else {}
        return Server(self._view(columns, sums, omega, 1.0), {"rounds": torch.zeros((), dtype=torch.int64), **speed})

    def join(self, view: Shared, start: Tree) -> Tree:
        sums = view.extra["sums"]
        return {"alpha": sums.new_zeros(max(self.sizes), sums.shape[1])}

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        problem = self._problem(view, site.client)
        if self.solver == "gradient":
            return Reply(Shared({}, {"sums": problem.descend(site, self.lr * self.xi)}), state)
        if self.solver == "certified":
            alpha, sums = problem.solve(state["alpha"], site, self.slack)
            return Reply(Shared({}, {"sums": self.xi * (sums - problem.sent)}), {"alpha": alpha})
        alpha, u = problem.ascend(state["alpha"], site)  # steps 4 and 5
        u = self.xi * u
        still = {"sums": torch.zeros_like(u)}
        kept = site.guard(still, still, {"sums": u})["sums"]
        share = torch.where(u.norm() > 0, self.xi * kept.norm() / u.norm(), self.xi)
        fine = u.isfinite().all() & alpha.isfinite().all()
        moved = torch.where(fine, state["alpha"] + share * (alpha - state["alpha"]), state["alpha"])
        return Reply(Shared({}, {"sums": kept}), {"alpha": moved})

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        """`mean` has a row for each device, zero where nothing came."""
        rounds = server.memory["rounds"] + 1
        step, memory = mean.extra["sums"], {"rounds": rounds}
        if self.momentum:
            step = memory["speed"] = self.momentum * server.memory["speed"] + step
        sums = server.view.extra["sums"] + step
        omega = server.view.extra["covariance"]
        if self.covariance in _MOVING and int(rounds) % self.inner == 0:
            omega = self._related(self.weights(sums, omega).flatten(1))
        return Server(self._view(Columns.of(server.view.model, self.intercept), sums, omega, rate), memory)

    def adapt(self, view: Shared, state: Tree, site: Site) -> Tree:
        """The device's own model. One that the server has heard nothing of takes the mean of all the others."""
        problem = self._problem(view, site.client, alone=True)
        model = problem.w
        if self.finish and self.solver == "certified":
            return {"own": chosen_model(problem, site, self.folds)}
        if self.finish and self.solver == "sdca":
            model = problem.finished(state["alpha"], site)
        known = (view.extra["sums"][site.client] != 0).any()
        return {"own": torch.where(known, model, Columns.of(view.model, self.intercept).block(view.model))}

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return Columns.of(view.model, self.intercept).outputs(with_intercept(x, self.intercept) @ state["own"].T)

    def weights(self, sums: Tensor, omega: Tensor) -> Tensor:
        """w = 1/(2 lambda) (Omega kron I) v (6), one row a device."""
        return torch.tensordot(omega, sums, 1) / (2 * self.strength)

    def _problem(self, view: Shared, client: Tensor, alone: bool = False) -> LocalProblem:
        sums, omega = view.extra["sums"], view.extra["covariance"]
        row = omega[client]
        w = torch.tensordot(row, sums, 1) / (2 * self.strength)
        beta = 1.0 if alone else view.extra["beta"]
        q = beta * row[client] / (2 * self.strength)
        return LocalProblem(self.loss, w, q, sums[client], torch.tensor(self.sizes)[client], self.intercept)

    def _view(self, columns: Columns, sums: Tensor, omega: Tensor, rate: float) -> Shared:
        """What is broadcast; as a shared model, the mean of the devices that were heard of."""
        heard = (sums != 0).flatten(1).any(1).to(sums.dtype)
        average = torch.tensordot(heard, self.weights(sums, omega), 1) / heard.sum().clamp(min=1)
        beta = self.xi * safe_correction(omega, rate) if self.beta is None else self.beta
        return Shared(columns.leaves(average), {"sums": sums, "covariance": omega, "beta": sums.new_tensor(beta)})

    def _related(self, models: Tensor) -> Tensor:
        """The covariance that suits the models best, of its kind: post-processing of what was sent."""
        if self.covariance == "clustered":
            return clustered(models, self.clusters, self.ridge)
        return learned(models, self.floor, self.rank if self.covariance == "low-rank" else None)

    def _first(self, tasks: int, dtype: torch.dtype) -> Tensor:
        if not isinstance(self.covariance, str):
            return given_covariance(self.covariance, tasks).to(dtype)
        kind = self.start if self.covariance in _MOVING else self.covariance
        if kind == "mean":
            return mean_regularised(tasks, self.ridge, dtype)
        return identity(tasks, dtype)
