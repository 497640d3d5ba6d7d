"""Who may run it, what it costs, and what the paper would have claimed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from papers.multitask.published import AsPublished
from tacit.core.contract import Reply, Shared, Site, Tree
from tacit.errors import TacitError
from tacit.methods import FineTuned, Multitask
from tacit.privacy import mechanisms as plans
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy
from tacit.rounds.preflight import interferes
from tests.estimation.multitask.problems import tasks, trained

GRADIENTS = Multitask("logistic", 1.0, "mean", solver="gradient")


@pytest.mark.parametrize("request_", [plans.Central(), plans.Grouped()], ids=["central", "grouped"])
def test_a_plan_whose_server_adds_the_noise_is_refused_and_says_why(request_: plans.Mechanism) -> None:
    privacy = Privacy(request_, (Level("private", epsilon=8, delta=1e-3),))
    with pytest.raises(TacitError, match="would see it before all noise is added"):
        trained(tasks(), Multitask(), 3, privacy)


def test_the_server_gets_clipped_and_noisy_messages_of_the_devices_that_took_part() -> None:
    level = Level("private", delta=1e-3, noise=1.0)
    run = trained(tasks(), Multitask("hinge", 1.0), 1, Privacy(plans.Local(Fixed(0.5)), (level,)))
    run.go()
    sums = run.progress.server.view.extra["sums"]
    # noise of std 2 * .5 in every coordinate, around messages of norm at most .5
    assert float(sums.norm(dim=(1, 2)).mean()) == pytest.approx(np.sqrt(sums[0].numel()), rel=0.6)
    plain = trained(tasks(), Multitask("hinge", 1.0), 1)
    plain.go()
    assert not torch.allclose(sums, plain.progress.server.view.extra["sums"])


def test_each_device_chooses_its_own_epsilon() -> None:
    levels = (Level("shy", epsilon=1, delta=1e-3), Level("bold", epsilon=8, delta=1e-3))
    choices = {"d0": "shy", "d1": "shy", "d2": "bold", "d3": "bold", "d4": "bold"}
    run = trained(tasks(), Multitask("hinge", 1.0), 4, Privacy(plans.Local(Fixed(1.0)), levels, choices))
    run.go()
    assert run.plan.multipliers[0] > 3 * run.plan.multipliers[1]
    entries = list(run.ledger.entries())
    assert len(entries) == 20
    assert {entry.unit for entry in entries} == {"client"}


def test_projected_steps_keep_what_a_device_holds_and_what_it_has_sent_together() -> None:
    """The dual variables move by the share of the message that the clip left: X alpha stays what the server has."""
    level = Level("private", delta=1e-3, noise=1e-9)
    privacy = Privacy(plans.Local(Fixed(0.2), project=True), (level,))
    run = trained(tasks(), Multitask("smooth-hinge", 1.0, "mean"), 6, privacy)
    run.go()
    from tacit.estimation.multitask import _alphas, _rows

    for t, alpha in enumerate(_alphas(run)):
        x, _ = _rows(run, t, 1)
        assert torch.allclose(alpha[: len(x)].T @ x, run.progress.server.view.extra["sums"][t], atol=1e-6)


def test_the_gradient_solver_does_not_interfere_and_the_dual_one_does() -> None:
    run = trained(tasks(), GRADIENTS, 2)
    engine = run.engine
    assert not interferes(engine.method, engine.task, engine.federation, engine.start)
    privacy = Privacy(plans.Record(), (Level("private", epsilon=8, delta=1e-3),))
    with pytest.raises(TacitError, match="exact gradients"):
        trained(tasks(), Multitask(), 2, privacy)


CERTIFIED = Multitask("hinge", 1.0, "mean", solver="certified")
RECORD = Privacy(plans.Record(2.0), (Level("private", epsilon=8, delta=1e-3),))


def test_certified_solutions_are_the_upload_of_the_record_plan_and_each_is_charged() -> None:
    run = trained(tasks(), CERTIFIED, 3, RECORD, batch=100, epochs=1)
    run.go()
    entries = list(run.ledger.entries())
    assert len(entries) == 15
    assert {(entry.count, entry.unit) for entry in entries} == {(1, "record")}
    spent = trained(tasks(), CERTIFIED, 3, RECORD, batch=100, epochs=1).plan.client(0)
    assert spent is not None
    assert (spent.epsilon, spent.delta) == (8, 1e-3)


def test_without_noise_certified_rounds_find_the_optimum_of_the_dual_ones() -> None:
    """The same fixed point: around what was sent or around its own alpha, a device that has converged stays."""
    found = []
    for method in (CERTIFIED, Multitask("hinge", 1.0, "mean")):
        run = trained(tasks(), method, 300, batch=100, epochs=1)
        run.go()
        found.append(run.progress.server.view.extra["sums"])
    assert torch.allclose(*found, atol=0.05)


class PrivateCentre(Multitask):
    """A planted bug: the problem is centred at the device's own alpha, as Algorithm 1 prints it."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        private = view.extra["sums"] + state["alpha"].sum()
        return super().client(view._replace(extra=view.extra | {"sums": private}), state, site)


