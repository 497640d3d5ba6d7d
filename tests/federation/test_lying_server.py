"""A server is believed in nothing that it can profit from, and its lies teach it nothing."""

import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

pytest.importorskip("safetensors", reason="needs the extra 'flower'")
pytest.importorskip("cryptography", reason="needs the extra 'flower'")

from pydantic import BaseModel

from benchmarks.federation import invented, liar, oracle, paths, sizes
from tacit.errors import TacitError
from tacit.experiments.config import SECTIONS, schema_of
from tacit.experiments.config_errors import tables_in
from tacit.experiments.toml import dumps
from tacit.federation.protocol.client import Refusal
from tacit.federation.protocol.messages import Answer, unpack
from tacit.federation.protocol.terms import Participant, Terms, checked_rows, read_terms
from tacit.federation.service import join
from tacit.federation.service.client_dir import Agreement, ClientFolder, Demands, about_others, read_offer
from tacit.federation.service.experiment import LEFT_OUT, experiment_of, may_say
from tacit.federation.service.roster import Roster
from tacit.federation.service.tls import key_fingerprint
from tacit.privacy.mechanisms.distributed import epsilon_alone, own_noise

OFFER = liar.offered(liar.text(invented.DISTRIBUTED))


@pytest.mark.parametrize("attack", [invented, oracle, sizes, paths], ids=["roster", "refusals", "rows", "paths"])
def test_lies_are_refused_and_honest_terms_are_taken(tmp_path: Path, attack: Any) -> None:
    found = attack.attacks(tmp_path)
    assert set(found.values()) == {"refused", "taken"}, found


@pytest.fixture
def others(tmp_path: Path) -> dict[str, str]:
    return liar.keys(tmp_path / "others", [f"ward-{k}" for k in range(4)])


def member(folder: Path, **demands: Any) -> ClientFolder:
    return liar.joined(folder / "member", OFFER, liar.some_rows(9), Demands(**demands))


def answer(home: ClientFolder, run: str, others: dict[str, str]) -> str:
    return liar.answered(
        home, Terms(run, OFFER.experiment, liar.INPUTS, liar.CLASSES, liar.roster(home, others))
    ).refused


def test_a_name_keeps_its_key_for_all_runs_and_processes(tmp_path: Path, others: dict[str, str]) -> None:
    Roster(tmp_path).meet(others, 5)
    fifth = liar.keys(tmp_path, ["x", "y"])
    with pytest.raises(Refusal, match="another key"):
        Roster(tmp_path).meet(others | {"ward-1": fifth["x"]}, 5)
    Roster(tmp_path).meet(others | {"x": fifth["x"]}, 5)
    Roster(tmp_path).meet(dict(list(others.items())[:2]), 5)  # fewer are nothing new
    with pytest.raises(Refusal, match="1 are not known"):
        Roster(tmp_path).meet(others | {"y": fifth["y"]}, 5)
    assert Roster(tmp_path).known().keys() == {*others, "x"}


def test_a_refused_roster_leaves_none_of_its_names_behind(tmp_path: Path, others: dict[str, str]) -> None:
    with pytest.raises(Refusal):
        Roster(tmp_path).meet(others, 3)
    assert Roster(tmp_path).known() == {}
    Roster(tmp_path).meet(dict(list(others.items())[:3]), 3)


def test_of_many_processes_that_meet_rosters_at_once_no_more_names_are_taken_than_agreed(tmp_path: Path) -> None:
    made = liar.keys(tmp_path, [f"{who}{k}" for who in "abcd" for k in range(3)])

    def meet(who: str) -> bool:
        try:
            Roster(tmp_path).meet({name: key for name, key in made.items() if name.startswith(who)}, 5)
        except Refusal:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(meet, "abcd")) == 1
    assert len(Roster(tmp_path).known()) == 3


def test_who_waits_is_accepted_by_the_fingerprint_that_was_compared(tmp_path: Path, others: dict[str, str]) -> None:
    home = member(tmp_path, confirm=True)
    assert answer(home, "one", others) == "terms"
    assert home.refusal is not None
    assert "tacit members" in home.refusal
    assert sum("waits" in line for line in join.lines(home.folder)) == 5
    with pytest.raises(TacitError, match="nobody waits"):
        list(join.change(home.folder, ["SHA256:something"], None))
    for key in [*others.values(), liar.roster(home, {})[0].key]:
        assert list(join.change(home.folder, [key_fingerprint(key)], None))
    assert answer(home, "one", others) == "round"


def test_a_member_can_demand_more_of_its_own_share_than_the_offer_has(tmp_path: Path) -> None:
    offered = own_noise(OFFER.planned(liar.LEVEL))
    assert member(tmp_path, own_noise=offered).agreement.own_noise == offered
    for demands in (Demands(own_noise=1.01 * offered), Demands(threshold=0.7)):
        with pytest.raises(TacitError, match="that you demand"):
            demands.made(Agreement.to(OFFER, "a", liar.LEVEL))


def test_a_floor_that_was_raised_later_is_kept(tmp_path: Path, others: dict[str, str]) -> None:
    home = member(tmp_path)
    assert answer(home, "one", others) == "round"
    list(join.change(home.folder, (), 10.0))
    assert answer(home, "two", others) == "terms"


