"""What every method promises. A method is tested here by being registered."""

import re
from dataclasses import is_dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from tacit.core import tree
from tacit.core.contract import Method, Reply
from tacit.errors import TacitError
from tacit.methods import (
    APFL,
    IFCA,
    KL,
    L1,
    REGISTRY,
    AdaPeD,
    Ditto,
    FedAvg,
    FedDyn,
    FedEM,
    FineTuned,
    KeepLocal,
    LocalSgd,
    Mixture,
    Multitask,
    PerFedAvg,
    Personal,
    PPSgd,
    Scaffold,
    ServerAdam,
    ServerSgd,
)
from tacit.privacy import mechanisms as plans
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.gradient import Counted
from tacit.rounds.assemble import Assembled, Privacy
from tacit.rounds.preflight import interferes
from tacit.simulation.chunks import Inputs
from tacit.simulation.client_states import MemoryStore, NoStates
from tacit.simulation.cohort_program import CohortProgram
from tests.worlds import CENTRAL, PLANS, RECORD, assembled, largest_difference, ragged, run, states

LOCAL_WITHOUT_NOISE = Privacy(plans.Local(Fixed(0.5)), (Level("private", delta=1e-3, noise=1e-9),))

COMPOSED: dict[str, Method] = {
    "fedavg with momentum and adam": FedAvg(LocalSgd(momentum=0.9, weight_decay=0.01), ServerAdam()),
    "ditto of scaffold": Ditto(Scaffold(), strength=1.0),
    "fine-tuned scaffold": FineTuned(Scaffold(optimizer=ServerSgd(momentum=0.5))),
    "kept ditto": KeepLocal(("norm", "head"), Ditto(FedAvg(optimizer=ServerSgd(momentum=0.5)))),
    "kept scaffold": KeepLocal(("norm",), Scaffold()),
    "fedrep": KeepLocal(("head",), FedAvg(LocalSgd(momentum=0.5)), first=0.6),
    "kept at a pace of its own": KeepLocal(("norm",), FedAvg(LocalSgd(momentum=0.5)), pace=0.25),
    "multitask by gradients": Multitask("logistic", solver="gradient", covariance="mean"),
    "multitask, certified": Multitask("hinge", 1.0, covariance="mean", solver="certified", finish=True, folds=2),
    "multitask, smooth and finished": Multitask("smooth-hinge", covariance="mean", finish=True),
    "noisy pp-sgd": PPSgd(noisy=True),
    "kept pp-sgd": KeepLocal(("norm",), PPSgd(optimizer=ServerSgd(momentum=0.5), noisy=True)),
    "kept adam": KeepLocal(("norm",), FedAvg(optimizer=ServerAdam())),
    "hessian-free per-fedavg": PerFedAvg(hessian="hessian-free"),
    "fedem of three, with server momentum": FedEM(LocalSgd(momentum=0.5), 3, ServerSgd(momentum=0.5)),
    "ifca of three, kept": KeepLocal(("norm",), IFCA(clusters=3, optimizer=ServerSgd(3.0, momentum=0.5))),
    "kept feddyn": KeepLocal(("norm",), FedDyn(LocalSgd(momentum=0.5))),
    "apfl with a fixed share": APFL(adaptive=False),
    "kept adaped": KeepLocal(("norm",), AdaPeD()),
    "laplace": Personal(L1()),
    "kl": Personal(KL()),
    "mixture": Personal(Mixture(3)),
}
METHODS: dict[str, Method] = {name: factory() for name, factory in REGISTRY.items()} | COMPOSED
REFUSED = {"adaped", "adaped-alone", "quped", "mutual-learning", "kept adaped", "personal", "pp-sgd"} | {
    "laplace",
    "kl",
    "mixture",
}
"""What they upload, or ask of private gradients, depends on a personal model that exact gradients trained."""
BOUND = 0.5


@pytest.fixture(params=METHODS, ids=list(METHODS))
def method(request: pytest.FixtureRequest) -> Method:
    return METHODS[request.param]


def refused(method: Method, plan: str) -> str | None:
    """Why a plan does not run a method; None where it does."""
    if method.gather and plan in ("central", "grouped", "distributed"):
        return "needs every client's own message"
    sdca = isinstance(method, Multitask) and method.solver == "sdca"
    if plan == "record" and (sdca or method in [METHODS[name] for name in REFUSED]):
        return "exact gradients"
    return None


