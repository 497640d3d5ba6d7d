"""Each method against a form that can be written down by hand or computed with torch's own optimizers."""

import numpy as np
import pytest
import torch
from torch import nn

from tacit.core import tree
from tacit.core.contract import Batch, Method, Reply, Server, Shared, Site, Tree
from tacit.data.from_rows import from_clients
from tacit.errors import TacitError
from tacit.methods import (
    IFCA,
    Ditto,
    FedAvg,
    FedDyn,
    FedProx,
    FineTuned,
    KeepLocal,
    LocalOnly,
    LocalSgd,
    Scaffold,
    ServerAdam,
    ServerSgd,
)
from tacit.models import ModuleTask, params
from tacit.privacy.mechanisms.gradient import Exact
from tacit.rounds.assemble import Privacy
from tacit.rounds.predict import _adapted
from tests.worlds import largest_difference, net, run, states

STEPS = 6
MODEL = net().double()
TASK = ModuleTask(MODEL)
START = params(MODEL)


def site(seed: int = 0, level: int = 0) -> Site:
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(STEPS, 5, 6, generator=draw, dtype=torch.float64)
    y = torch.randint(0, 3, (STEPS, 5), generator=draw)
    mask = torch.ones(5, dtype=torch.bool)

    def batch(step: int) -> Batch:
        return Batch(x[step], y[step], mask)

    gradient = Exact(TASK, batch)
    return Site(
        task=TASK,
        steps=STEPS,
        live=torch.ones(STEPS, dtype=torch.bool),
        batch=batch,
        grad=gradient,
        private_grad=gradient,
        level=torch.tensor(level),
        round=torch.tensor(0),
    )


def reply(method: Method, here: Site) -> Reply:
    view = method.init(START).view
    return method.client(view, method.join(view, START), here)


def trained_by_torch(here: Site, lr: float, momentum: float = 0.0, weight_decay: float = 0.0) -> Tree:
    """The same steps with torch.optim.SGD on the same module."""
    module = net().double()
    optimizer = torch.optim.SGD(module.parameters(), lr, momentum, weight_decay=weight_decay)
    for step in range(here.steps):
        x, y, _ = here.batch(step)
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(x), y).backward()
        optimizer.step()
    return params(module)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_local_sgd_is_torchs_sgd(momentum: float, weight_decay: float) -> None:
    here = site()
    ours = LocalSgd(0.3, momentum, weight_decay).run(START, here, here.grad)
    theirs = trained_by_torch(here, lr=0.3, momentum=momentum, weight_decay=weight_decay)
    assert largest_difference(ours, theirs) < 1e-12


def test_the_local_rate_decays_by_round() -> None:
    assert LocalSgd(0.4, decay=0.5).rate(torch.tensor(3)) == pytest.approx(0.05)


def test_server_adam_is_torchs_adam_on_the_negative_mean() -> None:
    weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    theirs = torch.optim.Adam([weight], lr=0.1, betas=(0.9, 0.99), eps=1e-3)
    ours = ServerAdam(0.1, 0.9, 0.99, 1e-3)
    model, memory = {"w": torch.zeros(3, dtype=torch.float64)}, ours.start({"w": torch.zeros(3, dtype=torch.float64)})
    for step in range(5):
        mean = {"w": torch.tensor([1.0, -2.0, 0.1 * step], dtype=torch.float64)}
        move, memory = ours.step(memory, mean)
        model = tree.add(model, move)
        weight.grad = -mean["w"]
        theirs.step()
    assert torch.allclose(model["w"], weight.detach(), atol=1e-12)


def test_server_momentum_is_heavy_ball() -> None:
    ours = ServerSgd(lr=0.5, momentum=0.9)
    memory = ours.start({"w": torch.zeros(1)})
    mean = {"w": torch.ones(1)}
    first, memory = ours.step(memory, mean)
    second, memory = ours.step(memory, mean)
    assert (first["w"].item(), second["w"].item()) == pytest.approx((0.5, 0.95))


def test_fedavg_uploads_the_difference_that_local_sgd_made() -> None:
    here = site()
    moved = tree.sub(trained_by_torch(here, lr=0.1), START)
    assert largest_difference(reply(FedAvg(LocalSgd(0.1)), here).upload.model, moved) < 1e-12


def test_fedavg_server_adds_the_mean() -> None:
    server = FedAvg().server(Server(Shared({"w": torch.ones(2)})), Shared({"w": torch.full((2,), 0.5)}), rate=0.1)
    assert torch.equal(server.view.model["w"], torch.full((2,), 1.5))


def test_ditto_with_strength_zero_is_local_training() -> None:
    ditto, alone = Ditto(strength=0.0, personal=LocalSgd(0.1)), LocalOnly(LocalSgd(0.1))
    assert largest_difference(tree.strip("personal", reply(ditto, site()).state), reply(alone, site()).state) == 0


