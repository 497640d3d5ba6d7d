"""PP-SGD (Bietti et al. 2022): a shared and a personal model that add up, trained together."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import ServerOptimizer, ServerSgd, check


@checked
@dataclass(frozen=True)
class PPSgd(Method):
    """Predicts with w + theta_k. Both step along grad f_k(w + theta_k): w through the release, theta_k on the client.

    theta_k moves the point at which w's gradient is taken. So under `Record` it must not have seen exact gradients:
    with `noisy` it steps along the very gradient that w does, at no further cost; else the plan refuses.

    Args:
        lr: of w, above 0.
        personal_lr: of theta_k, 0 or more; 0 is FedSGD.
        optimizer: the server's step on the mean update; by default the mean itself.
        noisy: whether theta_k steps along the released gradient.

    Raises:
        TacitError: a rate outside its range.

    Example:
        >>> import tacit
        >>> tacit.PPSgd(noisy=True).noisy  # as `Record` needs it
        True
    """

    lr: float = 0.1
    personal_lr: float = 0.1
    optimizer: ServerOptimizer = field(default_factory=ServerSgd)
    noisy: bool = False

    def __post_init__(self) -> None:
        check("lr", self.lr, positive=True)
        check("personal_lr", self.personal_lr)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params), self.optimizer.start(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return tree.zeros(view.model)

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        w, theta = view.model, state
        for step in range(site.steps):
            both = tree.add(w, theta)
            shared = site.private_grad(both, step)
            gradient = shared if self.noisy else site.grad(both, step)
            moved = site.guard(view.model, w, tree.axpy(-self.lr, shared, w))
            w = site.advance(step, moved, w)
            theta = site.advance(step, tree.axpy(-self.personal_lr, gradient, theta), theta)
        return Reply(Shared(tree.sub(w, view.model)), theta)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        move, memory = self.optimizer.step(server.memory, mean.model)
        return Server(Shared(tree.add(server.view.model, move)), memory)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(tree.add(view.model, state), x)
