"""One training loop for every prior: personal parameters pulled towards a population that is learned with them."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import LocalSgd
from tacit.methods.priors import L2, Prior


@dataclass(frozen=True)
class Personal(Method):
    """min over theta_i and Gamma of sum_i f_i(theta_i) - log p(theta_i; Gamma), eq. (12), by turns.

    theta stays on the client and predicts; what the prior has to say of it is uploaded, and the server learns Gamma.
    Try `L2`, `L1`, `KL` or `Mixture`: the loop is the same.
    """

    prior: Prior = field(default_factory=L2)
    personal: LocalSgd = field(default_factory=LocalSgd)

    def init(self, params: Tree) -> Server:
        return Server(self.prior.start(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return start

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        def gradient(params: Tree, step: int, losses: Losses | None = None) -> Tree:
            return site.grad(params, step, self.prior.losses(site.task, view))

        def pull(slope: Tree, params: Tree) -> Tree:
            return tree.add(slope, self.prior.pull(params, view))

        theta = self.personal.run(state, site, gradient, pull)
        told = tree.join(self.prior.message(theta, view, site))
        heard = tree.where(site.live.any(), told, tree.zeros(told))
        return Reply(tree.split(heard), theta)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return Server(self.prior.learn(server.view, mean))

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)