def test_ditto_held_infinitely_tightly_is_the_shared_model() -> None:
    """With eta_p = 1 / lambda and a large lambda each step returns to the received model."""
    ditto = Ditto(strength=1e9, personal=LocalSgd(1e-9))
    personal = tree.strip("personal", reply(ditto, site()).state)
    assert largest_difference(personal, START) < 1e-6


def test_ditto_has_a_strength_for_each_level() -> None:
    both = Ditto(strength=(0.0, 2.0))
    for level, strength in enumerate((0.0, 2.0)):
        alone = reply(Ditto(strength=strength), site(level=level)).state
        assert largest_difference(reply(both, site(level=level)).state, alone) < 1e-12


def test_ditto_does_not_change_the_shared_model() -> None:
    assert largest_difference(reply(Ditto(), site()).upload.model, reply(FedAvg(), site()).upload.model) == 0


def test_scaffold_with_zero_controls_is_fedavg() -> None:
    plain = reply(FedAvg(LocalSgd(0.1)), site()).upload.model
    assert largest_difference(reply(Scaffold(lr=0.1), site()).upload.model, plain) < 1e-15


def test_scaffolds_control_is_the_mean_gradient_of_the_round() -> None:
    """Option II from zero controls: c_i+ = (x - y) / (K eta), the mean of the gradients along the way."""
    here, seen = site(), []

    def watched(p: Tree, step: int, losses: object = None) -> Tree:
        seen.append(here.grad(p, step))
        return seen[-1]

    control = reply(Scaffold(), here._replace(private_grad=watched)).state
    mean = {name: torch.stack([g[name] for g in seen]).mean(0) for name in START}
    assert largest_difference(control, mean) < 1e-12


CURVATURE, OPTIMUM = (1.0, 9.0), (1.0, 0.0)
"""Of two quadratic clients: the sum's optimum is 0.1."""


def quadratic(k: int) -> Site:
    def gradient(p: Tree, step: int, losses: object = None) -> Tree:
        return {"w": CURVATURE[k] * (p["w"] - OPTIMUM[k])}

    return site()._replace(grad=gradient, private_grad=gradient)


def fixed_point(method: Method, rounds: int = 400) -> float:
    """Of the two, at full participation."""
    server = method.init({"w": torch.tensor(0.5, dtype=torch.float64)})
    kept = [method.join(server.view, server.view.model)] * 2
    for _ in range(rounds):
        answers = [method.client(server.view, kept[k], quadratic(k)) for k in range(2)]
        kept = [answer.state for answer in answers]
        mean = tree.each(lambda a, b: (a + b) / 2, *(tree.join(answer.upload) for answer in answers))
        server = method.server(server, tree.split(mean), rate=1.0)
    return float(server.view.model["w"])


def drifted(strength: float, lr: float) -> float:
    """Where the clients' moves of a round cancel out: a step with a pull of `strength` contracts to the minimum of
    f_k(v) + strength / 2 |v - w|^2, which for a quadratic is (c o + strength w) / (c + strength)."""
    rates = [c + strength for c in CURVATURE]
    shares = [(1 - (1 - lr * rate) ** STEPS) * c / rate for rate, c in zip(rates, CURVATURE, strict=True)]
    return sum(share * o for share, o in zip(shares, OPTIMUM, strict=True)) / sum(shares)


def test_scaffold_at_full_participation_removes_client_drift() -> None:
    assert fixed_point(Scaffold(lr=0.05)) == pytest.approx(0.1, abs=1e-6)
    assert abs(fixed_point(FedAvg(LocalSgd(0.05))) - 0.1) > 0.02


@pytest.mark.parametrize("strength", [0.0, 0.5, 20.0])
def test_fedprox_settles_where_the_moves_of_its_proximal_steps_cancel_out(strength: float) -> None:
    """With a strength of 0 that is where FedAvg settles; the stronger the pull, the nearer it is to the optimum."""
    settled = fixed_point(FedProx(LocalSgd(0.02), strength=strength))
    assert settled == pytest.approx(drifted(strength, 0.02), abs=1e-9)
    assert abs(settled - 0.1) <= abs(fixed_point(FedAvg(LocalSgd(0.02))) - 0.1)


def test_fedprox_with_strength_zero_is_fedavg() -> None:
    ours, fedavg = reply(FedProx(strength=0.0), site()), reply(FedAvg(), site())
    assert largest_difference(ours.upload.model, fedavg.upload.model) == 0


def test_feddyn_settles_at_the_global_optimum_where_fedavg_does_not() -> None:
    local = LocalSgd(0.05)
    assert fixed_point(FedDyn(local, strength=1.0)) == pytest.approx(0.1, abs=1e-6)
    assert abs(fixed_point(FedAvg(local)) - 0.1) > 0.02


def test_feddyns_state_is_the_gradient_at_the_clients_own_model_where_it_reached_its_minimum() -> None:
    """And the server's h is their mean."""
    method, local = FedDyn(LocalSgd(0.1), strength=2.0), {"w": torch.tensor(0.5, dtype=torch.float64)}
    server = method.init(local)
    here = quadratic(0)._replace(steps=200, live=torch.ones(200, dtype=torch.bool))
    upload, state = method.client(server.view, method.join(server.view, local), here)
    own = tree.add(server.view.model, upload.model)
    assert largest_difference(state, here.grad(own, 0)) < 1e-12
    assert largest_difference(method.server(server, upload, rate=0.5).memory, tree.scale(state, 0.5)) < 1e-12


