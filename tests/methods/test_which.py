"""What the how-to page says of each method is what the method does."""

import re
from pathlib import Path

import pytest
import torch

from tacit.core import tree
from tacit.core.contract import Losses, Tree
from tacit.methods import REGISTRY
from tests.methods.test_closed_forms import START, site

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "which-personalization.md").read_text()
ROW = re.compile(r"^\| `([\w-]+)` \| (below 1|\d) \| (\d) \| (yes|no) \|", re.MULTILINE)
SAID = {name: (models, int(gradients)) for name, models, gradients, _ in ROW.findall(PAGE)}


COMPARED = [name for name, factory in REGISTRY.items() if not factory().gather]  # multitask has a page of its own


def test_the_page_names_every_method() -> None:
    assert set(SAID) == set(COMPARED)


@pytest.mark.parametrize("name", COMPARED)
def test_uploads_and_gradients_are_as_the_page_says(name: str) -> None:
    method, here = REGISTRY[name](), site()
    asked: list[int] = []

    def counted(params: Tree, step: int, losses: Losses | None = None) -> Tree:
        found = here.grad(params, step, losses)
        # several components in one call are as many gradients
        asked.extend([step] * round(sum(leaf.numel() for leaf in found.values()) / tree.size(START)))
        return found

    view = method.init(START).view
    watched = here._replace(grad=counted, private_grad=counted)
    reply = method.client(view, method.join(view, START), watched)
    models, gradients = SAID[name]
    size = sum(leaf.numel() for leaf in tree.join(reply.upload).values() if leaf.dim()) / tree.size(START)
    assert size == float(models) if models != "below 1" else 0 < size < 1
    assert len(asked) == gradients * here.steps
    assert torch.isfinite(tree.norm(tree.join(reply.upload)))
