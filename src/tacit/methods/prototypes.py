"""Prototypes (Snell et al. 2017), privately: one mean a class, in one message, and the nearest of them is the answer.

The message is a gradient. Of -out_y, a model's own output for the right class, the gradient at the last layer's weights
is the row's features, in the line of its class: summed over rows, the class sums. So everything that protects gradients
and uploads protects class sums, too, and what is sent is as large as the last layer alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tacit.core.checked import checked
from tacit.core.contract import Gradient, Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.errors import TacitError
from tacit.methods.optimizers import LocalSgd, check

_TOTAL, _TURNS = "prototypes/total", "prototypes/turns"


@checked
@dataclass(frozen=True)
class Prototypes(Method):
    """Class means of the last layer's inputs; the last layer scores how near each of them is.

    A linear model has its means in the space of the inputs: project these to few numbers (`normalise.project`), and
    little noise is enough. Any other model has its lower layers as they start: drawn, or pre-trained. A client sends
    `scale` times the mean over its rows of their features, each in the line of its class. Every further round is
    averaged with those before it. Scores are s (m_c x - offset |m_c|^2 / 2): with offset 1 the nearest mean has the
    highest, with 0 means count by their direction alone, which bears more noise.

    Classes are taken to be equally frequent, so that nothing is sent of how many rows each has.

    Guarantee: that of the plan. What reaches the upload are private gradients, one a step, through the plan's guard.

    Args:
        scale: of the message; make it just fill the clip bound.
        offset: how much the length of a mean counts against it, from 0 to 1.
        sharpness: s, of the scores: the larger, the surer a prediction.

    Raises:
        TacitError: numbers out of range; and in a run, a model without a last linear layer, or labels that are numbers.

    >>> import tacit
    >>> tacit.Prototypes(offset=0.5).offset
    0.5
    """

    scale: float = 1.0
    offset: float = 1.0
    sharpness: float = 1.0

    def __post_init__(self) -> None:
        check("scale", self.scale, positive=True)
        check("offset", self.offset, most=1.0)
        check("sharpness", self.sharpness, positive=True)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params), {_TOTAL: torch.zeros_like(params[last_layer(params)]), _TURNS: torch.zeros(())})

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        head = last_layer(view.model)
        gradient = class_sums(site.private_grad, site.task, head)
        sums = LocalSgd(self.scale).run(view.model, site, gradient, guarded=True)
        steps = site.live.sum().clamp(min=1)
        return Reply(Shared({head: (sums[head] - view.model[head]) / steps}), state)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        head = last_layer(server.view.model)
        total, turns = server.memory[_TOTAL] + mean.model[head], server.memory[_TURNS] + 1
        means = total * (len(total) / (self.scale * turns.to(total.dtype)))
        model = server.view.model | self._scored(head, means, server.view.model)
        return Server(Shared(model, server.view.extra), {_TOTAL: total, _TURNS: turns})

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(view.model, x)

    def _scored(self, head: str, means: Tensor, model: Tree) -> Tree:
        """The last layer's leaves: m x - offset |m|^2 / 2, times the sharpness."""
        scored = {head: self.sharpness * means}
        if (bias := bias_of(head)) in model:
            scored[bias] = -0.5 * self.offset * self.sharpness * means.square().sum(1)
        return scored


def last_layer(model: Tree) -> str:
    """The name of the last matrix of weights."""
    matrices = [name for name, leaf in model.items() if leaf.dim() == 2 and name.endswith("weight")]
    if not matrices:
        raise TacitError(f"prototypes need a model that ends in a linear layer, and this one has {', '.join(model)}")
    return matrices[-1]


def bias_of(head: str) -> str:
    return head.removesuffix("weight") + "bias"


def class_sums(gradient: Gradient, task: Task, head: str) -> Gradient:
    """The gradient of -out_y at the last layer's weights; nothing else moves."""

    def right(params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        still = {name: leaf if name == head else leaf.detach() for name, leaf in params.items()}
        scores = task.apply(still, x)
        if y.is_floating_point() or y.dtype == torch.bool or scores.shape[:-1] != y.shape:
            raise TacitError(f"prototypes are means of classes, and labels are {tuple(y.shape)} of {y.dtype}")
        if scores.shape[-1] != len(params[head]):
            raise TacitError(f"the last layer '{head}' is not the one that scores {scores.shape[-1]} classes")
        of_class = scores.gather(-1, y.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return -torch.where(y >= 0, of_class, 0.0).flatten(1).sum(1) if y.dim() > 1 else -of_class

    def asked(params: Tree, step: int, losses: Losses | None = None) -> Tree:
        return gradient(params, step, right)

    return asked
