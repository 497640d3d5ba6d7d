"""APFL (Deng et al. 2020): each client mixes a personal model with the shared one, and learns how much."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import LocalSgd, ServerOptimizer, ServerSgd, check, plain

ALPHA = "alpha"


@checked
@dataclass(frozen=True)
class APFL(Method):
    """w <- w - eta grad f(w); v <- v - eta grad_v f(u), u = alpha v + (1 - alpha) w; predicts with u.

    The shared model w does not see v. With `adaptive`, alpha <- alpha - eta <v - w, grad f(u)>, eq. (10), kept in
    [0, 1]. A client that is not asked keeps its u as it was.

    Args:
        local: of the shared model w.
        personal: of the personal model v.
        optimizer: the server's step on the mean update; by default the mean itself.
        alpha: how much of the mixture is personal, between 0 and 1; where it is `adaptive`, its start.
        adaptive: whether each client learns its own alpha.

    Raises:
        TacitError: an alpha outside [0, 1], or a momentum, which the paper's steps do not have.

    Example:
        >>> import tacit
        >>> tacit.APFL(alpha=0.25, adaptive=False).alpha
        0.25
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    personal: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    optimizer: ServerOptimizer = field(default_factory=ServerSgd)
    alpha: float = 0.5
    adaptive: bool = True

    def __post_init__(self) -> None:
        plain("APFL", self.local, self.personal)
        check("alpha", self.alpha, most=1.0)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params), self.optimizer.start(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        alpha = torch.full((), self.alpha, dtype=next(iter(start.values())).dtype)
        return tree.prefix("v", start) | tree.prefix("u", start) | {ALPHA: alpha}

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        w, v, alpha = view.model, tree.strip("v", state), state[ALPHA]
        for step in range(site.steps):
            slope = site.grad(_mixed(alpha, v, w), step)  # grad f(u); grad_v f(u) is alpha times it
            if self.adaptive:
                gap = tree.each(lambda a, b, g: ((a - b) * g).sum(), v, w, slope)
                turned = (alpha - self.personal.rate(site.round) * torch.stack([*gap.values()]).sum()).clamp(0, 1)
            else:
                turned = alpha
            moved = self.local.step(w, site.private_grad(w, step), site.round)
            v = site.advance(step, self.personal.step(v, tree.scale(slope, alpha), site.round), v)
            w = site.advance(step, site.guard(view.model, w, moved), w)
            alpha = site.advance(step, {ALPHA: turned}, {ALPHA: alpha})[ALPHA]
        u = tree.where(site.live.any(), _mixed(alpha, v, w), tree.strip("u", state))
        kept = tree.prefix("v", v) | tree.prefix("u", u) | {ALPHA: alpha}
        return Reply(Shared(tree.sub(w, view.model)), kept)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        move, memory = self.optimizer.step(server.memory, mean.model)
        return Server(Shared(tree.add(server.view.model, move)), memory)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(tree.strip("u", state), x)


def _mixed(alpha: Tensor, v: Tree, w: Tree) -> Tree:
    return tree.each(lambda a, b: alpha * a + (1 - alpha) * b, v, w)
