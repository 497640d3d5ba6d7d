"""QuPeD (Ozkara et al. 2021) in full precision: distillation between a personal and a shared model, fixed strength."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.core.tree import View
from tacit.methods.mutual import Distillation, lesson, taught
from tacit.methods.optimizers import LocalSgd, check, plain


@checked
@dataclass(frozen=True)
class QuPeD(Method):
    """x <- x - eta_1 grad_x F(x, w), then w <- w - eta_3 grad_w F(x, w), F = (1 - lambda) f_i(x) + lambda KD(x, w).

    x stays on the client and predicts, w is shared; `distil` is lambda_p. AdaPeD learns what is fixed here.
    `distillation` says what KD is in the step of w (`distil.lesson`).

    Args:
        local: of w, the shared model.
        personal: of x, the personal model.
        distil: lambda, from 0 (two separate trainings) to 1.
        distillation: "mutual", or "as-published".

    Raises:
        TacitError: a weight outside [0, 1], or a momentum.

    Example:
        >>> import tacit
        >>> tacit.QuPeD(distil=0.5).distil
        0.5
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)  # eta_3, of w
    personal: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)  # eta_1, of x
    distil: float = 0.25
    distillation: Distillation = "mutual"

    def __post_init__(self) -> None:
        plain("QuPeD", self.local, self.personal)
        check("distil", self.distil, most=1.0)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return start

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        personal, w = state, view.model
        for step in range(site.steps):
            new = self.personal.step(personal, site.grad(personal, step, self._personal(w, site.task)), site.round)
            gradient = site.private_grad(w, step, self._shared(new, site.task))
            moved = site.guard(view.model, w, self.local.step(w, gradient, site.round))
            personal, w = site.advance(step, new, personal), site.advance(step, moved, w)
        return Reply(Shared(tree.sub(w, view.model)), personal)

    def _personal(self, w: Tree, task: Task) -> Losses:
        def losses(x: View, rows: Tensor, y: Tensor) -> Tensor:
            loss, divergence = taught(task, w, x, rows, y)
            return (1 - self.distil) * loss + self.distil * divergence

        return losses

    def _shared(self, personal: Tree, task: Task) -> Losses:
        def losses(w: View, rows: Tensor, y: Tensor) -> Tensor:
            return self.distil * lesson(self.distillation, task, w, personal, rows)

        return losses

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return Server(Shared(tree.add(server.view.model, mean.model)))

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)
