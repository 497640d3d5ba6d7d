"""Ditto (Li et al. 2021), the personalization of FeO2 and FedHDP: a personal model held near the shared one."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.errors import TacitError
from tacit.methods.fedavg import FedAvg
from tacit.methods.optimizers import LocalSgd, check


@checked
@dataclass(frozen=True)
class Ditto(Method):
    """theta_j <- theta_j - eta_p (grad f_j(theta_j) + lambda (theta_j - theta)), theta as received from the server.

    The shared model is trained by `base` and does not see theta_j. `strength` is lambda: one number, or one for each
    privacy level. A client that has not taken part yet starts at the current shared model.
    """

    base: Method = field(default_factory=FedAvg, metadata=INLINE)
    strength: float | tuple[float, ...] = 0.1
    personal: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)

    def __post_init__(self) -> None:
        if not self._strengths:
            raise TacitError("Ditto's strength is (): give one number, or one for each privacy level")
        for value in self._strengths:
            check("Ditto's strength", value)

    @property
    def _strengths(self) -> tuple[float, ...]:
        return self.strength if isinstance(self.strength, tuple) else (self.strength,)

    def init(self, params: Tree) -> Server:
        return self.base.init(params)

    def join(self, view: Shared, start: Tree) -> Tree:
        return tree.prefix("base", self.base.join(view, start)) | tree.prefix("personal", view.model)

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        reply = self.base.client(view, tree.strip("base", state), site)
        strength = self._strength(site.level)

        def pull(gradient: Tree, params: Tree) -> Tree:
            return tree.axpy(strength, tree.sub(params, view.model), gradient)

        personal = self.personal.run(tree.strip("personal", state), site, site.grad, pull)
        return Reply(reply.upload, tree.prefix("base", reply.state) | tree.prefix("personal", personal))

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return self.base.server(server, mean, rate)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        personal = Shared(tree.strip("personal", state), view.extra)
        return self.base.predict(task, personal, tree.strip("base", state), x)

    def _strength(self, level: Tensor) -> float | Tensor:
        strengths = self._strengths
        return strengths[0] if len(strengths) == 1 else torch.tensor(strengths)[level]
