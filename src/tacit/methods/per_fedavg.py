"""Per-FedAvg (Fallah et al. 2020): a shared start from which a few steps of a client's own lead to a good model."""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import LocalSgd, ServerOptimizer, ServerSgd, check, plain

Hessian = Literal["first-order", "hessian-free"]
_DELTA = 1e-3  # of the difference quotient, as a length


@checked
@dataclass(frozen=True)
class PerFedAvg(Method):
    """w <- w - beta (I - alpha H(w)) grad f(w - alpha grad f(w)), eq. (11): H dropped ("first-order", FO) or by a
    difference of two gradients ("hessian-free", HF, eq. (14)).

    `local` has beta, `inner` alpha. The inner gradient is of the batch before the outer one (the first step has only
    its own). A client predicts after steps of `inner` on its own training data; they are thrown away afterwards.

    Args:
        local: of w: beta.
        inner: alpha, of the step before a client predicts; 0 or more. 0 is FedAvg.
        hessian: "first-order", or "hessian-free".
        optimizer: the server's step on the mean update; by default the mean itself.

    Raises:
        TacitError: a negative `inner`, or a momentum.

    Example:
        >>> import tacit
        >>> tacit.PerFedAvg(inner=0.05, hessian="hessian-free").inner
        0.05
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    inner: float = 0.01
    hessian: Hessian = "first-order"
    optimizer: ServerOptimizer = field(default_factory=ServerSgd)

    def __post_init__(self) -> None:
        plain("Per-FedAvg", self.local)
        check("inner", self.inner)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params), self.optimizer.start(params))

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        w = view.model
        for step in range(site.steps):
            gradient = self._meta_gradient(w, site, step)
            moved = site.guard(view.model, w, self.local.step(w, gradient, site.round))
            w = site.advance(step, moved, w)
        return Reply(Shared(tree.sub(w, view.model)), state)

    def _meta_gradient(self, w: Tree, site: Site, step: int) -> Tree:
        if not self.inner:
            return site.private_grad(w, step)
        before = max(step - 1, 0)
        tuned = tree.axpy(-self.inner, site.private_grad(w, before), w)
        outer = site.private_grad(tuned, step)
        if self.hessian == "first-order":
            return outer
        unit = tree.scale(outer, _DELTA / tree.norm(outer).clamp(min=_DELTA))
        up, down = (site.private_grad(tree.axpy(sign, unit, w), before) for sign in (1.0, -1.0))
        curved = tree.scale(tree.sub(up, down), tree.norm(outer).clamp(min=_DELTA) / (2 * _DELTA))  # H(w) outer
        return tree.axpy(-self.inner, curved, outer)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        move, memory = self.optimizer.step(server.memory, mean.model)
        return Server(Shared(tree.add(server.view.model, move)), memory)

    def adapt(self, view: Shared, state: Tree, site: Site) -> Tree:
        return LocalSgd(self.inner).run(view.model, site, site.grad) if self.inner else view.model

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)
