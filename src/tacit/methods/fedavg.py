"""FedAvg (McMahan et al. 2017): local SGD, then a server step along the mean update (Reddi et al. 2021)."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import LocalSgd, ServerOptimizer, ServerSgd


@checked
@dataclass(frozen=True)
class FedAvg(Method):
    """One model for all. DP-FedAvg is this under the plan `Central`.

    Args:
        local: of the shared model on a client: rate, momentum, weight decay.
        optimizer: the server's step on the mean update; by default the mean itself.

    Example:
        >>> import tacit
        >>> data = tacit.load("digits", clients=10)
        >>> network = tacit.models.SoftmaxRegression(64, classes=10)
        >>> training = tacit.Training(rounds=1, rate=1.0)
        >>> result = tacit.train(data, network, tacit.FedAvg(tacit.LocalSgd(lr=0.5)), training=training, progress=False)
        >>> result.interrupted
        False
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    optimizer: ServerOptimizer = field(default_factory=ServerSgd)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params), self.optimizer.start(params))

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        trained = self.local.run(view.model, site, site.private_grad, guarded=True)
        return Reply(Shared(tree.sub(trained, view.model)), state)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        move, memory = self.optimizer.step(server.memory, mean.model)
        return Server(Shared(tree.add(server.view.model, move)), memory)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(view.model, x)
