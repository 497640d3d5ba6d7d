"""Noise in every local step: what is released is what the event says, and the published figure is not a guarantee."""

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from tacit.core import tree
from tacit.core.contract import Reply, Shared, Site, Tree
from tacit.errors import TacitError
from tacit.methods import REGISTRY, AdaPeD, FedAvg, LocalOnly, LocalSgd
from tacit.privacy.accounting.accountant import epsilon, gaussian_epsilon
from tacit.privacy.audit import audit
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.stepwise import StepGuard, Stepwise, as_published
from tacit.rounds.assemble import Privacy
from tacit.rounds.preflight import interferes
from tacit.sampling.availability import Availability
from tests.worlds import OPEN, PRIVATE, assembled, largest_difference, run, states

STEPS = 4
MESSAGES = Privacy(Stepwise(0.5), (PRIVATE,))
SUM = Privacy(Stepwise(0.5, seen="sum"), (PRIVATE,))
HERE = {"model/w": torch.zeros(3000), "extra/psi": torch.zeros(())}
FAR = tree.each(lambda leaf: leaf + 100.0, HERE)


def guarded(bounds: tuple[float, ...], ratio: float | None, seed: int, now: Tree = FAR) -> Tree:
    return StepGuard(bounds, (ratio or 0.0,), torch.tensor(0), Seeded.of(seed, "test"))(HERE, HERE, now)


def test_a_step_is_clipped_as_a_whole_or_by_part() -> None:
    assert float(tree.norm(guarded((0.5,), None, 0))) == pytest.approx(0.5, rel=1e-4)
    apart = guarded((0.5, 0.1), None, 0)
    assert float(tree.norm({"w": apart["model/w"]})) == pytest.approx(0.5, rel=1e-4)
    assert float(apart["extra/psi"]) == pytest.approx(0.1, rel=1e-4)


def test_a_step_that_is_not_finite_is_noise_alone() -> None:
    bad = tree.each(lambda leaf: leaf * torch.nan, HERE)
    assert largest_difference(guarded((0.5,), None, 0, bad), HERE) == 0


def test_the_noise_of_a_step_is_what_the_event_says() -> None:
    engine, _ = assembled(AdaPeD(), MESSAGES, steps=STEPS)
    steps = engine.plan.steps
    assert steps is not None
    assert PRIVATE.noise == 1.0
    assert steps.ratios == (2.0,)
    noise = torch.cat([guarded((0.5,), steps.ratios[0], seed, HERE)["model/w"] for seed in range(20)])
    assert float(noise.std()) == pytest.approx(2 * 0.5 * 1.0, rel=0.02)


def test_parts_with_a_bound_each_cost_as_much_as_one_gaussian() -> None:
    engine, _ = assembled(AdaPeD(), Privacy(Stepwise(0.5, 0.1), (PRIVATE,)), steps=STEPS)
    steps = engine.plan.steps
    assert steps is not None
    each = steps.ratios[0] / 2  # std over the part's sensitivity
    assert (2 * each**-2) ** -0.5 == pytest.approx(PRIVATE.noise)


def test_no_two_steps_rounds_or_clients_share_noise() -> None:
    """A client whose data never move it sends pure noise: as independent as its key says."""
    it = run(Still(), MESSAGES, rounds=1, rate=1.0, steps=STEPS)
    rows = []
    for round in (0, 1):
        inputs = it.engine.inputs_for({}, np.arange(8), round)
        messages, *_ = it.engine.encoded(
            it.engine.task, 0, it.progress.server.view, it.progress.public, torch.tensor(round), inputs
        )
        rows.append(tree.flatten(messages.body, 1))
    seen = torch.cat(rows)
    assert float(seen.std()) == pytest.approx(math.sqrt(STEPS) * 2 * 0.5, rel=0.1)
    assert float((torch.corrcoef(seen) - torch.eye(16)).abs().max()) < 0.5
    guard = StepGuard((1.0,), (1.0,), torch.tensor(0), Seeded.of(0, "x"))
    first = guard(HERE, HERE, HERE)
    second = tree.sub(guard(HERE, first, first), first)
    assert abs(float(torch.corrcoef(torch.stack([first["model/w"], second["model/w"]]))[0, 1])) < 0.08


