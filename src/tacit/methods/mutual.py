"""Federated Mutual Learning (Shen et al. 2020): a personal and a shared model teach each other on every client.

Knowledge distillation between two models of one client.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.core.tree import View
from tacit.methods.optimizers import LocalSgd, check, plain

Distillation = Literal["mutual", "as-published"]


def kl(task: Task, teacher: View, student: View, x: Tensor) -> Tensor:
    """D_KL(p_teacher || p_student) of the softmax outputs, one number for each example; at least 0."""
    return divergence(task.apply(teacher, x), task.apply(student, x))


def taught(task: Task, teacher: View, student: View, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The student's own losses and its divergence from the teacher, in one pass of each model.

    A teacher that noise has driven beyond the floats teaches nothing: the divergence is 0 where it has no answer.
    """
    outputs, answers = task.apply(student, x), task.apply(teacher, x)
    sound = answers.isfinite().all(-1, keepdim=True)
    return task.loss(outputs, y), divergence(torch.where(sound, answers, outputs.detach()), outputs)


def lesson(how: Distillation, task: Task, shared: View, personal: View, x: Tensor) -> Tensor:
    """What the shared model minimises to learn from a personal one, for each example.

    "mutual": D_KL(p_personal || p_shared), so that each is the other's student. "as-published": the divergence of the
    personal step, D_KL(p_shared || p_personal). Its gradient is p_shared (log(p_shared / p_personal) - KL), which
    vanishes wherever the shared model is sure of itself, right or wrong: once it says one class for all, it stays so.
    """
    return kl(task, personal, shared, x) if how == "mutual" else kl(task, shared, personal, x)


def log_normaliser(strength: Tensor, outputs: Tensor) -> Tensor:
    """log of the integral of exp(-strength D_KL(p || q)) over all q, for each row of outputs: p is their softmax.

    The density of Section 6.2.1 of Ozkara et al., eq. (65), is a Dirichlet one: exp(strength H(p)) times the product
    of q_y^(strength p_y), so that the integral is exp(strength H(p)) B(1 + strength p). The paper prints it for two
    classes, with p_mu / strength in place of strength p_mu. The density is with respect to the area of the simplex.

    >>> outputs = torch.tensor([0.3, 0.7], dtype=torch.float64).log()
    >>> round(float(log_normaliser(torch.tensor(4.0, dtype=torch.float64), outputs).exp()), 4)
    0.4962
    """
    logs = outputs.log_softmax(-1)
    shares = logs.exp()
    raised = 1 + strength * shares
    return -strength * (shares * logs).sum(-1) + raised.lgamma().sum(-1) - raised.sum(-1).lgamma()


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    """D_KL of the softmax of two rows of outputs."""
    of_teacher, of_student = teacher.log_softmax(-1), student.log_softmax(-1)
    return (of_teacher.exp() * (of_teacher - of_student)).sum(-1)


@checked
@dataclass(frozen=True)
class MutualLearning(Method):
    """Each model minimises weight * its own loss + (1 - weight) * D_KL(p_other || p_own), both from the same batch.

    `alpha` is the weight of the personal model, which stays on the client and predicts, `beta` that of the shared one
    (the paper's "meme"): Shen et al., eqs. (3) and (4), weigh the cross-entropy. With both one they are two separate
    trainings; with both zero labels teach nobody.

    Args:
        local: of the shared model.
        personal: of the personal model on a client.
        alpha: how much the personal model learns from its labels, from 0 to 1; the rest from the shared one.
        beta: how much the shared model learns from labels, from 0 to 1; the rest from the personal one.

    Raises:
        TacitError: a weight outside [0, 1], or a momentum.

    Example:
        >>> import tacit
        >>> tacit.MutualLearning(alpha=0.5).beta
        0.25
    """

    local: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    personal: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    alpha: float = 0.25
    beta: float = 0.25

    def __post_init__(self) -> None:
        plain("mutual learning", self.local, self.personal)
        check("alpha", self.alpha, most=1.0)
        check("beta", self.beta, most=1.0)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return start

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        personal, meme = state, view.model
        for step in range(site.steps):
            of_own = site.grad(personal, step, _taught_by(meme, self.alpha, site.task))
            of_meme = site.private_grad(meme, step, _taught_by(personal, self.beta, site.task))
            moved = site.guard(view.model, meme, self.local.step(meme, of_meme, site.round))
            personal = site.advance(step, self.personal.step(personal, of_own, site.round), personal)
            meme = site.advance(step, moved, meme)
        return Reply(Shared(tree.sub(meme, view.model)), personal)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return Server(Shared(tree.add(server.view.model, mean.model)))

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)


def _taught_by(other: Tree, weight: float, task: Task) -> Losses:
    def losses(params: View, x: Tensor, y: Tensor) -> Tensor:
        loss, divergence = taught(task, other, params, x, y)
        return weight * loss + (1 - weight) * divergence

    return losses