class SendsDuals(Multitask):
    """A planted bug: the exact dual variables reach the message."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        reply = super().client(view, state, site)
        return reply._replace(upload=Shared({}, {"sums": reply.upload.extra["sums"] + reply.state["alpha"].sum()}))


@pytest.mark.parametrize("kind", [PrivateCentre, SendsDuals])
def test_a_problem_around_private_numbers_and_uploaded_duals_are_refused(kind: type[Multitask]) -> None:
    with pytest.raises(TacitError, match="guarantee would not hold"):
        trained(tasks(), kind("hinge", 1.0, "mean", solver="certified"), 2, RECORD)


def test_a_device_keeps_its_local_model_where_what_it_received_is_noise() -> None:
    """With a noise that hides everything the finished models are those that never left home."""
    noisy = Privacy(plans.Record(2.0), (Level("private", delta=1e-3, noise=1e4),))
    scores = []
    received = Multitask("hinge", 1.0, "mean", solver="certified", finish=True, folds=5)
    for privacy, method in ((noisy, received), (Privacy(), replace(received, covariance="identity"))):
        found = trained(tasks(rows=20), method, 1, privacy, batch=100, epochs=1).go().scores
        assert found is not None
        scores.append(found.personal)
    assert scores[0] == pytest.approx(scores[1], abs=0.06)


def test_the_record_plan_charges_every_private_gradient_to_its_device() -> None:
    privacy = Privacy(plans.Record(1.0), (Level("private", epsilon=8, delta=1e-3),))
    run = trained(tasks(), GRADIENTS, 3, privacy, batch=100, epochs=2)
    run.go()
    entries = list(run.ledger.entries())
    assert len(entries) == 15
    assert {entry.count for entry in entries} == {2}
    assert {entry.unit for entry in entries} == {"record"}


def test_it_is_the_outermost_method() -> None:
    with pytest.raises(TacitError, match="outermost"):
        trained(tasks(), FineTuned(Multitask()), 2)


def test_the_published_noise_follows_lemma_4_and_theorem_5() -> None:
    said = AsPublished(8, 1e-3, rounds=100, rows=50, strength=0.1, beta=30, alpha_norm=2.0, ratio=1.0)
    # eps / (p sqrt K) = .8 a round, shared by two mechanisms: eps_1 = eps_2 = .8 / sqrt 2
    sigma = np.sqrt(2 * np.log(1250)) / (0.8 / np.sqrt(2))
    assert said.noise_of_message == pytest.approx(sigma * 2 * 2.0)
    assert said.noise_of_alpha == pytest.approx(sigma * (0.8 + 30) / (30 * 50))


def test_the_published_noise_provably_gives_far_less_than_it_claims() -> None:
    said = AsPublished(8, 1e-3, rounds=100, rows=200, strength=0.1, beta=30, alpha_norm=1.0)
    assert said.provable() > 100 * said.epsilon


def test_wrong_options_are_told() -> None:
    for options, told in (
        ({"loss": "cubic"}, "loss is 'cubic'"),
        ({"solver": "gradient"}, "'hinge', which has a corner"),
        ({"solver": "certified", "loss": "squared"}, "slope has no bound"),
        ({"folds": 5}, "folds are 5"),
        ({"slack": 0.0, "solver": "certified"}, "slack"),
        ({"floor": 0.0}, "floor"),
        ({"xi": 2.0}, "xi must be at most 1"),
        ({"strength": 0.0}, "strength must be above 0"),
        ({"covariance": "none"}, "covariance='none'"),
    ):
        with pytest.raises(TacitError, match=told):
            Multitask(**options)  # pyright: ignore[reportArgumentType]
    with pytest.raises(TacitError, match="positive definite"):
        trained(tasks(), Multitask(covariance=tuple([(1.0,) * 5] * 5)), 1)
    with pytest.raises(TacitError, match="there are 5 devices"):
        trained(tasks(), Multitask(covariance=((1.0,),)), 1)
