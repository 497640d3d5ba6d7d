"""A certificate says what the ledger says, and `tacit verify` refuses one that does not, without torch."""

import hashlib
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file
from typer.testing import CliRunner

from tacit.cli.main import app
from tacit.errors import TacitError
from tacit.evidence import certificate, questions, signing
from tacit.evidence.certificate_page import model_card, page
from tacit.evidence.verify import verify
from tacit.methods import FedAvg
from tacit.privacy.ledger.ledger import Charge, Ledger
from tacit.report.facts import Facts
from tacit.report.summary import open_run
from tests.experiments.tiny import run
from tests.federation.in_process import World

pytest.importorskip("cryptography")


@dataclass(frozen=True)
class Case:
    """What is sent to whoever verifies, and with what they compare it."""

    json: Path
    ledger: Path
    models: Path
    key: Path
    fingerprint: str

    @property
    def content(self) -> dict[str, Any]:
        return json.loads(self.json.read_text())

    def rewrite(self, change: Callable[[dict[str, Any]], Any], key: Path | None = None) -> None:
        content = self.content
        change(content)
        if key is not None:
            content["signature"] = signing.sign(signing.canonical(content), key)
        certificate.write(content, self.json)

    def failures(self) -> str:
        lines = verify(self.json, self.ledger, self.models, self.fingerprint)
        return "\n".join(line.text for line in lines if line.passed is False)


