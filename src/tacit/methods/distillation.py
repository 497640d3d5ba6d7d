"""Knowledge distillation between two models of one client."""

from typing import Literal, get_args

import torch
from torch import Tensor

from tacit.core.contract import Task
from tacit.core.tree import View
from tacit.errors import TacitError

Distillation = Literal["mutual", "as-published"]


def kl(task: Task, teacher: View, student: View, x: Tensor) -> Tensor:
    """D_KL(p_teacher || p_student) of the softmax outputs, one number for each example; at least 0."""
    return _divergence(task.apply(teacher, x), task.apply(student, x))


def taught(task: Task, teacher: View, student: View, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The student's own losses and its divergence from the teacher, in one pass of each model.

    A teacher that noise has driven beyond the floats teaches nothing: the divergence is 0 where it has no answer.
    """
    outputs, answers = task.apply(student, x), task.apply(teacher, x)
    sound = answers.isfinite().all(-1, keepdim=True)
    return task.loss(outputs, y), _divergence(torch.where(sound, answers, outputs.detach()), outputs)


def lesson(how: Distillation, task: Task, shared: View, personal: View, x: Tensor) -> Tensor:
    """What the shared model minimises to learn from a personal one, for each example.

    "mutual": D_KL(p_personal || p_shared), so that each is the other's student. "as-published": the divergence of the
    personal step, D_KL(p_shared || p_personal). Its gradient is p_shared (log(p_shared / p_personal) - KL), which
    vanishes wherever the shared model is sure of itself, right or wrong: once it says one class for all, it stays so.
    """
    return kl(task, personal, shared, x) if how == "mutual" else kl(task, shared, personal, x)


def known(how: Distillation) -> None:
    if how not in get_args(Distillation):
        raise TacitError(f"distillation is '{how}': use one of {', '.join(get_args(Distillation))}")


def _divergence(teacher: Tensor, student: Tensor) -> Tensor:
    of_teacher, of_student = teacher.log_softmax(-1), student.log_softmax(-1)
    return (of_teacher.exp() * (of_teacher - of_student)).sum(-1)