def unless_refused(method: Method, plan: str) -> Privacy:
    """The plan, or a skip, once the refusal was seen."""
    if why := refused(method, plan):
        with pytest.raises(TacitError, match=why):
            assembled(method, PLANS[plan])
        pytest.skip(f"{plan} refuses it: {why}")
    return PLANS[plan]


def at_client_level(method: Method) -> Assembled:
    return assembled(method, LOCAL_WITHOUT_NOISE if method.gather else CENTRAL)


def everybody(engine: CohortProgram, purpose: str = "batches") -> Inputs:
    clients = np.arange(engine.federation.clients)
    view = engine.method.init(engine.start).view
    state = (
        NoStates(len(clients))
        if not (first := engine.method.join(view, engine.start))
        else MemoryStore(len(clients), first)
    )
    return engine.inputs_for(state.read(clients, first), clients, 0, purpose)


def replies(engine: CohortProgram, inputs: Inputs) -> Reply:
    """The method's plain replies, one row a client."""
    view = engine.method.init(engine.start).view

    def one(given: Inputs) -> Reply:
        return engine.method.client(view, given.state, engine.site(engine.task, given, 0, 0)[0])

    return torch.func.vmap(one)(inputs)


def test_it_is_a_frozen_dataclass_and_works_with_its_defaults(method: Method) -> None:
    assert is_dataclass(method)
    assert type(method)() == type(method)()
    with pytest.raises(AttributeError):
        method.anything = 1  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("scale", [1.0, 1e18, float("nan")], ids=["tame", "huge", "nan"])
def test_an_encoded_upload_is_bounded_whatever_the_data(method: Method, scale: float) -> None:
    engine, _ = at_client_level(method)
    with torch.no_grad():
        engine.federation.x.mul_(scale)
    release = engine.plan.release
    view = engine.method.init(engine.start).view
    messages, *_ = engine.encoded(engine.task, 0, view, release.start(), torch.tensor(0), everybody(engine))
    norms = torch.func.vmap(lambda body: tree.norm(body))(messages.body) if messages.body else torch.zeros(1)
    assert float(norms.max()) <= BOUND * (1 + 1e-6 * method.gather)  # Local adds a noise of 1e-9 there


def test_the_upload_has_the_shape_of_the_broadcast_and_nothing_personal(method: Method) -> None:
    engine, shapes = at_client_level(method)
    view = engine.method.init(engine.start).view
    broadcast = tree.join(view)
    for name, leaf in shapes.upload.items():
        assert leaf.shape == broadcast[name].shape[1 if method.gather else 0 :]
    assert not any(name.startswith(("personal", "kept", "tuned")) for name in shapes.upload)
    if isinstance(method, KeepLocal):
        assert not any(kept in name for kept in method.names for name in [*shapes.upload, *broadcast])


def test_exact_gradients_reach_neither_the_upload_nor_private_questions(method: Method) -> None:
    engine, _ = at_client_level(method)
    assert interferes(engine.method, engine.task, engine.federation, engine.start) == bool(refused(method, "record"))


def test_a_method_whose_personal_state_feeds_the_shared_gradient_is_refused_under_record() -> None:
    with pytest.raises(TacitError, match="private gradients at personal parameters that were learned with exact"):
        assembled(METHODS["pp-sgd"], RECORD)


def test_the_page_says_which_methods_the_record_plan_accepts() -> None:
    page = (Path(__file__).parents[2] / "docs" / "generative-view.md").read_text()
    said = dict(re.findall(r"^\| `([\w-]+)` \| (yes|no) \|", page, re.MULTILINE))
    assert said == {name: "no" if refused(METHODS[name], "record") else "yes" for name in REGISTRY}


@pytest.mark.parametrize("plan", PLANS)
def test_the_result_does_not_depend_on_the_chunk_size(method: Method, plan: str) -> None:
    """Over two rounds: half of the clients come back to states that were kept."""
    privacy = unless_refused(method, plan)
    results = [run(method, privacy, ragged(10), rounds=2, chunk=chunk) for chunk in (1, 4)]
    for result in results:
        result.go()
    alone, together = results
    assert largest_difference(tree.join(alone.progress.server.view), tree.join(together.progress.server.view)) < 1e-9
    assert largest_difference(states(alone), states(together)) < 1e-9
    assert np.array_equal(alone.store.touched, together.store.touched)


