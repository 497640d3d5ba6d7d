"""What stays on a client: FedPer, FedRep, and a pace of its own, against steps that are taken by hand."""

import torch

from tacit.core import tree
from tacit.methods import KeepLocal, LocalSgd
from tacit.rounds.assemble import Privacy
from tests.methods.test_closed_forms import START, site
from tests.worlds import largest_difference, run, states


def test_fedper_is_fedavg_with_the_head_kept() -> None:
    """The recipe: `KeepLocal(("head",))`. The body is averaged, the head trains as if alone."""
    it = run(KeepLocal(("head",)), Privacy(), rounds=3, rate=1.0)
    it.go()
    assert not any("head" in name for name in it.progress.server.view.model)
    heads = states(it)["kept/model/head.weight"]
    assert float((heads - heads[0]).abs().max()) > 0


def test_what_is_kept_has_a_pace_of_its_own() -> None:
    """A quarter of every step for the head, whole steps for the body."""
    paced, here, names = KeepLocal(("head",), pace=0.25), site(), ("head.weight", "head.bias")
    view = paced.init(START).view
    reply = paced.client(view, paced.join(view, START), here)
    sgd, model = LocalSgd(), START
    for step in range(6):
        moved = sgd.step(model, here.grad(model, step), here.round)
        model = {n: torch.lerp(model[n], moved[n], 0.25 if n in names else 1.0) for n in model}
    assert largest_difference({n: reply.state[f"kept/model/{n}"] for n in names}, tree.pick(model, names)) < 1e-12
    assert largest_difference(reply.upload.model, tree.drop(tree.sub(model, START), names)) < 1e-12


def test_fedrep_trains_the_head_first_and_then_the_body() -> None:
    """Two thirds of six steps: four of the head below the old body, then two of the body below the new head."""
    rep, here = KeepLocal(("head",), first=0.7), site()
    view = rep.init(START).view
    reply = rep.client(view, rep.join(view, START), here)
    names, sgd, model = ("head.weight", "head.bias"), LocalSgd(), START
    for step in range(6):
        moved = sgd.step(model, here.grad(model, step), here.round)
        model = {n: (moved if (n in names) == (step < 4) else model)[n] for n in model}
    assert largest_difference({n: reply.state[f"kept/model/{n}"] for n in names}, tree.pick(model, names)) < 1e-12
    assert largest_difference(reply.upload.model, tree.drop(tree.sub(model, START), names)) < 1e-12


def test_fedrep_with_one_step_for_each_is_a_share_of_a_clients_own_steps() -> None:
    """A client with two live steps of six takes one for the head and one for the body, as if it had only two."""
    rep, here = KeepLocal(("head",), first=0.5), site()
    live = torch.arange(6) < 2
    padded = here._replace(live=live, advance=lambda step, new, old: tree.where(live[step], new, old))
    short = here._replace(steps=2, live=live[:2])
    view = rep.init(START).view
    one, other = (rep.client(view, rep.join(view, START), each) for each in (padded, short))
    assert largest_difference(one.upload.model, other.upload.model) == 0
    assert largest_difference(one.state, other.state) == 0
    assert tree.norm(one.upload.model) > 0
