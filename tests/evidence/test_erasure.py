"""A member that leaves deletes its personal models, keeps its ledger, and has a receipt."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.errors import TacitError
from tacit.evidence import certificate, signing
from tacit.evidence.erasure import RECEIPT, check_receipt, erase
from tacit.federation.protocol.client_store import ClientStore
from tacit.methods import Ditto
from tacit.report.facts import Facts
from tests.federation.in_process import World
from tests.worlds import LOCAL

pytest.importorskip("cryptography")


@pytest.fixture
def federation(tmp_path: Path) -> World:
    """Two rounds in which members train personal models; c1 has a folder as `tacit join` makes it."""
    world = World(Ditto(), LOCAL, rounds=2, rate=1.0)
    server = world.conductor(tmp_path)
    server.go()
    server.ledger.close()
    facts = Facts.of("run-1", server.made.engine.method, server.made.engine.plan, True)
    (tmp_path / "server" / "promises.json").write_text(facts.to_json())
    signing.make_key(tmp_path / "c1" / "node.key")
    (tmp_path / "c1" / "client.json").write_text(json.dumps({"name": "c1"}))
    (tmp_path / "c1" / "rows.safetensors").write_bytes(b"rows")
    return world


def test_personal_models_are_gone_and_the_ledger_is_not(federation: World, tmp_path: Path) -> None:
    folder, store = tmp_path / "c1", ClientStore(tmp_path / "c1")
    assert store.newest("run-1") > 0
    before = (folder / "ledger.sqlite").read_bytes()
    said = CliRunner().invoke(app, ["erase", str(folder)])
    assert said.exit_code == 0, said.output
    assert store.newest("run-1") == 0
    assert not list(folder.glob("runs/*/*"))
    assert (folder / "rows.safetensors").exists()
    assert (folder / "ledger.sqlite").read_bytes() == before
    assert store.answers() == 2


def test_the_receipt_is_signed_by_the_member_and_says_what_was_deleted(federation: World, tmp_path: Path) -> None:
    receipt = erase(tmp_path / "c1", rows=True)
    key = signing.sign(b"", tmp_path / "c1" / "node.key")["key"]
    assert check_receipt(json.loads((tmp_path / "c1" / RECEIPT).read_text()), key)
    assert "rows.safetensors" in {each["file"] for each in receipt["deleted"]}
    assert receipt["last_answered_turn"] == {"run-1": 1}
    assert not check_receipt(receipt | {"deleted": []}, key)
    assert not check_receipt(receipt, signing.sign(b"", signing.make_key(tmp_path / "other"))["key"])


def test_the_certificate_names_who_left_and_its_last_charged_round(federation: World, tmp_path: Path) -> None:
    (tmp_path / "members.json").write_text(json.dumps([{"name": "c1", "left": True}, {"name": "c2", "left": False}]))
    content = certificate.certify(tmp_path / "server")
    assert content["departed"] == [{"client": "c1", "last_charged_round": 2}]
    assert "1 clients have left" in content["questions"][10]["answer"]


def test_a_folder_that_is_no_members_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(TacitError, match="not the folder of a member"):
        erase(tmp_path)