@pytest.mark.parametrize("plan", ["local", "distributed"])
def test_a_recorded_program_gives_the_same_as_the_plain_one(method: Method, plan: str) -> None:
    privacy = unless_refused(method, plan)
    plain, recorded = (run(method, privacy, ragged(most=2), rounds=2, chunk=20) for _ in range(2))
    recorded.engine = replace(recorded.engine, compile="auto" if method.gather else "require", programs={})
    for result in (plain, recorded):
        result.go()
    assert bool(recorded.engine.programs) != method.gather
    views = [tree.join(result.progress.server.view) for result in (plain, recorded)]
    assert largest_difference(*views) < 1e-9
    assert largest_difference(states(plain), states(recorded)) < 1e-9


def test_single_precision_agrees_to_four_digits(method: Method) -> None:
    privacy = PLANS["local"] if method.gather else CENTRAL
    results = [run(method, privacy, ragged(10), chunk=chunk, dtype=torch.float32) for chunk in (1, 100)]
    for result in results:
        result.go()
    views = [tree.join(result.progress.server.view) for result in results]
    assert largest_difference(*views) < 1e-4


def test_a_client_with_one_example_trains(method: Method) -> None:
    engine, _ = at_client_level(method)
    reply = replies(engine, everybody(engine))
    for leaf in [*tree.join(reply.upload).values(), *reply.state.values()]:
        assert leaf[0].isfinite().all()


def test_a_client_without_a_live_step_changes_nothing(method: Method) -> None:
    engine, _ = at_client_level(method)
    inputs = everybody(engine)
    asleep = inputs._replace(live=torch.zeros_like(inputs.live))
    reply = replies(engine, asleep)
    assert all((leaf == 0).all() for leaf in tree.join(reply.upload).values())
    assert largest_difference(reply.state, asleep.state) == 0


def test_dead_steps_leave_no_trace(method: Method) -> None:
    """Steps that pad a client to its neighbours' length change neither upload nor state."""
    engine, _ = at_client_level(method)
    inputs = everybody(engine)

    def longer(leaf: Tensor) -> Tensor:
        return torch.cat([leaf, leaf], 1)

    padded = inputs._replace(
        rows=longer(inputs.rows), mask=longer(inputs.mask), live=torch.cat([inputs.live, inputs.live & False], 1)
    )
    plain, more = replies(engine, inputs), replies(engine, padded)
    assert largest_difference(tree.join(plain.upload), tree.join(more.upload)) < 1e-12
    assert largest_difference(plain.state, more.state) < 1e-12


def test_an_empty_poisson_batch_still_adds_its_noise(method: Method) -> None:
    engine, shapes = assembled(method, unless_refused(method, "record"))
    inputs = everybody(engine)
    empty = inputs._replace(mask=torch.zeros_like(inputs.mask))
    upload = tree.join(replies(engine, empty).upload)
    noisy = [bool(leaf[1].abs().sum() > 0) for leaf in upload.values()]
    base = method.base if isinstance(method, KeepLocal) else method
    assert sum(noisy) == len(noisy) // (base.clusters if isinstance(base, IFCA) else 1)  # it sends one cluster
    assert bool(upload) == bool(shapes.upload)


def test_the_number_of_private_queries_of_every_batch_is_known_beforehand(method: Method) -> None:
    engine, _ = assembled(method, unless_refused(method, "record"))
    method = engine.method
    view = method.init(engine.start).view
    seen: list[Counted] = []

    def one(given: Inputs) -> Reply:
        site, private = engine.site(engine.task, given, 0, 0)
        seen.append(private)
        return method.client(view, given.state, site)

    inputs = everybody(engine)
    torch.func.vmap(one)(inputs)
    steps = inputs.live.shape[1]
    assert seen[0].by_batch(steps) == engine.plan.setting.queries(steps)


def test_predictions_are_finite_for_a_client_that_never_took_part(method: Method) -> None:
    engine, _ = at_client_level(method)
    method = engine.method
    view = method.init(engine.start).view
    state = method.join(view, engine.start)
    site, _ = engine.site(engine.task, tree_map(lambda leaf: leaf[1], everybody(engine, "adapt")), 0, 0)
    outputs = method.predict(engine.task, view, method.adapt(view, state, site), engine.federation.test_x[:5])
    assert outputs.shape == (5, 3)
    assert outputs.isfinite().all()
