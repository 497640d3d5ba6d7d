"""Sums that are masked: the same numbers, and the server sees none of the messages that they are made of."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors", reason="needs the extra 'flower'")
pytest.importorskip("cryptography", reason="needs the extra 'flower'")

from tacit import tree
from tacit.deployment.keys import make_node_key
from tacit.engine.flower.schema import Answer, unpack
from tacit.methods import Ditto, FedAvg
from tests.engine.flowers import Wire, World
from tests.engine.test_flower import alike
from tests.worlds import PLANS, largest_difference, ragged


def masked(folder: Path, clients: int = 4, **options: object) -> World:
    world = World(FedAvg(), PLANS["distributed"], ragged(clients), **options)  # pyright: ignore[reportArgumentType]
    for name in world.federation.ids:
        (folder / name).mkdir(parents=True)
        world.keys[name] = make_node_key(folder / name / "node.key").decode()
    return world


def test_a_masked_federation_is_its_simulation(tmp_path: Path) -> None:
    world = masked(tmp_path, rate=0.9)
    world.method = Ditto()
    expected = world.simulated()
    expected.go()
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    assert server.masked
    server.go()
    view, known = (tree.join(each.progress.server.view) for each in (server, expected))
    assert largest_difference(view, known) < 1e-9
    assert all(alike(server.ledger, client) for client in wire.clients.values())


def test_no_answer_holds_an_upload_in_the_open(tmp_path: Path) -> None:
    world = masked(tmp_path, rounds=1, rate=1.0)
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).go()
    sent = [unpack(Answer, blob) for _, blob in wire.answers]
    assert {tuple(answer.tensors) for answer in sent} == {("mask",), ()}
    masks = [answer.tensors["mask"].numpy() for answer in sent if answer.tensors]
    longest = max(len(mask) for mask in masks)
    for mask in (each for each in masks if len(each) == longest):
        ones = np.unpackbits(mask[-longest // 2 :]).mean()
        assert abs(ones - 0.5) < 0.1  # rounded uploads of a few integers would be mostly zeros


def silent_from(stage: int, calls: dict[str, int], name: str, blob: bytes) -> list[tuple[str, bytes]]:
    """What c1 says from this stage on is lost."""
    calls[name] = calls.get(name, 0) + 1
    return [] if name == "c1" and calls[name] > stage else [(name, blob)]


def test_who_drops_out_at_any_stage_is_left_out_and_charged(tmp_path: Path) -> None:
    world = masked(tmp_path, clients=5, rounds=5, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    counts = []
    for stage in range(5):
        wire.tamper = partial(silent_from, stage, {})
        counts.append(server.step().took_part)
    assert counts == [4, 4, 4, 5, 5]  # from the masked upload on, it is in the sum
    wire.tamper = lambda name, blob: [(name, blob)]
    server.close()
    assert all(alike(server.ledger, client) for client in wire.clients.values())
    assert all(torch.isfinite(leaf).all() for leaf in server.progress.server.view.model.values())


def test_too_few_for_their_noise_release_nothing(tmp_path: Path) -> None:
    world = masked(tmp_path, clients=4, rounds=2, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path), offline={"c0", "c1", "c2"})
    server = world.conductor(tmp_path, wire)
    before = server.progress.server.view.model
    assert server.step().took_part == 0
    assert largest_difference(server.progress.server.view.model, before) == 0
    assert server.ledger.charged_rounds()["client:c0"] == 1


def test_noise_in_place_of_a_stage_is_rejected_and_the_round_goes_on(tmp_path: Path) -> None:
    world = masked(tmp_path, clients=5, rounds=1, rate=1.0, fresh=True)

    def tamper(name: str, blob: bytes) -> list[tuple[str, bytes]]:
        return [(name, blob[: len(blob) // 2])] if name == "c1" else [(name, blob)]

    told = world.conductor(tmp_path, Wire(world.clients(tmp_path), tamper)).step()
    assert told.took_part == 4
    assert told.rejected == {"malformed": 1}
