"""The personalized methods against forms that can be written down by hand."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad

from tacit.core import tree
from tacit.core.contract import Losses, Method, Shared, Site, Tree
from tacit.errors import TacitError
from tacit.methods import (
    APFL,
    KL,
    L1,
    L2,
    AdaPeD,
    AdaPeDAlone,
    FedAvg,
    FedEM,
    LocalOnly,
    LocalSgd,
    Mixture,
    MutualLearning,
    PerFedAvg,
    Personal,
    PFedMe,
    QuPeD,
)
from tacit.methods.mutual import kl, log_normaliser
from tacit.rounds.assemble import Privacy
from tests.methods.test_closed_forms import START, TASK, reply, site
from tests.worlds import largest_difference, run, states

OTHER = {
    name: leaf + 0.3 * torch.sin(torch.arange(leaf.numel(), dtype=leaf.dtype)).view_as(leaf)
    for name, leaf in START.items()
}


def parabola(curvature: float, optimum: float) -> Site:
    """A client whose loss is curvature / 2 (w - optimum)^2 in every step."""

    def gradient(p: Tree, step: int, losses: Losses | None = None) -> Tree:
        return {"w": curvature * (p["w"] - optimum)}

    return site()._replace(grad=gradient, private_grad=gradient)


def number(value: float) -> Tree:
    return {"w": torch.tensor(value, dtype=torch.float64)}


def test_kl_is_zero_between_equal_models_and_positive_otherwise() -> None:
    x = site().batch(0).x
    assert float(kl(TASK, START, START, x).abs().max()) < 1e-15
    assert float(kl(TASK, START, OTHER, x).min()) > 0


def test_adaped_with_infinite_psi_is_local_training() -> None:
    here = reply(AdaPeD(psi=1e30), site())
    assert largest_difference(here.state, reply(LocalOnly(), site()).state) < 1e-12
    assert largest_difference(here.upload.model, tree.zeros(START)) < 1e-12


def test_adapeds_psi_settles_at_the_divergence() -> None:
    """The gradient 1 / (2 psi) - KD / (2 psi^2) vanishes at psi = KD: the variance is what it measures."""
    method = AdaPeD(LocalSgd(1e-12), LocalSgd(1e-12), psi=2.0, psi_lr=0.02, floor=1e-3)
    here = site()
    divergence = torch.stack([kl(TASK, OTHER, START, here.batch(step).x).mean() for step in range(here.steps)])
    view, psi = method.init(START).view, []
    for _ in range(300):
        change = method.client(view, OTHER, here).upload.extra["psi"]
        view = Shared(view.model, {"psi": view.extra["psi"] + change})
        psi.append(float(view.extra["psi"]))
    assert psi[-1] == pytest.approx(float(divergence.mean()), rel=0.2)
    assert psi[0] > psi[-1]


def test_the_normaliser_is_the_integral_over_all_outputs() -> None:
    """Section 6.2.1 for two classes by quadrature, and for three over a grid of the simplex."""
    p = np.array([0.2, 0.8])
    whole, _ = quad(lambda q: np.exp(-3 * (p * np.log(p / np.array([q, 1 - q]))).sum()), 0, 1)
    assert float(log_normaliser(torch.tensor(3.0), torch.tensor(p).log()).exp()) == pytest.approx(whole, rel=1e-6)
    p, side = np.array([0.2, 0.3, 0.5]), (np.arange(400) + 0.5) / 400
    a, b = np.meshgrid(side, side)
    a, b = a[a + b < 1], b[a + b < 1]
    gaps = sum(share * np.log(share / q) for share, q in zip(p, (a, b, 1 - a - b), strict=True))
    assert float(log_normaliser(torch.tensor(3.0), torch.tensor(p).log()).exp()) == pytest.approx(
        float(np.exp(-3 * gaps).mean()) * len(a) / 400**2, rel=0.01
    )


def test_with_the_exact_normaliser_psi_settles_where_the_divergence_is_the_one_it_expects() -> None:
    """The slope in 1 / (2 psi) is KD less its mean under the prior."""
    method = AdaPeD(LocalSgd(1e-12), LocalSgd(1e-12), psi=0.5, psi_lr=0.05, floor=1e-3, normaliser="exact")
    here, view = site(), method.init(START).view
    for _ in range(50):
        change = method.client(view, OTHER, here).upload.extra["psi"]
        view = Shared(view.model, {"psi": view.extra["psi"] + change})
    x = torch.cat([here.batch(step).x for step in range(here.steps)])
    teacher = TASK.apply(START, x)
    strength = (1 / (2 * view.extra["psi"])).double().requires_grad_()
    (slope,) = torch.autograd.grad(log_normaliser(strength, teacher.detach()).mean(), strength)
    assert float(kl(TASK, START, OTHER, x).mean()) == pytest.approx(-float(slope), rel=0.1)


def test_adapeds_psi_never_falls_below_its_floor() -> None:
    method = AdaPeD(psi=0.6, psi_lr=10.0)
    here = reply(method, site())
    assert float(here.upload.extra["psi"]) == pytest.approx(-0.1)
    low = method.server(method.init(START), Shared(tree.zeros(START), {"psi": torch.tensor(-5.0)}), 1.0)
    assert float(low.view.extra["psi"]) == 0.5


@pytest.mark.parametrize("far", [float("nan"), float("inf")])
def test_a_shared_model_beyond_the_floats_leaves_training_alone(far: float) -> None:
    """Noise may drive mu anywhere: a personal model must never be worse off for it than without."""
    method = AdaPeD()
    lost = Shared(tree.each(lambda leaf: torch.full_like(leaf, far), START), method.init(START).view.extra)
    here = method.client(lost, START, site()).state
    assert largest_difference(here, reply(LocalOnly(), site()).state) < 1e-12


@pytest.mark.parametrize("method", [AdaPeD, QuPeD])
def test_a_shared_model_that_is_sure_and_wrong_learns_only_by_mutual_distillation(method: type[Method]) -> None:
    """It says one class for all, against clients that know better: as published, its gradient has vanished."""
    one = START | {"head.bias": torch.tensor([60.0, 0.0, 0.0]).double()}
    for how, learns in (("mutual", True), ("as-published", False)):
        told = method(distillation=how)  # pyright: ignore[reportCallIssue]
        upload = told.client(told.init(one).view, OTHER, site()).upload.model
        assert bool(tree.norm(upload) > 1e-3) is learns
    with pytest.raises(TacitError, match="as-published"):
        method(distillation="both")  # pyright: ignore[reportCallIssue]


def test_adaped_with_a_fixed_psi_is_quped_up_to_scale() -> None:
    """(1 - l) f + l KD and f + KD / (2 psi) have the same steps if l / (1 - l) = 1 / (2 psi) and the rates make up."""
    share = 0.25
    quped = reply(QuPeD(LocalSgd(0.1), LocalSgd(0.1), share), site())
    adaped = reply(
        AdaPeD(LocalSgd(0.1 * (1 - share)), LocalSgd(0.1 * (1 - share)), psi=(1 - share) / (2 * share), psi_lr=0.0),
        site(),
    )
    assert largest_difference(quped.state, adaped.state) < 1e-12
    assert largest_difference(quped.upload.model, adaped.upload.model) < 1e-12


def test_quped_without_distillation_is_local_training() -> None:
    assert largest_difference(reply(QuPeD(distil=0.0), site()).state, reply(LocalOnly(), site()).state) < 1e-12


def test_mutual_learning_by_labels_alone_is_two_separate_trainings() -> None:
    both = reply(MutualLearning(LocalSgd(0.1), LocalSgd(0.3), alpha=1.0, beta=1.0), site())
    assert largest_difference(both.state, reply(LocalOnly(LocalSgd(0.3)), site()).state) < 1e-12
    assert largest_difference(both.upload.model, reply(FedAvg(LocalSgd(0.1)), site()).upload.model) < 1e-12


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 1.0), (1.0, 0.0)])
def test_in_mutual_learning_a_model_of_weight_zero_learns_from_the_other_alone(alpha: float, beta: float) -> None:
    """A first step from equal models: without its own loss a model stays where it is, since they agree."""
    method, alone = MutualLearning(LocalSgd(0.1), LocalSgd(0.1), alpha, beta), site()
    one = alone._replace(steps=1)
    done = method.client(method.init(START).view, START, one)
    moved = float(tree.norm(tree.sub(done.state, START))), float(tree.norm(done.upload.model))
    assert [distance > 1e-6 for distance in moved] == [alpha > 0, beta > 0]


def test_pfedmes_inner_problem_is_solved_to_its_prox() -> None:
    """argmin a/2 (t - o)^2 + lambda/2 (t - w)^2 = (a o + lambda w) / (a + lambda)."""
    method = PFedMe(LocalSgd(0.1), strength=2.0, inner_steps=500)
    near = method.prox(number(5.0), number(1.0), parabola(3.0, 4.0), 0)
    assert float(near["w"]) == pytest.approx((3 * 4 + 2 * 1) / 5, abs=1e-9)


def test_pfedme_moves_the_shared_model_down_the_moreau_envelope() -> None:
    method = PFedMe(LocalSgd(0.1), strength=2.0, rate=0.1, inner_steps=500)
    view = method.init(number(1.0)).view
    w = 1.0
    for _ in range(site().steps):
        w -= 0.1 * 2.0 * (w - (3 * 4 + 2 * w) / 5)
    assert float(method.client(view, view.model, parabola(3.0, 4.0)).upload.model["w"]) == pytest.approx(w - 1.0)


def test_per_fedavg_with_zero_inner_rate_is_fedavg() -> None:
    method = PerFedAvg(inner=0.0)
    assert largest_difference(reply(method, site()).upload.model, reply(FedAvg(), site()).upload.model) == 0
    view = method.init(START).view
    assert largest_difference(method.adapt(view, {}, site()), START) == 0


@pytest.mark.parametrize(("hessian", "factor"), [("first-order", 1.0), ("hessian-free", 0.7)])
def test_per_fedavg_follows_the_gradient_after_adaptation(hessian: str, factor: float) -> None:
    """On a parabola of curvature 3 with alpha = .1: grad f(w - alpha f') = 3 (1 - .3) (w - o), times I - alpha H."""
    method = PerFedAvg(LocalSgd(0.01), inner=0.1, hessian=hessian)  # pyright: ignore[reportArgumentType]
    view = method.init(number(1.0)).view
    w = 1.0
    for _ in range(site().steps):
        w -= 0.01 * factor * 3 * 0.7 * (w - 4.0)
    assert float(method.client(view, {}, parabola(3.0, 4.0)).upload.model["w"]) == pytest.approx(w - 1.0, rel=1e-9)


def test_fedem_with_one_component_is_fedavg() -> None:
    one, fedavg = reply(FedEM(components=1), site()), reply(FedAvg(), site())
    assert largest_difference(one.upload.model, fedavg.upload.model) < 1e-12
    assert one.upload.extra == {}
    assert float(one.state["weights"]) == pytest.approx(1.0)


def test_fedems_weights_are_the_mean_responsibilities() -> None:
    method, here = FedEM(LocalSgd(1e-12)), site()
    view = method.init(START).view
    others = tree.strip("1", view.extra)
    pi = torch.tensor([0.3, 0.7], dtype=torch.float64)
    mean = []
    for step in range(here.steps):
        x, y, _ = here.batch(step)
        likely = torch.stack([pi[0] * (-TASK.losses(START, x, y)).exp(), pi[1] * (-TASK.losses(others, x, y)).exp()])
        mean.append((likely / likely.sum(0)).mean(1))
    got = method.client(view, {"weights": pi}, here).state["weights"]
    assert torch.allclose(got, torch.stack(mean).mean(0), atol=1e-9)


def test_fedems_components_differ_at_the_start_and_are_one_upload() -> None:
    method = FedEM(components=3)
    view = method.init(START).view
    assert tree.size(view.extra) == 2 * tree.size(START)
    assert largest_difference(tree.strip("1", view.extra), tree.strip("2", view.extra)) > 0
    assert tree.join(reply(method, site()).upload).keys() == tree.join(view).keys()


def test_a_client_that_was_not_asked_keeps_its_mixture() -> None:
    it = run(FedEM(), Privacy(), rounds=1, rate=0.3)
    it.go()
    kept = states(it)["weights"][torch.from_numpy(~it.store.touched)]
    assert np.allclose(kept, 0.5)


@pytest.mark.parametrize(("alpha", "alone"), [(1.0, True), (0.0, False)])
def test_apfl_at_the_ends_is_local_training_or_fedavg(alpha: float, alone: bool) -> None:
    here = reply(APFL(alpha=alpha, adaptive=False), site())
    shared = reply(FedAvg(), site()).upload.model
    wanted = reply(LocalOnly(), site()).state if alone else tree.add(START, shared)
    assert largest_difference(tree.strip("u", here.state), wanted) < 1e-12
    assert largest_difference(here.upload.model, shared) < 1e-12


def test_apfl_turns_to_the_better_model() -> None:
    """v sits at the optimum and w far away, so alpha grows."""
    method = APFL(LocalSgd(1e-6), LocalSgd(0.05), alpha=0.5)
    view = method.init(number(-1.0)).view
    state = tree.prefix("v", number(1.0)) | tree.prefix("u", number(0.0)) | {"alpha": torch.tensor(0.5).double()}
    assert float(method.client(view, state, parabola(1.0, 1.0)).state["alpha"]) > 0.5


@pytest.mark.parametrize("method", [AdaPeD, QuPeD, MutualLearning, PerFedAvg, APFL])
def test_momentum_is_refused_where_steps_take_turns(method: type[Method]) -> None:
    with pytest.raises(TacitError, match="momentum"):
        method(local=LocalSgd(momentum=0.9))  # pyright: ignore[reportCallIssue]


def test_a_client_that_was_not_asked_trains_on_with_what_it_met_last() -> None:
    """Algorithm 6: from the second round on, a client that is never asked again is AdaPeD's personal step alone."""
    method, here = AdaPeDAlone(psi=1e30, most=2), site()
    view = method.init(START).view
    once = method.client(view, method.join(view, START), here).state
    alone = [once]
    for _ in range(4):
        alone.append(method.idle(alone[-1], here))
    trained = LocalSgd().run(tree.strip("theta", once), here, here.grad)
    assert largest_difference(tree.strip("theta", alone[1]), trained) < 1e-12
    assert largest_difference(alone[1], alone[2]) > 0
    assert largest_difference(alone[2], alone[3]) == 0, "two rounds in a row are the most"
    again = method.client(view, alone[4], here).state
    assert largest_difference(method.idle(again, here), again) > 0, "being asked starts the count anew"


def test_everybody_trains_in_every_round_when_clients_idle() -> None:
    it = run(AdaPeDAlone(), Privacy(), rounds=1, rate=0.3)
    it.go()
    plain = run(AdaPeD(), Privacy(), rounds=1, rate=0.3)
    plain.go()
    idle = torch.from_numpy(~plain.store.touched)
    moved = tree.each(lambda leaf, start: leaf[idle] - start, tree.strip("theta", states(it)), it.engine.start)
    assert all(float(leaf.flatten(1).norm(dim=1).min()) > 0 for leaf in [moved["head.bias"]])
    assert largest_difference(tree.join(it.progress.server.view), tree.join(plain.progress.server.view)) == 0


def settled(method: Personal, optima: list[float], rounds: int = 400) -> tuple[Shared, list[float]]:
    """Gamma and the thetas of clients with losses 1/2 (w - optimum)^2, everybody in every round."""
    server = method.init(number(0.1))
    kept = [method.join(server.view, number(0.1))] * len(optima)
    for _ in range(rounds):
        answers = [method.client(server.view, kept[k], parabola(1.0, o)) for k, o in enumerate(optima)]
        kept = [answer.state for answer in answers]
        total = tree.join(answers[0].upload)
        for answer in answers[1:]:
            total = tree.add(total, tree.join(answer.upload))
        server = method.server(server, tree.split(tree.scale(total, 1 / len(optima))), 1.0)
    return server.view, [float(each["w"]) for each in kept]


def test_a_prior_without_strength_is_local_training() -> None:
    for prior in (L2(0.0), L1(0.0), Mixture(spread=1e30), KL(AdaPeD(psi=1e30))):
        assert largest_difference(reply(Personal(prior), site()).state, reply(LocalOnly(), site()).state) < 1e-12


def test_a_gaussian_prior_shrinks_to_the_mean() -> None:
    """theta = (o + lambda mu) / (1 + lambda), and mu is their mean."""
    view, thetas = settled(Personal(L2(0.5)), [0.0, 3.0])
    assert float(view.model["w"]) == pytest.approx(1.5, abs=1e-6)
    assert thetas == pytest.approx([(0 + 0.75) / 1.5, (3 + 0.75) / 1.5], abs=1e-6)


def test_a_laplace_prior_finds_the_median() -> None:
    view, _ = settled(Personal(L1(0.0, reach=0.02)), [1.0, 1.0, 9.0])
    assert float(view.model["w"]) == pytest.approx(1.0, abs=0.03)


def test_a_learned_gaussian_strength_settles_where_clients_lie_as_far_apart_as_it_says() -> None:
    """theta - mu = gap / (1 + s), so that s rows 9 / (1 + s)^2 = 1; it is the smaller root that holds still."""
    learned = L2(0.05, strength_lr=0.5, rows=10 / 9)
    view, thetas = settled(Personal(learned), [-3.0, 3.0])
    strength = float(view.extra["log_strength"].exp())
    assert strength == pytest.approx((8 - 60**0.5) / 2, rel=1e-5)
    assert thetas == pytest.approx([-3 / (1 + strength), 3 / (1 + strength)], rel=1e-4)


def test_a_learned_laplace_strength_settles_likewise() -> None:
    """theta - mu = gap - s, so that s rows (3 - s) = 1."""
    view, _ = settled(Personal(L1(0.05, strength_lr=0.2, rows=1.0)), [-3.0, 3.0])
    assert float(view.extra["log_strength"].exp()) == pytest.approx((3 - 5**0.5) / 2, rel=0.02)


def test_a_learned_strength_ends_at_its_limit_where_clients_hardly_differ() -> None:
    """rows 9 < 4: the joint objective falls without end as the strength grows, and `most` is its end."""
    for prior in (L2(0.05, strength_lr=0.5, rows=0.4), L1(0.05, strength_lr=0.5, rows=0.4)):
        view, _ = settled(Personal(prior), [-3.0, 3.0])
        assert float(view.extra["log_strength"].exp()) == pytest.approx(1.0)


def test_a_client_far_away_moves_a_learned_strength_by_no_more_than_any_other() -> None:
    prior = L2(0.05, strength_lr=0.5)
    gamma = prior.start(number(0.0))
    told = [float(prior.message(number(far), gamma, parabola(1.0, 0.0)).extra["log_strength"]) for far in (0.0, 1e9)]
    assert told == pytest.approx([0.25, -0.75])


def test_a_mixture_finds_the_kinds_of_clients_and_their_shares() -> None:
    """Kinds that lie further apart than the spread; nearer ones share a centre, as they should."""
    view, thetas = settled(Personal(Mixture(2, spread=1.0, jitter=0.1)), [-6.0, 6.0, 6.0, 6.0])
    centres = sorted(float(view.extra[f"{at}/w"]) for at in range(2))
    assert centres == pytest.approx([-6.0, 6.0], abs=0.01)
    assert sorted(view.extra["share"].tolist()) == pytest.approx([0.25, 0.75], abs=0.01)
    assert thetas == pytest.approx([-6.0, 6.0, 6.0, 6.0], abs=0.01)