def test_one_share_protects_less_than_all_and_a_member_is_told_how_much(tmp_path: Path) -> None:
    """The noise of n shares is sqrt(n) times that of one; the figure is what is left against a server with the rest."""
    plan = OFFER.planned(liar.LEVEL)
    coding = plan.release.coding  # pyright: ignore[reportAttributeAccessIssue]
    whole = (coding.share * coding.least) ** 0.5 / coding.l2
    assert own_noise(plan) == pytest.approx(whole / coding.least**0.5)
    alone = epsilon_alone(plan)
    assert alone > 1.5 * 8.0
    told = " ".join(about_others(OFFER, Agreement.to(OFFER, "a", liar.LEVEL)))
    assert f"epsilon {alone:.3g}"[:10] in told
    larger = replace(OFFER, nodes=100).planned(liar.LEVEL)
    assert own_noise(larger) < 0.5 * own_noise(plan)


def test_a_member_takes_from_an_offer_what_it_can_derive_itself(tmp_path: Path) -> None:
    content = OFFER.content()
    flattered = content | {"plan": "local", "levels": {"private": {"epsilon": 0.01, "guarantee": "perfect"}}}
    assert read_offer(content) == read_offer(flattered) == OFFER
    assert OFFER.levels["private"].epsilon == 8.0
    for wrong in ({"nodes": 0}, {"classes": 10**30}, {"inputs": []}, {"inputs": [True]}, {"inputs": 3}):
        with pytest.raises(TacitError, match="offer"):
            read_offer(content | wrong)
    del content["nodes"]
    with pytest.raises(TacitError, match="nodes"):
        read_offer(content)


@pytest.mark.parametrize(("cell", "label", "says"), [("nan", "1", "empty"), ("inf", "1", "NaN"), ("1", "5", "label 5")])
def test_what_is_wrong_with_rows_is_said_when_joining(tmp_path: Path, cell: str, label: str, says: str) -> None:
    """Later, a refusal for it would tell the server something."""
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
    from tacit.federation.service.own_rows import read_rows

    table = tmp_path / "my.csv"
    table.write_text("a,b,c,d,e,f,label\n" + "1,2,3,4,5,6,0\n" * 9 + f"1,2,3,4,5,{cell},{label}\n")
    with pytest.raises(TacitError, match=says):
        read_rows(table, OFFER)


def undecided(table: type[BaseModel], name: str = "") -> set[str]:
    """Keys of an experiment that no member takes, and that are not said to concern the others alone."""
    found: set[str] = set()
    for key, field in table.model_fields.items():
        where = f"{name}.{key}" if name else key
        if key in LEFT_OUT.get(name, ()):
            assert not may_say(name, key, field.annotation)
        elif not may_say(name, key, field.annotation):
            found.add(where)
        else:
            found |= {each for inner in tables_in(field.annotation) for each in undecided(inner, where)}
    return found


REFUSED = {"pretrained": {"model.source", "model.targets"}}
"""Members open no folder that a server names."""


@pytest.mark.parametrize(("section", "key"), [("model", "name"), ("method", "name"), ("privacy", "plan")])
def test_for_every_key_of_an_experiment_somebody_has_decided_whether_a_server_may_set_it(
    section: str, key: str
) -> None:
    for name in SECTIONS[section].registry:
        assert undecided(schema_of({section: {key: name}})) == REFUSED.get(name, set()), name


def test_a_text_of_any_kind_that_is_new_to_a_method_is_refused_until_somebody_has_looked_at_it() -> None:
    assert may_say("method", "strength", float | None)
    assert may_say("method", "distillation", Literal["mutual", "as-published"] | None)
    assert not may_say("method", "weights_file", str | None)
    assert not may_say("method", "files", list[str] | None)


