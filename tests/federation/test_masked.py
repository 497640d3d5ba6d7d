"""Sums that are masked: the same numbers, and the server sees none of the messages that they are made of."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("safetensors", reason="needs the extra 'flower'")
pytest.importorskip("cryptography", reason="needs the extra 'flower'")

from tacit.core import tree
from tacit.federation.protocol.messages import Answer, Arrived, Ask, Rejected, pack, unpack
from tacit.federation.service.tls import make_node_key
from tacit.methods import Ditto, FedAvg
from tacit.secagg.messages import Survivors, decode, encode
from tacit.secagg.messages import Terms as Round
from tests.federation.in_process import Wire, World
from tests.federation.test_rounds import alike
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
    assert server.hidden
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
        counts.append(server.step().cohort)
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
    assert server.step().cohort == 0
    assert largest_difference(server.progress.server.view.model, before) == 0
    assert server.ledger.charged_rounds()["client:c0"] == 1


def test_noise_in_place_of_a_stage_is_rejected_and_the_round_goes_on(tmp_path: Path) -> None:
    world = masked(tmp_path, clients=5, rounds=1, rate=1.0, fresh=True)

    def tamper(name: str, blob: bytes) -> list[tuple[str, bytes]]:
        return [(name, blob[: len(blob) // 2])] if name == "c1" else [(name, blob)]

    told = world.conductor(tmp_path, Wire(world.clients(tmp_path), tamper)).step()
    assert told.cohort == 4
    assert told.rejected == {"malformed": 1}


def test_a_message_that_was_turned_away_for_its_size_is_counted_and_the_round_goes_on(tmp_path: Path) -> None:
    world = masked(tmp_path, clients=5, rounds=1, rate=1.0, fresh=True)

    def tamper(name: str, blob: bytes) -> list[tuple[str, Arrived]]:
        return [(name, Rejected("size", "turned away") if name == "c1" else blob)]

    server = world.conductor(tmp_path, Wire(world.clients(tmp_path), tamper))
    told = server.step()
    assert (told.cohort, told.rejected) == (4, {"size": 1})


def test_a_client_sends_nothing_unmasked_that_only_a_sum_should_show(tmp_path: Path) -> None:
    """Whatever a server asks for: one that forgets about masks, or does not want them, gets no upload."""
    world = masked(tmp_path, rounds=1, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    answer = unpack(Answer, wire.clients["c1"].answer(server._for(server._ask("train", 0), "c1")))
    assert (answer.refused, answer.tensors) == ("unmasked", {})
    assert wire.clients["c1"].store.answers() == 0
    with wire.clients["c1"].store.ledger() as own:
        assert not list(own.entries())


def test_the_sum_is_that_of_those_who_sent_their_integers(tmp_path: Path) -> None:
    """Whoever falls silent at a stage: as if it had been offline, or had not dropped out, in a sum in the open."""
    for stage, gone in ((1, {"c1"}), (2, {"c1"}), (4, set())):
        folder = tmp_path / str(stage)
        world = masked(folder, clients=5, rounds=1, rate=1.0)
        in_the_open = replace(world, keys={})
        expected = in_the_open.conductor(folder / "open", Wire(in_the_open.clients(folder / "open"), offline=gone))
        server = world.conductor(folder, Wire(world.clients(folder), partial(silent_from, stage, {})))
        for each in (server, expected):
            each.step()
        view, known = (tree.join(each.progress.server.view) for each in (server, expected))
        assert largest_difference(view, known) == 0


def test_a_turn_is_masked_once_whatever_the_server_repeats(tmp_path: Path) -> None:
    """Every message of a turn again, and a new beginning of it: no second masked upload."""
    world = masked(tmp_path, rounds=1, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path))
    world.conductor(tmp_path, wire).step()
    own = [blob for name, blob in wire.asked if name == "c1" and unpack(Ask, blob).kind == "mask"]
    again = [unpack(Answer, wire.clients["c1"].answer(blob)) for blob in (*own, *own)]
    longest = max(len(unpack(Answer, blob).tensors["mask"]) for name, blob in wire.answers if name == "c1")
    assert all(answer.refused or len(answer.tensors["mask"]) < longest for answer in again)
    assert [answer.refused for answer in again].count("") <= 4  # keys and shares of a new beginning, no more


def test_a_threshold_is_kept_to_by_both_sides(tmp_path: Path) -> None:
    """Four of five must stay: with two gone there is no sum, and a server that asks for fewer is refused."""
    world = masked(tmp_path, clients=5, rounds=2, rate=1.0, fresh=True)
    request = replace(world.privacy.plan, threshold=0.8)
    world.privacy = replace(world.privacy, plan=request)
    wire = Wire(world.clients(tmp_path))
    server = world.conductor(tmp_path, wire)
    assert server.step().cohort == 5
    first = decode(next(iter(unpack(Ask, wire.asked[0][1]).tensors.values())).numpy().tobytes())
    assert isinstance(first, Round)
    assert first.threshold == 4
    plan = server.made.engine.plan
    lower = replace(plan, release=replace(plan.release, threshold=0.5))  # pyright: ignore[reportArgumentType]
    server.made = server.made._replace(engine=server.made.engine.under(lower))
    told = server.step()
    assert (told.cohort, told.refused) == (0, {"round": 5})


def test_messages_of_the_last_turn_are_rejected_in_the_next(tmp_path: Path) -> None:
    world = masked(tmp_path, clients=5, rounds=2, rate=1.0, fresh=True)
    old: list[bytes] = []

    def replay(name: str, blob: bytes) -> list[tuple[str, bytes]]:
        answer = unpack(Answer, blob)
        if name != "c1" or answer.turn == 0:
            old.extend([blob] * (name == "c1"))
            return [(name, blob)]
        return [(name, pack(replace(unpack(Answer, old[0]), round=answer.round, turn=answer.turn)))]

    server = world.conductor(tmp_path, Wire(world.clients(tmp_path), replay))
    assert server.step().cohort == 5
    told = server.step()
    assert (told.cohort, told.rejected) == (4, {"malformed": 1})


def test_of_two_processes_that_hold_one_state_of_a_sum_one_answers(tmp_path: Path) -> None:
    """Told of two sets of survivors at once, a member confirms one: else shares of both its secrets might be shown."""
    world = masked(tmp_path, clients=5, rounds=1, rate=1.0, fresh=True)
    wire = Wire(world.clients(tmp_path))
    store, states = wire.clients["c1"].store, []

    def watched(name: str, blob: bytes) -> list[tuple[str, bytes]]:
        states.extend([store.mask_state("run-1")] * (name == "c1"))
        return [(name, blob)]

    wire.tamper = watched
    world.conductor(tmp_path, wire).step()
    asked = [unpack(Ask, blob) for name, blob in wire.asked if name == "c1"]
    fourth = next(ask for ask in asked if isinstance(decode(ask.tensors["mask"].numpy().tobytes()), Survivors))
    told = decode(fourth.tensors["mask"].numpy().tobytes())
    fewer = encode(replace(told, members=told.members[:-1]))
    other = replace(fourth, tensors={"mask": torch.frombuffer(bytearray(fewer), dtype=torch.uint8)})
    before = states[2]
    assert before is not None
    store.keep_mask_state("run-1", before)  # as a process sees it that was asked at the same time
    answer = unpack(Answer, wire.clients["c1"].answer(pack(other)))
    assert (answer.refused, answer.tensors) == ("duplicate", {})
