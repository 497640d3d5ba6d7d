"""Knowledge distillation between two models of one client."""

from torch import Tensor

from tacit.core import Task
from tacit.tree import View


def kl(task: Task, teacher: View, student: View, x: Tensor) -> Tensor:
    """D_KL(p_teacher || p_student) of the softmax outputs, one number for each example; at least 0."""
    return _divergence(task.apply(teacher, x), task.apply(student, x))


def taught(task: Task, teacher: View, student: View, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The student's own losses and its divergence from the teacher, in one pass of each model."""
    outputs = task.apply(student, x)
    return task.loss(outputs, y), _divergence(task.apply(teacher, x), outputs)


def _divergence(teacher: Tensor, student: Tensor) -> Tensor:
    of_teacher, of_student = teacher.log_softmax(-1), student.log_softmax(-1)
    return (of_teacher.exp() * (of_teacher - of_student)).sum(-1)
