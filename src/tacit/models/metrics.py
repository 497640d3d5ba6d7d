"""How good predictions are, in one number: by name, or a function of one's own.

A metric is made of sums over rows, so that it is the same however rows are cut into pieces, and padding adds nothing.
Its direction says which of two values is better; its range, where it has one whatever the data, lets a deployment
release it with noise (`privacy/evaluation.py`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import torch
from torch import Tensor

from tacit.core.checked import checked
from tacit.core.registry import Registry
from tacit.errors import TacitError
from tacit.models.losses import IGNORE, Loss, aligned, is_binary, mean_of_each, token_cross_entropy

Kind = Literal["classes", "labels", "tokens", "numbers"]
"""What is predicted of a row: one class, several yes/no labels, a class at each position, or real numbers."""


def ratio(total: Tensor, count: Tensor) -> Tensor:
    return total / count


@checked
@dataclass(frozen=True)
class Metric:
    """One figure of a group of rows.

    Args:
        name: as reports show it.
        function: of outputs and targets: a number for each row, whose mean it is; or a tuple of such, whose sums
            `finish` makes the figure of. It runs under `torch.func.vmap`.
        larger: whether larger is better.
        range: what it lies in for every data set. Without one a deployment needs a public range to release it.
        finish: of the sums over rows.

    Raises:
        TacitError: without a name, or with a range that is not (lowest, highest).

    Example:
        >>> near = Metric("within 1", lambda outputs, y: ((outputs.squeeze(-1) - y).abs() < 1).float(), range=(0, 1))
        >>> float(near(torch.tensor([[1.0], [5.0]]), torch.tensor([1.0, 1.0])))
        0.5
    """

    name: str
    function: Callable[..., Any]
    larger: bool = True
    range: tuple[float, ...] | None = None
    finish: Callable[..., Tensor] = ratio

    def __post_init__(self) -> None:
        if not self.name:
            raise TacitError("a metric has no name: give one, as reports are to show it")
        if self.range is not None and not (len(self.range) == 2 and self.range[0] < self.range[1]):
            raise TacitError(f"the range of {self.name} is {self.range}: give (lowest, highest)")

    def terms(self, outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        """What is summed over rows: each [rows] or [rows, k]."""
        value = self.function(outputs, y)
        return value if isinstance(value, tuple) else (value, torch.ones_like(value))

    def __call__(self, outputs: Tensor, y: Tensor, real: Tensor | None = None) -> Tensor:
        """Of these rows; of the real ones, where some are padding."""
        terms = self.terms(outputs, y)
        if real is not None:
            terms = tuple(torch.where(_beside(real, term), term, torch.zeros_like(term)) for term in terms)
        return self.finish(*(term.sum(0) for term in terms))


def _beside(real: Tensor, term: Tensor) -> Tensor:
    return real.reshape(-1, *[1] * (term.dim() - 1))


def predicted(outputs: Tensor, kind: Kind) -> Tensor:
    """Predictions as targets are written: class numbers, yes or no, or the numbers themselves."""
    if kind == "numbers":
        return outputs.squeeze(-1) if outputs.dim() == 2 and outputs.shape[-1] == 1 else outputs
    return outputs > 0 if kind == "labels" else outputs.argmax(-1)


def _hits(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    hits = outputs.argmax(-1) == y
    return hits, torch.ones_like(hits)


def _label_hits(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    right = (aligned(outputs, y) > 0) == (y > 0)
    hits = right.flatten(1).all(1) if right.dim() > 1 else right
    return hits, torch.ones_like(hits)


def _f1_terms(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    said, true = aligned(outputs, y) > 0, y > 0
    said, true = (each.reshape(each.shape[0], -1).float() for each in (said, true))
    return 2 * (said * true).sum(1), said.sum(1) + true.sum(1)


def _f1(both: Tensor, either: Tensor) -> Tensor:
    """Where there was nothing to find and nothing was found, all is right."""
    return torch.where(either > 0, both / either.clamp(min=1), 1.0)


def _token_terms(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    count = (y != IGNORE).flatten(1).sum(1)
    return token_cross_entropy(outputs, y) * count, count


def _perplexity(total: Tensor, count: Tensor) -> Tensor:
    return (total / count).exp()


def _token_hits(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    real = y != IGNORE
    return ((outputs.argmax(-1) == y) & real).flatten(1).sum(1), real.flatten(1).sum(1)


def _error(outputs: Tensor, y: Tensor) -> Tensor:
    return aligned(outputs, y) - y


def _squares(outputs: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    each = mean_of_each(_error(outputs, y).square())
    return each, torch.ones_like(each)


def _root(total: Tensor, count: Tensor) -> Tensor:
    return (total / count).sqrt()


def _moments(outputs: Tensor, y: Tensor) -> tuple[Tensor, ...]:
    error, y = (each.reshape(each.shape[0], -1).double() for each in (_error(outputs, y), y))
    return error.square(), y, y.square(), torch.ones_like(y)


def _r2(error: Tensor, total: Tensor, squares: Tensor, count: Tensor) -> Tensor:
    """Averaged over outputs; 0 where targets do not vary."""
    spread = squares - total.square() / count
    varied = spread > 1e-12 * squares
    return torch.where(varied, 1 - error / torch.where(varied, spread, 1.0), 0.0).mean(-1)


UNIT: Final = (0.0, 1.0)
ACCURACY: Final = Metric("accuracy", _hits, range=UNIT)
METRICS: Registry[Any] = Registry(
    "metric",
    "tacit.metrics",
    {
        metric.name: metric
        for metric in (
            ACCURACY,
            Metric("f1", _f1_terms, range=UNIT, finish=_f1),
            Metric("exact-match", _label_hits, range=UNIT),
            Metric("token-accuracy", _token_hits, range=UNIT),
            Metric("perplexity", _token_terms, larger=False, finish=_perplexity),
            Metric("rmse", _squares, larger=False, finish=_root),
            Metric("mae", lambda outputs, y: mean_of_each(_error(outputs, y).abs()), larger=False),
            Metric("r2", _moments, finish=_r2),
        )
    },
)
FITS: Final[dict[Kind, tuple[str, ...]]] = {
    "classes": ("accuracy",),
    "labels": ("f1", "exact-match"),
    "tokens": ("perplexity", "token-accuracy"),
    "numbers": ("rmse", "mae", "r2"),
}
"""Metrics of a kind of targets, the usual one first."""


def kind_of(y: Tensor, loss: Loss) -> Kind:
    """What targets are, by their type and shape, and by the loss."""
    if is_binary(loss) or y.dtype == torch.bool:
        return "labels"
    if y.is_floating_point():
        return "numbers"
    return "classes" if y.dim() == 1 else "tokens"


def find_metrics(wanted: Sequence[Any], kind: Kind, loss: Loss) -> tuple[Metric, ...]:
    """Metrics by name, by import path, as a `Metric`, or as a function; the usual one of the kind if none is wanted."""
    metrics = tuple(_found(each, kind, loss) for each in wanted) or (METRICS.builtin[FITS[kind][0]],)
    names = [metric.name for metric in metrics]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise TacitError(f"the metric '{twice}' is asked for twice: leave one out, or give it another name")
    return metrics


def _found(wanted: Any, kind: Kind, loss: Loss) -> Metric:
    if wanted == "loss":
        return Metric("loss", loss, larger=False)
    if isinstance(wanted, str) and wanted in METRICS.builtin and wanted not in FITS[kind]:
        fitting = ", ".join((*FITS[kind], "loss"))
        raise TacitError(f"the metric '{wanted}' does not fit targets that are {kind}: use one of {fitting}")
    meant = METRICS.find(wanted) if isinstance(wanted, str) else wanted
    if isinstance(meant, Metric):
        return meant
    if not callable(meant):
        raise TacitError(f"a metric is {meant!r}: give a name ({', '.join(METRICS)}), a Metric or a function")
    return Metric(getattr(meant, "__name__", type(meant).__name__), meant)
