"""SCAFFOLD (Karimireddy et al. 2020), option II: local steps corrected by the difference of two controls."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import LocalSgd, ServerSgd, check


@checked
@dataclass(frozen=True)
class Scaffold(Method):
    """`extra` is the server's control c, a client's state its own c_i; both start at zero.

    Under `Central` model and control are one upload with one sensitivity (DP-SCAFFOLD).

    Args:
        lr: of a client's steps, above 0.
        optimizer: the server's step on the mean update.

    Raises:
        TacitError: a rate that is not positive.

    Example:
        >>> import tacit
        >>> tacit.Scaffold(lr=0.05).lr
        0.05
    """

    lr: float = 0.1
    optimizer: ServerSgd = field(default_factory=ServerSgd)

    def __post_init__(self) -> None:
        check("lr", self.lr, positive=True)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params, tree.zeros(params)), self.optimizer.start(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return tree.zeros(view.extra)

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        correction = tree.sub(view.extra, state)  # c - c_i

        def pull(gradient: Tree, params: Tree) -> Tree:
            return tree.add(gradient, correction)

        y = LocalSgd(self.lr).run(view.model, site, site.private_grad, pull, guarded=True)
        steps = site.live.sum()
        # c_i+ = c_i - c + (x - y) / (K eta): unchanged by a client without a live step
        slope = tree.each(lambda x, y: (x - y) / (steps.clamp(min=1).to(x.dtype) * self.lr), view.model, y)
        control = tree.where(steps > 0, tree.sub(slope, correction), state)
        return Reply(Shared(tree.sub(y, view.model), tree.sub(control, state)), control)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        move, memory = self.optimizer.step(server.memory, mean.model)
        control = tree.axpy(rate, mean.extra, server.view.extra)  # c <- c + |S|/N mean(c_i+ - c_i)
        return Server(Shared(tree.add(server.view.model, move), control), memory)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(view.model, x)
