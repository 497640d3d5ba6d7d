"""Knowledge distillation between two models of one client."""

from collections.abc import Mapping

from torch import Tensor

from tacit.core import Task


def kl(task: Task, teacher: Mapping[str, Tensor], student: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """D_KL(p_teacher || p_student) of the softmax outputs, one number for each example; at least 0."""
    of_teacher, of_student = (task.apply(model, x).log_softmax(-1) for model in (teacher, student))
    return (of_teacher.exp() * (of_teacher - of_student)).sum(-1)
