"""Methods that break the record plan's promise, each in its own way: what every one of them is refused for."""

from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.contract import Gradient, Losses, Method, Reply, Shared, Site, Tree
from tacit.errors import TacitError
from tacit.methods import IFCA, FedAvg, LocalSgd
from tacit.privacy.accounting.sampling import Each
from tacit.rounds.preflight import interferes
from tests.worlds import CENTRAL, RECORD, assembled, ragged, run


@dataclass(frozen=True)
class Leaky(FedAvg):
    """Uploads a trace of a state that was trained with exact gradients, hidden behind a comparison."""

    def join(self, view: Shared, start: Tree) -> Tree:
        return {"secret": torch.zeros(())}

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        reply = super().client(view, state, site)
        seen = tree.norm(site.grad(view.model, 0))
        marked = tree.each(lambda leaf: torch.where(state["secret"] > 2.0, leaf * 1.0001, leaf), reply.upload.model)
        return Reply(Shared(marked), {"secret": seen})


@dataclass(frozen=True)
class Biased(FedAvg):
    """Asks private gradients of a loss that a state, trained with exact gradients, has turned."""

    def join(self, view: Shared, start: Tree) -> Tree:
        return {"secret": torch.ones((), dtype=torch.float64)}

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        def gradient(params: Tree, step: int, losses: Losses | None = None) -> Tree:
            return site.private_grad(params, step, lambda p, x, y: state["secret"] * site.task.losses(p, x, y))

        trained = self.local.run(view.model, site, gradient)
        return Reply(Shared(tree.sub(trained, view.model)), {"secret": tree.norm(site.grad(view.model, 0))})


def test_a_private_gradient_of_a_loss_that_knows_the_data_is_refused_under_record() -> None:
    """Each term of the sum is clipped, but one record would move all of them."""
    engine, _ = assembled(Biased())
    assert interferes(Biased(), engine.task, engine.federation, engine.start)


def test_a_method_that_uploads_what_exact_gradients_taught_it_is_refused_under_record() -> None:
    engine, _ = assembled(Leaky())
    assert interferes(Leaky(), engine.task, engine.federation, engine.start)
    with pytest.raises(TacitError, match="exact gradients"):
        assembled(Leaky(), RECORD)
    assembled(Leaky(), CENTRAL)


class Counting(FedAvg):
    """Learns the more the more rows its batches came out with."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        upload, state = super().client(view, state, site)
        drawn = sum(site.batch(step).mask.sum() for step in range(site.steps))
        return Reply(Shared(tree.scale(upload.model, drawn)), state)


class Pondering(FedAvg):
    """Starts from where it got to while nobody asked."""

    idles = True  # pyright: ignore[reportAssignmentType, reportIncompatibleMethodOverride]

    def join(self, view: Shared, start: Tree) -> Tree:
        return tree.zeros(start)

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        return Reply(super().client(Shared(tree.add(view.model, state)), {}, site).upload, state)

    def idle(self, state: Tree, site: Site) -> Tree:
        return site.private_grad(self.join(Shared(state), state), 0)


@pytest.mark.parametrize("method", [Counting(), Pondering()], ids=["how many rows", "while idle"])
def test_an_upload_that_knows_what_nobody_paid_for_is_refused_under_record(method: Method) -> None:
    """How many rows a Poisson batch has is private, and private gradients between rounds are charged to nobody."""
    with pytest.raises(TacitError, match="guarantee would not hold"):
        assembled(method, RECORD)


def test_more_private_queries_than_were_paid_for_fail_before_anything_is_released() -> None:
    it = run(FedAvg(), RECORD, ragged())
    thrifty = replace(it.engine.plan, setting=it.engine.plan.setting._replace(queries=Each(0)))
    it.engine = replace(it.engine, plan=thrifty)
    with pytest.raises(TacitError, match="more private queries"):
        it.go()


@dataclass(frozen=True)
class Sly(FedAvg):
    """Looks at its last batch once more, under another name."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        site.private_grad(view.model, -1)
        return super().client(view, state, site)


def test_a_batch_that_is_asked_for_under_another_name_is_counted() -> None:
    """Whichever batch is a client's last in a program that is filled up for others."""
    it = run(Sly(), RECORD, ragged())
    paid = it.engine.plan.setting.queries
    assert [paid(steps) for steps in (1, 2, 3)] == [(2,), (1, 2), (1, 1, 2)]
    it.go()


class Growing(FedAvg):
    """Asks once more in every round."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        for _ in range(int(site.round)):
            site.private_grad(view.model, 0)
        return super().client(view, state, site)


def test_queries_that_no_dry_run_saw_fail_before_anything_is_released() -> None:
    it = run(Growing(), RECORD, ragged())
    with pytest.raises(TacitError, match=r"more private queries of its batch 0 of 3 \(2\) than the 1"):
        it.go()
    assert it.progress.round == 1


@dataclass(frozen=True)
class Lost(FedAvg):
    """Has no numbers to send."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        return Reply(Shared(tree.scale(view.model, float("nan"))), state)


def test_a_trial_that_diverges_is_not_mistaken_for_a_leak() -> None:
    engine, _ = assembled(FedAvg())
    assert not interferes(FedAvg(LocalSgd(1e9)), engine.task, engine.federation, engine.start)
    with pytest.raises(TacitError, match="diverged in a trial on random rows"):
        interferes(Lost(), engine.task, engine.federation, engine.start)


@dataclass(frozen=True)
class Choosing(IFCA):
    """Chooses its cluster by exact losses: which place of the upload is not zero tells of the rows."""

    def _choose(self, view: Shared, site: Site, gradient: Gradient, steps: int) -> Tensor:
        return super()._choose(view, site, site.grad, steps)


def test_a_cluster_chosen_by_exact_losses_is_refused_under_record_and_one_by_private_losses_is_not() -> None:
    with pytest.raises(TacitError, match="exact gradients"):
        assembled(Choosing(), RECORD)
    assembled(IFCA(), RECORD)
