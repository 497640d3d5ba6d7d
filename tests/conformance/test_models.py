"""Models of the field under each plan; docs/how-to/which-models.md says the same."""

import warnings
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad

from tacit.core import columns, tree
from tacit.core.contract import Tree
from tacit.core.dropout import Key, drawing
from tacit.errors import TacitError
from tacit.models import ModuleTask, check, params, start
from tacit.models.functional import Objective
from tacit.privacy.mechanisms.clipping import clip
from tacit.privacy.mechanisms.gradient import ghost
from tests.conformance.models_of_the_field import COLUMNS, MODELS, available, build, read, read_reasons, row, world
from tests.worlds import largest_difference

EXAMPLES = 4
RECORD = 1 + COLUMNS.index("record")


def selection(quick: bool) -> Iterable[str]:
    return [name for name, model in MODELS.items() if model.quick == quick]


def slow_but_quick() -> list[object]:
    """All models, of which those that are not quick are marked slow."""
    return [*selection(True), *(pytest.param(name, marks=pytest.mark.slow) for name in selection(False))]


def example_gradient(task: ModuleTask, name: str, leaves: Tree, x: Tensor, y: Tensor, words: Tensor) -> Tree:
    """Of one row: by torch's own backward, or, where the row's masks have to be drawn, by `grad`."""
    if task.drops:
        with drawing(Key(words)):
            return grad(lambda now: task.losses(now, x, y).sum())(leaves)
    module = build(name).double()
    task.loss(columns.call(module, x), y).sum().backward()
    return {leaf: value.grad for leaf, value in module.named_parameters() if value.grad is not None}


def deviation(name: str) -> float:
    """Of the private gradient from the sum of clipped gradients of examples one by one."""
    data = world(name).astype(torch.float64)
    task = check(build(name).double(), data, Objective(MODELS[name].loss))
    (x, y), leaves, words = data.take(torch.arange(EXAMPLES)), params(task.module), torch.arange(EXAMPLES).unsqueeze(-1)
    cuts = [slice(at, at + 1) for at in range(EXAMPLES)]
    single = [example_gradient(task, name, leaves, x[cut], y[cut], words[cut]) for cut in cuts]
    assert all(gradient.keys() == leaves.keys() for gradient in single)
    bound = float(np.median([float(tree.norm(gradient)) for gradient in single]))  # half of them are clipped
    expected = tree.each(lambda *all: torch.stack(all).sum(0), *(clip(gradient, bound)[0] for gradient in single))
    return largest_difference(
        ghost(task.losses, leaves, x, y, torch.ones(EXAMPLES).bool(), bound, Key(words)), expected
    )


@pytest.mark.parametrize("name", slow_but_quick())
def test_the_page_says_what_happens_to_each_model(name: str) -> None:
    if not available(name):
        pytest.skip(f"{MODELS[name].needs} is not installed")
    cells, reason = row(name)
    assert cells == read()[name]
    assert reason == read_reasons().get(name, "")


@pytest.mark.parametrize("name", slow_but_quick())
def test_private_gradients_of_each_model_are_those_of_examples_one_by_one(name: str) -> None:
    if not available(name) or not read()[name][RECORD].startswith("runs"):
        pytest.skip("not under Record, or not installed")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop")
        assert deviation(name) < 1e-5


def test_the_page_names_all_models_and_no_others() -> None:
    assert list(read()) == list(MODELS)
    assert set(read_reasons()) == {name for name, cells in read().items() if "refused" in cells}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lazy layers", "parameter '0.weight' of a lazy layer"),
        ("a buffer that `forward` changes", "forward writes to buffer 'mean'"),
        ("MLP with spectral norm", "forward writes to buffer '2.parametrizations.weight.0._u'"),
    ],
)
def test_a_refusal_names_what_has_to_be_changed(name: str, message: str) -> None:
    with pytest.raises(TacitError, match=message):
        check(start(build(name), 0), world(name))
