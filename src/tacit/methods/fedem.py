"""FedEM (Marfoq et al. 2021): every client's data is a mixture of shared components, with weights of its own."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.core.tree import View
from tacit.methods.optimizers import LocalSgd, ServerOptimizer, ServerSgd, check

PI = "weights"


@checked
@dataclass(frozen=True)
class FedEM(Method):
    """Components theta_1..M are shared, the weights pi stay on the client. Algorithm 1, by batches:

    E: q_m ~ pi_m exp(-loss(theta_m)) of each example; M: pi_m = mean q_m, theta_m by SGD on sum_m q_m loss(theta_m).
    Both are one gradient of F = -log sum_m exp(a_m - loss(theta_m)) at a = log pi: dF/dtheta_m = q_m grad loss, and
    dF/da_m = -q_m. All components are one upload, so that they have one sensitivity.

    Args:
        local: of all components on a client.
        components: M, how many models the population mixes.
        optimizer: the server's step on the mean update; by default the mean itself.

    Raises:
        TacitError: fewer than one component.

    Example:
        >>> import tacit
        >>> tacit.FedEM(components=3).components
        3
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    components: int = 2
    optimizer: ServerOptimizer = field(default_factory=ServerSgd)

    def __post_init__(self) -> None:
        check("components", self.components, positive=True)

    def init(self, params: Tree) -> Server:
        view = start_apart(params, self.components)
        return Server(view, self.optimizer.start(tree.join(view)))

    def join(self, view: Shared, start: Tree) -> Tree:
        leaf = next(iter(start.values()))
        return {PI: torch.full((self.components,), 1 / self.components, dtype=leaf.dtype)}

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        log_pi = state[PI].clamp(min=torch.finfo(state[PI].dtype).tiny).log()
        seen = [torch.zeros_like(log_pi)]

        def gradient(params: Tree, step: int, losses: Losses | None = None) -> Tree:
            gradients = site.private_grad(params | {PI: log_pi}, step, self._losses(site.task))
            seen.append(torch.where(site.live[step], -gradients[PI], 0.0))  # the mean of q over the batch
            return tree.drop(gradients, [PI])

        start = tree.join(view)
        trained = self.local.run(start, site, gradient, guarded=True)
        pi = torch.stack(seen).sum(0).clamp(min=0)
        pi = torch.where(pi.sum() > 0, pi / pi.sum().clamp(min=1e-12), state[PI])
        return Reply(tree.split(tree.sub(trained, start)), {PI: pi})

    def _losses(self, task: Task) -> Losses:
        def losses(params: View, x: Tensor, y: Tensor) -> Tensor:
            each = [task.losses(model, x, y) for model in components(tree.split(tree.drop(params, [PI])))]
            return -(params[PI] - torch.stack(each, -1)).logsumexp(-1)

        return losses

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        move, memory = self.optimizer.step(server.memory, tree.join(mean))
        return Server(tree.split(tree.add(tree.join(server.view), move)), memory)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        """log sum_m pi_m p_m(y | x)."""
        log_p = torch.stack([task.apply(model, x).log_softmax(-1) for model in components(view)])
        return (state[PI].log().view(-1, *[1] * (log_p.dim() - 1)) + log_p).logsumexp(0)


def start_apart(params: Tree, components: int) -> Shared:
    """The first component is the given model, each further one the same with the entries of every leaf shuffled."""
    others = {}
    for m in range(1, components):
        draw = torch.Generator().manual_seed(m)
        others |= tree.prefix(str(m), tree.each(lambda leaf, draw=draw: _shuffled(leaf, draw), params))
    return Shared(params, others)


def components(view: Shared) -> list[Tree]:
    """The models that a broadcast of `start_apart`'s form holds."""
    names = sorted({name.partition("/")[0] for name in view.extra}, key=int)
    return [view.model, *(tree.strip(name, view.extra) for name in names)]


def _shuffled(leaf: Tensor, draw: torch.Generator) -> Tensor:
    return leaf.flatten()[torch.randperm(leaf.numel(), generator=draw)].view_as(leaf)