@pytest.fixture(scope="module")
def issued(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a private level and an open one, its model and its certificate."""
    folder = tmp_path_factory.mktemp("issued")
    for name, seed in (("run", 1), ("other", 5)):
        (folder / f"{name}-models").mkdir()
        shared = run(folder / name, "rounds=4", f"seed={seed}").model()
        save_file(shared.state_dict(), folder / f"{name}-models" / "model.safetensors")
    key = signing.make_key(folder / "key")
    certificate.write(certificate.certify(folder / "run", key), folder / "certificate.json")
    return folder


@pytest.fixture
def case(issued: Path, tmp_path: Path) -> Case:
    for name in ("certificate.json", "key"):
        shutil.copy(issued / name, tmp_path / name)
    shutil.copy(issued / "run" / "ledger.sqlite", tmp_path / "ledger.sqlite")
    shutil.copytree(issued / "run-models", tmp_path / "models")
    key = signing.fingerprint(json.loads((tmp_path / "certificate.json").read_text())["signature"]["key"])
    return Case(tmp_path / "certificate.json", tmp_path / "ledger.sqlite", tmp_path / "models", tmp_path / "key", key)


def test_an_honest_certificate_passes_every_check(case: Case) -> None:
    lines = verify(case.json, case.ledger, case.models, case.fingerprint)
    assert [line.text for line in lines if line.passed is False] == []
    assert sum(line.passed is True for line in lines) >= 10


def test_its_epsilon_is_the_ledgers_and_everybody_who_opted_out_is_named(issued: Path, case: Case) -> None:
    private, bare = case.content["guarantees"]
    assert private["epsilon"] == open_run(issued / "run").epsilons["private"]["pld"]
    assert private["second_epsilon"] == pytest.approx(private["epsilon"], rel=0.02)
    assert (bare["epsilon"], bare["standing"]) == (None, "opted out")
    assert case.content["opted_out"]["clients"] == bare["clients"]


def edit_epsilon(case: Case) -> None:
    case.rewrite(lambda content: content["guarantees"][0].update(epsilon=1.0))


def lie_about_epsilon(case: Case) -> None:
    """An issuer who signs a figure that the ledger does not have."""
    case.rewrite(lambda content: content["guarantees"][0].update(epsilon=1.0), case.key)


def lie_about_mu(case: Case) -> None:
    case.rewrite(lambda content: content["guarantees"][0].update(mu=0.3), case.key)


def lie_about_delta(case: Case) -> None:
    case.rewrite(lambda content: content["guarantees"][0].update(delta=1e-9), case.key)


def edit_opted_out(case: Case) -> None:
    case.rewrite(lambda content: content["opted_out"].update(clients=0))


def lie_about_who_opted_out(case: Case) -> None:
    case.rewrite(lambda content: content["opted_out"].update(clients=0), case.key)


def lie_about_the_promises(case: Case) -> None:
    """The promises themselves, with all that is bound to them: the ledger still names the true file."""

    def change(content: dict[str, Any]) -> None:
        content["promises"] = content["promises"].replace("opted out", "nothing leaves")
        content["hashes"]["files"]["facts.json"] = hashlib.sha256(content["promises"].encode()).hexdigest()

    case.rewrite(change, case.key)


def lie_about_the_unit(case: Case) -> None:
    """All words of a client-level run for those of a record-level one."""

    def change(content: dict[str, Any]) -> None:
        content["guarantees"][0]["unit"] = content["run"]["unit"] = "record"
        content["guarantees"][0]["words"] = questions.say(content["guarantees"][0])
        content["questions"] = questions.twelve_questions(content)
        content["nist_sp_800_226"] = questions.nist_factors(content)
        content["deployments_registry"] = questions.registry_entry(content)

    case.rewrite(change, case.key)


def lie_in_words(case: Case) -> None:
    case.rewrite(lambda content: content["guarantees"][0].update(words="Nobody can learn anything."), case.key)


def lie_in_an_answer(case: Case) -> None:
    case.rewrite(lambda content: content["questions"][3].update(answer="Epsilon is 0.1."), case.key)


def lie_about_neighbours(case: Case) -> None:
    case.rewrite(lambda content: content["guarantees"][0].update(neighbours="replace one row"), case.key)


def lie_about_what_was_released(case: Case) -> None:
    case.rewrite(lambda content: content["guarantees"][0].update(released=["once, much noise"]), case.key)


def lie_about_rounds(case: Case) -> None:
    case.rewrite(lambda content: content["run"]["rounds"].update(charged=1), case.key)


def lie_about_the_configuration(case: Case) -> None:
    case.rewrite(lambda content: content["hashes"]["files"].update({"config.toml": "0" * 64}), case.key)


def truncate_ledger(case: Case) -> None:
    """The file is cut off: a copy that was not finished."""
    case.ledger.write_bytes(case.ledger.read_bytes()[:6000])


def unguarded(case: Case) -> sqlite3.Connection:
    db = sqlite3.connect(case.ledger)
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        db.execute(f"DROP TRIGGER {name}")
    return db


def remove_row(case: Case) -> None:
    with unguarded(case) as db:
        db.execute("DELETE FROM charges WHERE round = 3")


def reorder_rounds(case: Case) -> None:
    with unguarded(case) as db:
        db.execute("UPDATE charges SET round = 9 WHERE round = 1")
        db.execute("UPDATE charges SET round = 1 WHERE round = 2")
        db.execute("UPDATE charges SET round = 2 WHERE round = 9")


def rebuild_ledger(case: Case) -> None:
    """A new ledger with a whole chain and fewer charges, in the place of the true one."""
    with Ledger.read(case.ledger) as old:
        entries, budgets = list(old.entries()), old.budgets().values()
    case.ledger.unlink()
    with Ledger.open(case.ledger) as new:
        for line in budgets:
            new.budget(*asdict(line).values())
        for entry in entries[:-1]:
            new.charge(entry.round, [Charge(entry.scope, entry.unit, entry.relation, entry.event, entry.count)])


def exchange_ledger(case: Case, other: Path) -> None:
    shutil.copy(other / "other" / "ledger.sqlite", case.ledger)


def exchange_model(case: Case, other: Path) -> None:
    shutil.copy(other / "other-models" / "model.safetensors", case.models / "model.safetensors")


def forge_signature(case: Case) -> None:
    case.rewrite(lambda content: content["signature"].update(value="AAAA" + content["signature"]["value"][4:]))


def sign_with_another_key(case: Case) -> None:
    case.rewrite(lambda content: None, signing.make_key(case.key.with_name("other-key")))


def leave_out_signature(case: Case) -> None:
    case.rewrite(lambda content: content.pop("signature"))


FAULTS: list[tuple[Callable[..., None], str]] = [
    (edit_epsilon, "signature: was not made over this content"),
    (lie_about_epsilon, "level private: epsilon 1 at delta"),
    (lie_about_mu, "mu 0.3, again"),
    (lie_about_delta, "level private: epsilon"),
    (edit_opted_out, "signature: was not made over this content"),
    (lie_about_who_opted_out, "promises: others opted out than is stated"),
    (lie_about_the_promises, "promises: not those that the ledger names"),
    (lie_about_the_unit, "unit is 'record', and the ledger has 'client'"),
    (lie_in_words, "level private: words is 'Nobody can learn anything.'"),
    (lie_in_an_answer, "words: questions does not follow"),
    (lie_about_neighbours, "level private: neighbours is 'replace one row'"),
    (lie_about_what_was_released, "level private: released is"),
    (lie_about_rounds, "rounds: 1 are stated, 4 were charged"),
    (lie_about_the_configuration, "promises: not those that the ledger names"),
    (truncate_ledger, "cannot be checked: "),
    (remove_row, "chain: "),
    (reorder_rounds, "chain: "),
    (rebuild_ledger, "head: another run's ledger"),
    (exchange_ledger, "head: another run's ledger"),
    (exchange_model, "model.safetensors: not a model that this run released"),
    (forge_signature, "signature: was not made"),
    (sign_with_another_key, "issuer: the certificate is signed by"),
    (leave_out_signature, "signature: the certificate is not signed"),
]


@pytest.mark.parametrize(("fault", "reason"), FAULTS, ids=[fault.__name__ for fault, _ in FAULTS])
def test_a_fault_is_refused_with_its_reason(case: Case, issued: Path, fault: Callable[..., None], reason: str) -> None:
    fault(case, issued) if fault.__name__.startswith("exchange") else fault(case)
    assert reason in case.failures()


def test_what_the_issuer_was_to_fill_in_may_be_filled_in(case: Case) -> None:
    def fill(content: dict[str, Any]) -> None:
        product = content["deployments_registry"]["deployment"]["product"]
        product.update(intended_use="demonstration", data_curators=["a university", "a hospital"])

    case.rewrite(fill, case.key)
    assert case.failures() == ""


def test_it_is_verified_on_a_machine_without_torch(case: Case) -> None:
    code = (
        "import sys\n"
        "class Blocked:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ImportError('no torch here')\n"
        "sys.meta_path.insert(0, Blocked())\n"
        "from tacit.cli.main import app\n"
        "app(sys.argv[1:])"
    )
    args = [
        "verify",
        str(case.json),
        "--ledger",
        str(case.ledger),
        "--models",
        str(case.models),
        "--key",
        case.fingerprint,
    ]
    ended = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "FAIL" not in ended.stdout


def test_the_page_answers_twelve_questions_and_fetches_nothing(case: Case) -> None:
    text = page(case.content)
    assert len(case.content["questions"]) == 12
    for each in case.content["questions"]:
        assert each["question"].replace("'", "&#x27;") in text
        assert len(each["answer"]) > 10
    assert "http" not in text
    assert "nobody is protected" in text
    assert "no guarantee" in model_card(case.content)


def test_the_command_writes_three_files_and_the_other_command_accepts_them(issued: Path, tmp_path: Path) -> None:
    made = CliRunner().invoke(
        app, ["certify", str(issued / "run"), "--key", str(issued / "key"), "--out", str(tmp_path)]
    )
    assert made.exit_code == 0, made.output
    assert {path.name for path in tmp_path.iterdir()} == {"certificate.json", "certificate.html", "certificate.md"}
    args = ["verify", str(tmp_path / "certificate.json"), "--ledger", str(issued / "run")]
    assert CliRunner().invoke(app, args).exit_code == 0
    edited = json.loads((tmp_path / "certificate.json").read_text()) | {"not_covered": []}
    (tmp_path / "certificate.json").write_text(json.dumps(edited))
    assert CliRunner().invoke(app, args).exit_code == 1


def test_clients_with_accounts_of_their_own_are_told_by_the_one_that_spent_most(tmp_path: Path) -> None:
    run(tmp_path / "local", "rounds=3", "privacy.plan=local")
    content = certificate.certify(tmp_path / "local", signing.make_key(tmp_path / "key"))
    certificate.write(content, tmp_path / "certificate.json")
    (entry, *_) = content["guarantees"]
    own = [each["epsilon"] for scope, each in content["accounts"].items() if scope.startswith("client:")]
    assert entry["accounts"] == len(own) > 1
    assert entry["epsilon"] == max(own)
    lines = verify(tmp_path / "certificate.json", tmp_path / "local")
    assert [line.text for line in lines if line.passed is False] == []
    least = min(content["accounts"], key=lambda scope: content["accounts"][scope]["epsilon"])
    assert content["accounts"][least]["epsilon"] < max(own)
    content["guarantees"][0] |= {"account": least, "epsilon": content["accounts"][least]["epsilon"]}
    certificate.write(content, tmp_path / "certificate.json")
    told = [line.text for line in verify(tmp_path / "certificate.json", tmp_path / "local") if line.passed is False]
    assert any("spent more" in text for text in told)


@pytest.fixture(scope="module")
def federated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A federation in one process, with its certificate, countersigned by one member."""
    folder = tmp_path_factory.mktemp("federated")
    world = World(FedAvg(), rounds=2)
    keys = {name: signing.make_key(folder / name / "node.key") for name in world.federation.ids}
    world.keys.clear()
    server = world.conductor(folder)
    server.go()
    server.ledger.close()
    engine = server.made.engine
    facts = replace(Facts.of("run-1", engine.method, engine.plan, True), simulation="")
    (folder / "server" / "promises.json").write_text(facts.to_json())
    public = {name: signing.sign(b"", key)["key"] for name, key in keys.items()}
    terms = replace(world.terms, roster=tuple(replace(seat, key=public[seat.name]) for seat in world.terms.roster))
    (folder / "server" / "terms.json").write_text(terms.text())
    content = certificate.certify(folder / "server", signing.make_key(folder / "server.key"))
    certificate.write(content, folder / "plain.json")
    content = certificate.countersign(content, folder / "c1", "c1", folder / "c1" / "node.key")
    certificate.write(content, folder / "certificate.json")
    return folder


def test_a_member_countersigns_what_it_saw(federated: Path) -> None:
    content = json.loads((federated / "certificate.json").read_text())
    (signed,) = content["countersignatures"]
    assert signed["saw"]["turns_answered"] >= 1
    assert signed["saw"]["server_ledger_head"] is not None
    lines = verify(federated / "certificate.json", federated / "server")
    assert [line.text for line in lines if line.passed is False] == []
    assert sum("member c1" in line.text and line.passed is True for line in lines) == 4
    assert content["run"]["kind"] == "federation"
    assert not any("imulation" in text for text in content["not_covered"])


@pytest.mark.parametrize("fault", ["saw less", "another key", "another certificate"])
def test_a_countersignature_that_was_tampered_with_is_refused(federated: Path, tmp_path: Path, fault: str) -> None:
    content = json.loads((federated / "certificate.json").read_text())
    (signed,) = content["countersignatures"]
    if fault == "saw less":
        signed["saw"]["turns_answered"] = 0
    elif fault == "another key":
        other = signing.sign(json.dumps(signed["saw"], sort_keys=True).encode(), signing.make_key(tmp_path / "k"))
        signed |= other
    else:
        content["run"]["clients"] += 1
        content["signature"] = signing.sign(signing.canonical(content), federated / "server.key")
    certificate.write(content, tmp_path / "certificate.json")
    lines = verify(tmp_path / "certificate.json", federated / "server")
    assert any(line.passed is False and line.text.startswith("member c1") for line in lines)


def test_a_member_whose_own_ledger_has_more_does_not_sign(federated: Path) -> None:
    content = json.loads((federated / "plain.json").read_text())
    content["guarantees"][0]["epsilon"] = 0.01
    with pytest.raises(TacitError, match="own ledger has epsilon"):
        certificate.countersign(content, federated / "c1", "c1", federated / "c1" / "node.key")
