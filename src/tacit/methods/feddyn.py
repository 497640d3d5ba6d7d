"""FedDyn (Acar et al. 2021): a regulariser of each client that moves, so that all agree at the global optimum."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import LocalSgd, check


@checked
@dataclass(frozen=True)
class FedDyn(Method):
    """Algorithm 1. `strength` is alpha; a client's state is g_k, its estimate of grad L_k at its own last model.

    Client, eq. (1): theta_k = argmin L_k(theta) - <g_k, theta> + alpha/2 |theta - theta^t|^2, by its local steps;
    then g_k <- g_k - alpha (theta_k - theta^t), which is grad L_k(theta_k) where the minimum was reached.
    Server: h <- h - alpha P/m mean(theta_k - theta^t), and theta^{t+1} = mean(theta_k) - h / alpha.

    Only theta_k - theta^t is uploaded: h follows from what was released, and g_k from what was sent.

    Args:
        local: of the shared model on a client: rate, momentum, weight decay.
        strength: alpha, above 0: how strongly a client is held at the broadcast model.

    Raises:
        TacitError: a strength that is not positive.

    Example:
        >>> import tacit
        >>> tacit.FedDyn(strength=0.01).strength
        0.01
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    strength: float = 0.1

    def __post_init__(self) -> None:
        check("FedDyn's strength", self.strength, positive=True)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params), tree.zeros(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return tree.zeros(view.model)

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        def pull(gradient: Tree, theta: Tree) -> Tree:
            return tree.axpy(self.strength, tree.sub(theta, view.model), tree.sub(gradient, state))

        theta = self.local.run(view.model, site, site.private_grad, pull, guarded=True)
        moved = tree.sub(theta, view.model)
        return Reply(Shared(moved), tree.axpy(-self.strength, moved, state))

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        h = tree.axpy(-self.strength * rate, mean.model, server.memory)
        theta = tree.axpy(-1 / self.strength, h, tree.add(server.view.model, mean.model))
        return Server(Shared(theta), h)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(view.model, x)