def test_a_member_imports_no_code_that_a_server_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless its owner has permitted that name; nor does it import what it refuses."""
    (tmp_path / "their_code.py").write_text("from tacit import FedAvg as Theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for table in ({"method": {"name": "their_code:Theirs"}}, {"model": {"name": "their_code:Theirs"}}):
        text = dumps(tomllib.loads(liar.text(oracle.LOCAL)) | table)
        with pytest.raises(TacitError, match=r"names 'their_code:Theirs', which is not Tacit's own code.*--permit"):
            experiment_of(text)
        with pytest.raises(TacitError, match="which is not Tacit's own code"):
            experiment_of(text, ("another:Name",))
    assert "their_code" not in sys.modules
    text = dumps(tomllib.loads(liar.text(oracle.LOCAL)) | {"method": {"name": "their_code:Theirs", "lr": 0.5}})
    offer = replace(liar.offered(text), permitted=("their_code:Theirs",))
    word = Agreement.to(offer, "a", liar.LEVEL)
    home = ClientFolder(tmp_path / "member")
    home.settle(word)
    assert home.agreement == word
    assert experiment_of(text, home.agreement.permitted).method.lr == 0.5


@pytest.mark.parametrize("secret", [RuntimeError("37 rows"), MemoryError("label 6"), TacitError("ward-7 has 37 rows")])
def test_whatever_goes_wrong_on_a_member_is_one_word_to_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, secret: Exception
) -> None:
    home = liar.joined(tmp_path, liar.offered(liar.text(oracle.LOCAL)), liar.some_rows(9))

    def fail(_: ClientFolder) -> None:
        raise secret

    monkeypatch.setattr(ClientFolder, "rows", fail)
    terms = Terms("run", liar.text(oracle.LOCAL), liar.INPUTS, liar.CLASSES, liar.roster(home, {}))
    said = liar.answered(home, terms)
    assert said == Answer("run", "train", 0, liar.LATE, liar.NAME, refused="terms")
    assert home.refusal is not None
    assert str(secret) in home.refusal  # its owner may know


def test_a_message_that_cannot_be_read_is_a_refusal_too(tmp_path: Path) -> None:
    home = liar.joined(tmp_path, OFFER, liar.some_rows(9))
    for blob in (b"", b"\x00" * 99, b"[" * 10_000):
        assert unpack(Answer, home.client().answer(blob)).refused


def test_nothing_that_fails_before_there_is_a_client_reaches_the_server(tmp_path: Path) -> None:
    pytest.importorskip("flwr", reason="needs the extra 'flower'")
    from types import SimpleNamespace

    from tacit.federation.flower.client_app import reply_to

    (tmp_path / "client.json").write_text('{"a secret": 1}')
    config = SimpleNamespace(node_config={"home": str(tmp_path)})
    for blob in (b"", "no bytes"):
        content = SimpleNamespace(config_records={"tacit": {"blob": blob}})
        message: Any = SimpleNamespace(content=content)
        reply = reply_to(message, config)  # pyright: ignore[reportArgumentType]
        assert unpack(Answer, reply).refused == "terms"
        assert b"secret" not in reply


def test_an_agreement_that_leaves_something_open_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "client.json").write_text('{"name": "a", "level": "b", "plan": "local", "epsilon": 1, "delta": 1e-3}')
    with pytest.raises(TacitError, match="join again"):
        _ = ClientFolder(tmp_path).agreement


@pytest.mark.parametrize("rows", [0, -1, 2**31 + 1, 10**30, True, 1.5, "7", None])
def test_a_public_number_of_rows_is_one_that_can_be(rows: Any) -> None:
    with pytest.raises(TacitError, match="number of rows"):
        checked_rows(rows, True)


def test_where_rows_are_not_public_nobody_says_how_many() -> None:
    assert checked_rows(0, False) == 0
    assert checked_rows(2**31, True) == 2**31
    with pytest.raises(TacitError, match="no numbers of rows"):
        checked_rows(7, False)
    content = Terms("run", "", (1,), 2, (Participant("a", "b", 10**30),)).text()
    with pytest.raises(TacitError, match="malformed"):
        read_terms(content)


@pytest.mark.parametrize("rows", [0, 20])
def test_a_delta_above_one_in_so_many_rows_is_refused_whatever_the_roster_says(tmp_path: Path, rows: int) -> None:
    levels = {liar.LEVEL: {"epsilon": 8.0, "delta": 0.06}}
    text = liar.text(sizes.RECORD, levels=levels)
    home = liar.joined(tmp_path, liar.offered(text), liar.some_rows(20))
    terms = Terms("run", text, liar.INPUTS, liar.CLASSES, (Participant(liar.NAME, liar.LEVEL, rows),))
    assert liar.answered(home, terms).refused == "terms"
    large = replace(terms, experiment=liar.text(sizes.RECORD | {"allow_large_delta": True}, levels=levels))
    assert liar.answered(home, large).refused == "terms"


def test_fingerprints_are_those_of_openssh() -> None:
    """As `ssh-keygen -lf` shows this one."""
    key = (
        "AAAAE2VjZHNhLXNoYTItbmlzdHAzODQAAAAIbmlzdHAzODQAAABhBPg1+ONjdLviwEAPQFPm5yJJHO+PoRWoozgmFXLLpvBnfGb1hm"
        "rzpoE9Swdclv2p2EDYp2C6iESkTNFghVUmbNcsBgD796dqf4nz1P5QWqgV6vJCFO89aLpKkgBAknjdyg=="
    )
    found = key_fingerprint(f"ecdsa-sha2-nistp384 {key} a comment")
    assert found == "SHA256:hYSRwFUj+8Avj0hZt9PLdtCNpd5VPnQ7xHzGAHNG7DE"
    with pytest.raises(TacitError, match="no public key"):
        key_fingerprint("rsa")


def test_a_client_has_its_own_rows_and_nobody_elses(tmp_path: Path) -> None:
    text = liar.text(oracle.LOCAL)
    home = liar.joined(tmp_path, liar.offered(text), liar.some_rows(9))
    terms = Terms("run", text, liar.INPUTS, liar.CLASSES, liar.roster(home, dict.fromkeys("ab", "")))
    engine = home.client().assemble(terms).engine
    assert torch.equal(engine.federation.x, liar.some_rows(9).x)
    assert engine.federation.sizes.tolist() == [9, 0, 0]
