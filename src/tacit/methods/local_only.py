"""Training alone: the baseline that every personal figure stands beside."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import LocalSgd


@checked
@dataclass(frozen=True)
class LocalOnly(Method):
    """Each client trains its own model from the common start. Nothing is uploaded, so nothing is charged.

    Args:
        local: rate, momentum, weight decay.

    Example:
        >>> import tacit
        >>> tacit.LocalOnly(tacit.LocalSgd(lr=0.05)).local.lr
        0.05
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return start

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        return Reply(Shared({}), self.local.run(state, site, site.grad))

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return server

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)
