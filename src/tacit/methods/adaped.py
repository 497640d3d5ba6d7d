"""AdaPeD (Ozkara et al. 2023), Algorithm 5: a personal model distilled with a shared one, as far as that helps.

AdaPeD with local fine-tuning (Ozkara et al. 2023), Algorithm 6: clients that are not asked go on training alone.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.core.tree import View
from tacit.methods.mutual import Distillation, divergence, lesson, log_normaliser, taught
from tacit.methods.optimizers import LocalSgd, check, plain

Normaliser = Literal["surrogate", "exact"]
PSI = "extra/psi"  # beside model/..., as tree.join names them


@checked
@dataclass(frozen=True)
class AdaPeD(Method):
    """f_i(theta) + log(2 psi) / 2 + KD(theta, mu) / (2 psi), eq. (23), by turns in theta and in (mu, psi).

    theta stays on the client and is what predicts; (mu, psi) are shared. A small psi trusts the others, a large one
    trains alone; it is learned and never falls below `floor`. KD(theta, mu) = D_KL(p_mu || p_theta), eq. (65), in the
    step of theta; `distillation` says what it is in that of (mu, psi) (`distil.lesson`). The gradient in (mu, psi) is
    one query, at the new theta and the old mu: a privacy plan sees both in one vector.

    theta and mu start from the model that the run is given, which the paper leaves open. theta learns of the others
    through mu's outputs alone: where clients are seldom asked, a start that FedAvg has trained is much better than a
    random one (papers/results/adaped-table-1.md).

    Args:
        local: of mu, the shared model.
        personal: of theta, the personal model.
        psi: the start of psi, how far personal models are expected to lie from mu.
        psi_lr: the rate at which psi is learned; 0 keeps it.
        floor: psi never falls below it.
        distillation: "mutual", or "as-published".
        normaliser: of the prior of (65) with psi as a variance. "surrogate" is the paper's log(2 psi) / 2, which is a
            Gaussian's; "exact" is that of Section 6.2.1 (`mutual.log_normaliser`), a row's outputs one draw of it.

    Raises:
        TacitError: a rate or floor that is not positive, a psi below its floor, or a momentum.

    Example:
        >>> import tacit
        >>> tacit.AdaPeD(psi=2.0, psi_lr=0.0).psi
        2.0
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)  # eta_2, of mu
    personal: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)  # eta_1, of theta
    psi: float = 4.0
    psi_lr: float = 0.03  # eta_3
    floor: float = 0.5
    distillation: Distillation = "mutual"
    normaliser: Normaliser = "surrogate"

    def __post_init__(self) -> None:
        plain("AdaPeD", self.local, self.personal)
        check("psi_lr", self.psi_lr)
        check("floor", self.floor, positive=True)
        check(f"psi minus its floor of {self.floor}", self.psi - self.floor)

    def init(self, params: Tree) -> Server:
        leaf = next(iter(params.values()))
        return Server(Shared(params, {"psi": torch.full((), self.psi, dtype=leaf.dtype)}))

    def join(self, view: Shared, start: Tree) -> Tree:
        return start

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        theta, start = state, tree.join(view)
        shared = start
        for step in range(site.steps):
            new = self._personal_step(theta, shared, site, step)
            moved = self.shared_step(new, start, shared, site, step)
            theta, shared = site.advance(step, new, theta), site.advance(step, moved, shared)
        return Reply(tree.split(tree.sub(shared, start)), theta)

    def _personal_step(self, theta: Tree, shared: Tree, site: Site, step: int) -> Tree:
        """Lines 10 and 11: theta <- theta - eta_1 (grad f(theta) + grad KD(theta, mu) / (2 psi))."""
        return self.personal.step(theta, site.grad(theta, step, personal_losses(site.task, shared)), site.round)

    def shared_step(self, theta: Tree, start: Tree, shared: Tree, site: Site, step: int) -> Tree:
        """Lines 12 to 15: mu <- mu - eta_2 grad KD / (2 psi), psi <- psi - eta_3 (1 / (2 psi) - KD / (2 psi^2))."""

        def losses(params: View, x: Tensor, y: Tensor) -> Tensor:
            psi, mu = params[PSI], tree.strip("model", params)
            learned = lesson(self.distillation, site.task, mu, theta, x)
            if self.normaliser == "exact":
                return learned / (2 * psi.detach()) + exact_scale(site.task, mu, theta, psi, x)
            return (2 * psi).log() / 2 + learned / (2 * psi)

        gradient = site.private_grad(shared, step, losses)
        mu = self.local.step(tree.drop(shared, [PSI]), tree.drop(gradient, [PSI]), site.round)
        psi = shared[PSI] - self.psi_lr * gradient[PSI]
        return self.floored(site.guard(start, shared, mu | {PSI: psi}))

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return Server(tree.split(self.floored(tree.add(tree.join(server.view), tree.join(mean)))))

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)

    def floored(self, shared: Tree) -> Tree:
        return shared | {PSI: shared[PSI].clamp(min=self.floor)}


def exact_scale(task: Task, mu: View, theta: View, psi: Tensor, x: Tensor) -> Tensor:
    """What psi minimises for each example: D_KL(p_mu || p_theta) / (2 psi) and the log of what normalises it."""
    teacher, student = task.apply(mu, x).detach(), task.apply(theta, x).detach()
    return divergence(teacher, student) / (2 * psi) + log_normaliser(1 / (2 * psi), teacher)


def personal_losses(task: Task, shared: Tree) -> Losses:
    """f(theta) + KD(theta, mu) / (2 psi), of each example; f alone where noise has driven psi beyond the floats."""
    mu, psi = tree.strip("model", shared), shared[PSI].nan_to_num(nan=torch.inf)

    def losses(theta: View, x: Tensor, y: Tensor) -> Tensor:
        loss, divergence = taught(task, mu, theta, x, y)
        return loss + divergence / (2 * psi)

    return losses


ALONE = "alone"


@checked
@dataclass(frozen=True)
class AdaPeDAlone(AdaPeD):
    """AdaPeD; between its turns a client trains theta against the (mu, psi) that it received last, lines 9 to 11.

    After `most` rounds alone in a row it waits until it is asked again, so that it does not forget the others. A client
    that was never asked trains against the common start. Nothing of this is released, so it costs no privacy.

    Args:
        local: of mu, the shared model.
        personal: of theta, the personal model.
        psi: as in `AdaPeD`.
        psi_lr: as in `AdaPeD`.
        floor: as in `AdaPeD`.
        distillation: as in `AdaPeD`.
        normaliser: as in `AdaPeD`.
        most: rounds in a row that a client trains alone.

    Raises:
        TacitError: what `AdaPeD` refuses, or a `most` below 1.

    Example:
        >>> import tacit
        >>> tacit.AdaPeDAlone(most=2).idles, tacit.AdaPeD().idles
        (True, False)
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
