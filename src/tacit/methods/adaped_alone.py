"""AdaPeD with local fine-tuning (Ozkara et al. 2023), Algorithm 6: clients that are not asked go on training alone."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Reply, Shared, Site, Task, Tree
from tacit.methods.adaped import AdaPeD
from tacit.methods.optimizers import check

ALONE = "alone"


@dataclass(frozen=True)
class AdaPeDAlone(AdaPeD):
    """AdaPeD; between its turns a client trains theta against the (mu, psi) that it received last, lines 9 to 11.

    After `most` rounds alone in a row it waits until it is asked again, so that it does not forget the others. A client
    that was never asked trains against the common start. Nothing of this is released, so it costs no privacy.
    """

    most: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        check("most", self.most, positive=True)

    @property
    def idles(self) -> bool:
        return True

    def join(self, view: Shared, start: Tree) -> Tree:
        return self._kept(start, self.init(start).view)

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        reply = super().client(view, tree.strip("theta", state), site)
        kept = tree.where(site.live.any(), self._kept(reply.state, view), state)
        return Reply(reply.upload, kept)

    def idle(self, state: Tree, site: Site) -> Tree:
        theta, met = tree.strip("theta", state), tree.strip("met", state)
        for step in range(site.steps):
            theta = site.advance(step, self._personal_step(theta, met, site, step), theta)
        moved = state | tree.prefix("theta", theta) | {ALONE: state[ALONE] + 1}
        return tree.where(site.live.any() & (state[ALONE] < self.most), moved, state)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(tree.strip("theta", state), x)

    def _kept(self, theta: Tree, view: Shared) -> Tree:
        none = torch.zeros((), dtype=view.extra["psi"].dtype)
        return tree.prefix("theta", theta) | tree.prefix("met", tree.join(view)) | {ALONE: none}