def test_ifca_with_one_cluster_is_fedavg() -> None:
    one, fedavg = reply(IFCA(clusters=1), site()), reply(FedAvg(), site())
    assert largest_difference(one.upload.model, fedavg.upload.model) == 0


def test_ifca_trains_the_cluster_of_the_smallest_loss_and_no_other() -> None:
    method = IFCA(clusters=3)
    for seed in range(4):
        here = site(seed)
        view = method.init(START).view
        models = [view.model, *(tree.strip(str(j), view.extra) for j in (1, 2))]
        x, y, _ = here.batch(0)
        best = int(torch.stack([TASK.losses(model, x, y).mean() for model in models]).argmin())
        upload = method.client(view, {}, here).upload
        moves = [upload.model, *(tree.strip(str(j), upload.extra) for j in (1, 2))]
        trained = LocalSgd().run(models[best], here, here.grad)
        assert [float(tree.norm(move)) > 0 for move in moves] == [j == best for j in range(3)]
        assert largest_difference(moves[best], tree.sub(trained, models[best])) < 1e-15


def test_ifca_recovers_two_clusters() -> None:
    """Half of the clients call the classes by other names: no one model fits both halves."""
    draw = np.random.default_rng(0)

    def rows(turned: bool, n: int) -> tuple[np.ndarray, np.ndarray]:
        y = draw.integers(3, size=n)
        return draw.normal(size=(n, 6)) * 0.3 + 2 * np.eye(6)[y], (y + turned) % 3

    halves = from_clients(
        {f"c{k}": (*rows(k % 2 == 1, 20), *rows(k % 2 == 1, 20)) for k in range(10)}, classes=3, dtype=torch.float64
    )
    it = run(IFCA(LocalSgd(0.3), optimizer=ServerSgd(2.0)), Privacy(), halves, rounds=20, rate=1.0)
    it.go()
    view = it.progress.server.view
    chosen = torch.stack([_adapted(it.engine, view, 20, {}, k)[0]["cluster"] for k in range(10)]).argmax(1)
    assert torch.equal(chosen[::2], chosen[:1].expand(5))
    assert torch.equal(chosen[1::2], 1 - chosen[::2])
    assert it.evaluate().personal.mean() > 0.95


def test_what_keep_local_keeps_moves_as_in_a_federation_of_one() -> None:
    for base in (FedAvg(), FedAvg(optimizer=ServerSgd(0.5, 0.9)), Scaffold()):
        kept = reply(KeepLocal(("head",), base), site())
        whole = base.server(base.init(START), reply(base, site()).upload, 1.0).view.model
        for name in ("head.weight", "head.bias"):
            assert torch.allclose(kept.state[f"kept/model/{name}"], whole[name], atol=1e-12)
            assert name not in kept.upload.model


def test_keep_local_with_every_client_alone_is_local_training() -> None:
    """Everything but one unused leaf kept: one round of it is one round of training alone."""
    kept = reply(KeepLocal(("body", "norm", "head.weight")), site())
    alone = reply(LocalOnly(), site()).state
    for name in ("body.weight", "norm.bias", "head.weight"):
        assert torch.allclose(kept.state[f"kept/model/{name}"], alone[name], atol=1e-12)


def test_keep_local_says_which_name_is_missing_and_when_nothing_is_left() -> None:
    with pytest.raises(TacitError, match="'transform'"):
        KeepLocal(("transform",)).init(START)
    with pytest.raises(TacitError, match="LocalOnly"):
        KeepLocal(("body", "norm", "head")).init(START)


def test_fine_tuning_is_thrown_away_after_predicting() -> None:
    method = FineTuned()
    view = method.init(START).view
    assert reply(method, site()).state == {}
    tuned = tree.strip("tuned", method.adapt(view, {}, site()))
    assert largest_difference(tuned, LocalSgd().run(START, site(), site().grad)) == 0


def test_local_only_never_moves_the_shared_model_and_owes_nothing() -> None:
    it = run(LocalOnly())
    it.go()
    assert largest_difference(it.progress.server.view.model, it.engine.start) == 0
    assert list(it.ledger.entries()) == []
    assert largest_difference(
        states(it), {name: leaf.expand(20, *leaf.shape) for name, leaf in it.engine.start.items()}
    )


def test_one_round_of_open_fedavg_with_everybody_is_the_mean_of_the_uploads() -> None:
    it = run(FedAvg(), Privacy(), rounds=1, rate=1.0)
    it.go()
    alone = run(LocalOnly(), Privacy(), rounds=1, rate=1.0)
    alone.go()
    mean = tree.each(lambda leaf: leaf.mean(0), states(alone))
    assert largest_difference(it.progress.server.view.model, mean) < 1e-12
