"""The mean of the last models: what it is, and that training itself does not see it."""

import pytest
import torch

from tacit.core import tree
from tacit.core.contract import Server, Shared, Tree
from tacit.methods import FedAvg
from tacit.privacy import mechanisms as plans
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy
from tacit.rounds.averaging import average
from tests.worlds import OPEN, PRIVATE, largest_difference, run


def server(value: float) -> Server:
    return Server(Shared({"w": torch.full((2,), value)}), {"speed": torch.ones(1)})


@pytest.mark.parametrize(("last", "mean"), [(0, 16.0), (1, 16.0), (3, (4 + 8 + 16) / 3), (99, 31 / 5)])
def test_in_the_end_the_model_is_the_mean_of_the_last_ones(last: int, mean: float) -> None:
    """And not before: every earlier model is the one that training goes on from."""
    public: Tree = {"bound": torch.ones(())}
    for done in range(1, 6):
        now = server(2.0 ** (done - 1))
        after, public = average(now, public, done, last, 5)
        if done < 5:
            assert after is now
    assert after.view.model["w"].tolist() == pytest.approx([mean] * 2)  # pyright: ignore[reportPossiblyUnboundVariable]
    assert (len(public) > 1) == (last > 0)


def test_a_run_ends_with_it_and_goes_on_as_without_it_until_then() -> None:
    privacy = Privacy(plans.Grouped(Fixed(0.5), average=2), (PRIVATE, OPEN), {"open": 0.3})
    found, models = run(FedAvg(), privacy, rounds=3), []
    for _ in range(2):
        found.step()
        models.append(found.progress.server.view.model)
    assert largest_difference(tree.strip("average", found.progress.public), models[-1]) == 0
    found.step()
    assert largest_difference(found.progress.server.view.model, tree.strip("average", found.progress.public)) == 0
    assert largest_difference(found.progress.server.view.model, models[-1]) > 0


def test_without_it_the_last_model_stays() -> None:
    found = run(FedAvg(), rounds=2)
    found.go()
    assert found.progress.public.keys() == {"bound"}