@dataclass(frozen=True)
class Still(FedAvg):
    """Guards every step, and takes none."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        now = view.model
        for _ in range(site.steps):
            now = site.guard(view.model, now, now)
        return Reply(Shared(tree.sub(now, view.model)), state)


def test_a_sum_carries_the_whole_noise_of_its_round_and_each_message_a_share() -> None:
    it = run(Still(), Privacy(Stepwise(0.5, seen="sum", least=4), (PRIVATE,)), rate=1.0, steps=STEPS)
    inputs = it.engine.inputs_for({}, np.arange(20), 0)
    messages, *_ = it.engine.encoded(
        it.engine.task, 0, it.progress.server.view, it.progress.public, torch.tensor(0), inputs
    )
    share = float(tree.flatten(messages.body, 1).std())
    assert share == pytest.approx(STEPS * 0.5 / math.sqrt(4), rel=0.05)
    assert it.plan.client(0).relation == "zero-out"  # pyright: ignore[reportOptionalMemberAccess]


def test_every_noisy_step_of_a_participation_is_charged_to_its_client() -> None:
    it = run(AdaPeD(), MESSAGES, steps=STEPS)
    it.go()
    entries = list(it.ledger.entries())
    assert entries
    assert {entry.count for entry in entries} == {STEPS}
    assert {entry.relation for entry in entries} == {"replace"}


@pytest.mark.parametrize("seen", ["messages", "sum"])
def test_calibrated_noise_spends_the_budget_and_no_more(seen: str) -> None:
    level = Level("private", epsilon=4.0, delta=1e-3)
    request = Stepwise(0.5, seen=seen, participations=3)  # pyright: ignore[reportArgumentType]
    engine, _ = assembled(AdaPeD(), Privacy(request, (level,)), steps=STEPS)
    account = engine.plan.client(0)
    assert account is not None
    spent = epsilon({account.event: 3 * account.count}, 1e-3, account.relation)
    assert 3.9 < spent <= 4.0


def test_who_opted_out_is_clipped_and_gets_no_noise_and_no_account() -> None:
    mixed = Privacy(Stepwise(0.5), (PRIVATE, OPEN), {"open": 0.3})
    engine, _ = assembled(FedAvg(), mixed, steps=STEPS)
    assert engine.plan.steps is not None
    assert engine.plan.steps.ratios[1] == 0
    level = engine.plan.setting.choices.level
    assert all((engine.plan.client(k) is None) == (level[k] == 1) for k in range(20))


def test_a_number_of_steps_that_tells_of_the_rows_is_refused() -> None:
    with pytest.raises(TacitError, match="steps="):
        assembled(FedAvg(), MESSAGES)


def test_a_round_of_too_few_clients_is_discarded_and_charged() -> None:
    it = run(FedAvg(), Privacy(Stepwise(0.5, seen="sum", least=21), (PRIVATE,)), steps=STEPS)
    reports = it.go().reports
    assert largest_difference(it.progress.server.view.model, it.engine.start) == 0
    assert len(list(it.ledger.entries())) == sum(report.cohort for report in reports) > 0


def test_a_round_that_dropouts_leave_too_small_for_its_noise_is_discarded() -> None:
    it = run(FedAvg(), Privacy(Stepwise(0.5, seen="sum", least=5), (PRIVATE,)), steps=STEPS)
    it.engine = replace(it.engine, devices=Availability(drop=0.5))
    used = set()
    while it.progress.round < it.plan.setting.rounds:
        before = it.progress.server.view.model
        report = it.step()
        moved = largest_difference(it.progress.server.view.model, before) > 0
        assert moved == (report.cohort >= 5)
        used.add(moved)
    assert used == {True, False}


@pytest.mark.parametrize("menu", [(PRIVATE, OPEN), (PRIVATE, Level("less", noise=0.1, delta=1e-3))])
def test_shares_of_noise_that_are_not_full_are_refused(menu: tuple[Level, Level]) -> None:
    mixed = Privacy(Stepwise(0.5, seen="sum"), menu, {menu[1].name: 0.3})
    with pytest.raises(TacitError, match="one private level"):
        assembled(FedAvg(), mixed, steps=STEPS)


@dataclass(frozen=True)
class Unguarded(FedAvg):
    """Steps around the guard."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        reply = super().client(view, state, site)
        slope = site.grad(view.model, 0)
        return Reply(Shared(tree.axpy(-0.1, slope, reply.upload.model)), state)


