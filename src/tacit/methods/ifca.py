"""IFCA (Ghosh et al. 2020): clients fall into clusters that nobody knows; each finds the one whose model fits it."""

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Gradient, Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.core.tree import View
from tacit.methods.fedem import components, start_apart
from tacit.methods.optimizers import LocalSgd, ServerOptimizer, ServerSgd, check

CLUSTER = "cluster"  # one number for each cluster, 1 for the client's own


@checked
@dataclass(frozen=True)
class IFCA(Method):
    """Algorithm 1. The server sends all cluster models theta_1..k; `clusters` is k. A client

    estimates its cluster j = argmin_j F_i(theta_j) on the first batch of the round (line 5), trains theta_j by local
    steps (option II), and uploads its move in place j, zeros in all others. The server adds the sum over all clients,
    divided by their public expected number, as in option I: how many chose a cluster is not released, so that one of a
    share p moves at p times the rate. A server rate of k makes up for it.

    The losses F_i(theta_j) are the gradient at 0 of sum_j a_j F_i(theta_j) by a. Asked of `private_grad` they are
    private where gradients are, and so is the choice. To predict, a client chooses again, on all its rows.

    Args:
        local: of the cluster's model that a client chose.
        clusters: k, how many models there are.
        optimizer: the server's step on the mean update; by default the mean itself.

    Raises:
        TacitError: fewer than one cluster.

    Example:
        >>> import tacit
        >>> tacit.IFCA(clusters=3, optimizer=tacit.ServerSgd(lr=3.0)).clusters
        3
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    clusters: int = 2
    optimizer: ServerOptimizer = field(default_factory=ServerSgd)

    def __post_init__(self) -> None:
        check("clusters", self.clusters, positive=True)

    def init(self, params: Tree) -> Server:
        view = start_apart(params, self.clusters)
        return Server(view, self.optimizer.start(tree.join(view)))

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        cluster, start = self._choose(view, site, site.private_grad, steps=1), tree.join(view)

        def gradient(params: Tree, step: int, losses: Losses | None = None) -> Tree:
            """Of the client's own cluster, and zero for the others."""
            g = site.private_grad(_pick(tree.split(params), cluster), step)
            return {name: torch.where(mine > 0, g[leaf], 0.0) for name, leaf, mine in _places(view, cluster)}

        trained = self.local.run(start, site, gradient, guarded=True)
        return Reply(tree.split(tree.sub(trained, start)), state)

    def _choose(self, view: Shared, site: Site, gradient: Gradient, steps: int) -> Tensor:
        """One-hot, of the smallest mean loss over the live ones of so many batches."""
        nothing = next(iter(view.model.values())).new_zeros(self.clusters)

        def losses(params: View, x: Tensor, y: Tensor) -> Tensor:
            each = [site.task.losses(model, x, y) for model in components(view)]
            return torch.stack(each, -1) @ params[CLUSTER]

        each = [gradient({CLUSTER: nothing}, step, losses)[CLUSTER] for step in range(steps)]
        total = torch.where(site.live[:steps].unsqueeze(-1), torch.stack(each), 0.0).sum(0)
        return one_hot(total.argmin(), self.clusters).to(nothing.dtype)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        move, memory = self.optimizer.step(server.memory, tree.join(mean))
        return Server(tree.split(tree.add(tree.join(server.view), move)), memory)

    def adapt(self, view: Shared, state: Tree, site: Site) -> Tree:
        return {CLUSTER: self._choose(view, site, site.grad, site.steps)}

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(_pick(view, state[CLUSTER]), x)


def _pick(view: Shared, cluster: Tensor) -> Tree:
    """The model of the cluster that is 1 in `cluster`."""
    model, *others = components(view)
    for other, mine in zip(others, cluster[1:], strict=True):
        model = tree.where(mine > 0, other, model)
    return model


def _places(view: Shared, cluster: Tensor) -> list[tuple[str, str, Tensor]]:
    """(name in the whole broadcast, name in one model, whether it is the client's own cluster's)."""
    models = enumerate(components(view))
    prefixes = ["model", *(f"extra/{j}" for j in range(1, len(cluster)))]
    return [(f"{prefixes[j]}/{leaf}", leaf, cluster[j]) for j, model in models for leaf in model]