@dataclass(frozen=True)
class Hasty(FedAvg):
    """Guards twice in a step."""

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        now = view.model
        for _ in range(2 * site.steps):
            now = site.guard(view.model, now, now)
        return Reply(Shared(tree.sub(now, view.model)), state)


def test_an_upload_that_the_guard_did_not_see_is_refused() -> None:
    with pytest.raises(TacitError, match="guard"):
        assembled(Unguarded(), MESSAGES, steps=STEPS)
    assembled(Unguarded(), SUM, steps=STEPS)


def test_more_guarded_steps_than_were_paid_for_fail_before_release() -> None:
    with pytest.raises(TacitError, match="accounted for"):
        run(Hasty(), MESSAGES, steps=STEPS).go()


def test_a_method_that_guards_no_step_is_refused_before_the_first_round() -> None:
    with pytest.raises(TacitError, match="guarded 0 steps and 4 were accounted for"):
        assembled(REGISTRY["personal"](), SUM, steps=STEPS)


@pytest.mark.parametrize("name", REGISTRY)
def test_every_method_guards_what_it_uploads(name: str) -> None:
    engine, _ = assembled(REGISTRY[name](), Privacy())
    # what a prior has to say of a trained model is no sum of steps
    assert interferes(engine.method, engine.task, engine.federation, engine.start, "guard") == (name == "personal")


def test_a_method_that_needs_each_message_is_refused_where_messages_carry_a_share_of_the_noise() -> None:
    with pytest.raises(TacitError, match="needs every client's own message"):
        assembled(REGISTRY["multitask"](), SUM, steps=STEPS)


@pytest.mark.parametrize("privacy", [MESSAGES, SUM], ids=["messages", "sum"])
def test_the_result_does_not_depend_on_the_chunk_size(privacy: Privacy) -> None:
    one, other = (run(AdaPeD(), privacy, chunk=chunk, steps=STEPS) for chunk in (1, 100))
    for it in (one, other):
        it.go()
    assert largest_difference(tree.join(one.progress.server.view), tree.join(other.progress.server.view)) < 1e-9
    assert largest_difference(states(one), states(other)) < 1e-9


def test_training_alone_uploads_nothing_and_owes_nothing() -> None:
    it = run(LocalOnly(), MESSAGES, steps=STEPS)
    it.go()
    assert list(it.ledger.entries()) == []


DELTA, TRIALS = 1e-3, 20_000


def drifting(z: float, direction: float) -> Tensor:
    """Uploads of a client that steps as far as it may in one direction; many trials."""
    keys = torch.randint(0, 2**62, (TRIALS, 2), generator=torch.Generator().manual_seed(int(direction)))

    def upload(key: Tensor) -> Tensor:
        guard, here = StepGuard((1.0,), (2 * z,), torch.tensor(0), Seeded(key)), {"w": torch.zeros(1)}
        for _ in range(STEPS):
            here = guard(here, here, tree.each(lambda leaf: leaf + direction * 50.0, here))
        return here["w"][0]

    return vmap(upload)(keys)


def attack(z: float, claim: float) -> float:
    inside, outside = (drifting(z, direction).numpy().astype(np.float64) for direction in (1.0, -1.0))
    return audit(inside, outside, claim, DELTA).lower_bound


def test_no_attack_disproves_the_price_of_all_steps_and_halved_noise_is_found() -> None:
    z = 4.0
    claim = gaussian_epsilon(z / math.sqrt(STEPS), DELTA)
    bound = attack(z, claim)
    assert claim / 4 < bound <= claim
    assert attack(z / 2, claim) > claim


def test_an_attack_disproves_accounting_of_one_step_a_round() -> None:
    """Theorem 7's sqrt(tau): the price of one step for a round of four."""
    z = 4.0
    assert attack(z, 1.0) > gaussian_epsilon(z, DELTA)


def test_the_published_figure_is_below_the_provable_one_and_the_plan_says_both() -> None:
    level = Level("private", epsilon=4.0, delta=1e-3)
    engine, _ = assembled(AdaPeD(LocalSgd(0.1)), Privacy(Stepwise(0.5), (level,)), rounds=50, rate=0.1, steps=STEPS)
    assert engine.plan.steps is not None
    printed = as_published(engine.plan.steps.ratios[0], 1e-3, engine.plan.setting)
    assert printed < 1.0
    assert any("as published" in note and f"{printed:.3g}" in note for note in engine.plan.notes)
