"""A certificate of a run: what was promised, to whom, against whom, what was not, and how to check it.

Every epsilon is the ledger's. Beside it stands that of the second accountant; where that one is larger by more than
2%, the larger is stated. The certificate names the ledger by its head, the released model by hashes of its tensors,
the configuration and the code by hashes; whoever has the ledger and the model can check all of it (`verify.py`).
"""

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final

from tacit.core.files import storage, write_atomically
from tacit.errors import TacitError
from tacit.evidence import signing
from tacit.evidence.questions import nist_factors, not_covered, opted_out, registry_entry, say, twelve_questions
from tacit.evidence.replay import Account, read_accounts
from tacit.evidence.second_accountant import TOLERANCE, second_epsilon
from tacit.privacy.accounting.accountant import profile
from tacit.privacy.accounting.events import describe, from_json
from tacit.privacy.accounting.risk import CUT, Risk, risk
from tacit.privacy.ledger.earlier_events import recomputed
from tacit.privacy.ledger.ledger import Ledger, Line
from tacit.privacy.ledger.statement import moved, statement
from tacit.privacy.mechanisms import words_of
from tacit.report import wording
from tacit.report.facts import Facts, Promise
from tacit.report.integrity import open_ledger
from tacit.report.run_folder import Folder, epochs_in

FORMAT: Final = "tacit-certificate-1"
PROMISES: Final = "promises.json"  # what a federation's server promised; a simulation has facts.json
TUNING: Final = "tuning.json"
_BOUND: Final = ("config.toml", "facts.json", PROMISES, "terms.json", TUNING)


@dataclass(frozen=True)
class Subject:
    """The folder that a certificate is about: a run's, or a federation server's."""

    folder: Folder
    facts: Facts
    simulated: bool

    @property
    def promises(self) -> Path:
        """The file that tells what was promised."""
        return self.folder.facts if self.simulated else self.folder.path / PROMISES

    @classmethod
    def of(cls, path: Path) -> "Subject":
        place = path / "run" if (path / "run" / PROMISES).is_file() else path
        for name in ("facts.json", PROMISES):
            if (place / name).is_file():
                with storage(place):
                    facts = Facts.from_json((place / name).read_text(encoding="utf-8"))
                return cls(Folder(place), facts, name != PROMISES)
        raise TacitError(f"{path} holds no run that was charged: give the folder of a run, or of a federation's server")


def certify(path: Path, key: Path | None = None) -> dict[str, Any]:
    """The certificate of the run in a folder, signed with the private key in a file; None: not signed.

    Args:
        path: the folder of a run, or of a federation's server.
        key: an OpenSSH private key, Ed25519.

    Returns:
        The certificate, ready to be written as JSON.

    Raises:
        TacitError: if the ledger was changed, or holds charges of an earlier version that had to be put right.
    """
    subject = Subject.of(path)
    with open_ledger(subject.folder.path) as ledger:
        if recomputed(ledger, epochs_in(subject.folder.path)):
            raise TacitError(
                f"{path} has charges of an earlier version that were put right: run it again to certify it"
            )
        content = _content(subject, ledger)
    if key is not None:
        content["signature"] = signing.sign(signing.canonical(content), key)
    return content


def _content(subject: Subject, ledger: Ledger) -> dict[str, Any]:
    facts, place = subject.facts, subject.folder.path
    accounts, lines = read_accounts(subject.folder.ledger), _lines(ledger)
    tuning, departed = _json(place / TUNING), _departed(place, accounts)
    promises = subject.promises.read_text(encoding="utf-8")
    content: dict[str, Any] = {
        "format": FORMAT,
        "run": _run(subject, ledger),
        "guarantees": [_guarantee(promise, facts, accounts, lines) for promise in facts.promises if promise.clients],
        "accounts": {scope: _stated(lines[scope]) for scope in accounts},
        "opted_out": opted_out(json.loads(promises)["promises"]),
        "departed": departed,
        "tuning": tuning,
        "releases": list(_releases(subject)),
        "hashes": _hashes(subject, ledger),
        "promises": promises,  # as the run's own file has them, which the ledger names
        "countersignatures": [],
    }
    content["not_covered"] = not_covered(content)
    content["questions"] = twelve_questions(content)
    content["nist_sp_800_226"] = nist_factors(content)
    content["deployments_registry"] = registry_entry(content)
    return content


def _run(subject: Subject, ledger: Ledger) -> dict[str, Any]:
    facts = subject.facts
    outcome = _json(subject.folder.outcome) or {}
    environment = _json(subject.folder.environment) or {}
    terms = _json(subject.folder.path / "terms.json") or {}
    return {
        "name": facts.name,
        "kind": "simulation" if subject.simulated else "federation",
        "federation": terms.get("run"),
        "members": {seat["name"]: seat["key"] for seat in terms.get("roster", [])},
        "method": facts.method,
        "plan": facts.plan,
        "unit": facts.unit,
        "clients": facts.clients,
        "rate": facts.rate,
        "rounds": {"planned": facts.rounds, "done": outcome.get("round"), "charged": ledger.rounds() + 1},
        "certified": datetime.now(UTC).date().isoformat(),
        "version": environment.get("versions", {}).get("tacit-fl") or _version(),
        "notes": list(facts.notes),
    }


# --- guarantees


def _lines(ledger: Ledger) -> dict[str, Line]:
    """What the ledger's own statement says of every account; of clients that changed level, of all their rounds."""
    lines = {line.scope: line for line in statement(ledger)}
    return lines | {f"client:{client}": group.line for group in moved(ledger) for client in group.clients}


def _stated(line: Line) -> dict[str, Any]:
    return {"epsilon": _number(line.epsilon), "delta": line.delta, "accountant": line.accountant, "rounds": line.rounds}


def _guarantee(
    promise: Promise, facts: Facts, accounts: Mapping[str, Account], lines: Mapping[str, Line]
) -> dict[str, Any]:
    """One level: what its members are promised, with the figures of the account that spent most."""
    claim: dict[str, Any] = {
        "level": promise.level,
        "clients": promise.clients,
        "standing": promise.standing,
        "unit": facts.unit,
        "once_opted_out": promise.once_open,
    }
    counted = [account for account in accounts.values() if _counts(account, promise)]
    if promise.standing != "protected" or not counted:
        words = wording.sentence(promise, facts, None)
        return claim | {"epsilon": None, "words": words.removeprefix(f"{promise.level}: ")}
    worst = max(counted, key=lambda account: lines[account.scope].epsilon)
    line = lines[worst.scope]
    again = second_epsilon(worst.history, line.delta or 0.0, line.relation, line.accountant)
    stated = max(again, line.epsilon) if again > line.epsilon * (1 + TOLERANCE) else line.epsilon
    figures = _risk(worst, line)
    entry = claim | {
        "account": worst.scope,
        "accounts": len(counted),
        "epsilon": _number(stated),
        "delta": line.delta,
        "budget": line.budget,
        "accountant": line.accountant,
        "second_epsilon": _number(again),
        "relation": line.relation,
        "neighbours": wording.neighbours(promise, facts.unit),
        "against": words_of(facts.plan).against,
        "rounds_charged": line.rounds,
        "released": _in_words(worst, facts.unit),
        "mu": _number(figures.mu),
        "regret": figures.regret,
        "mu_holds_to_delta": CUT,
        "advantage": figures.advantage,
        "found_at_1_percent_false_alarms": figures.found,
        "trade_off": [list(point) for point in figures.curve],
    }
    return entry | {"words": say(entry)}


def _counts(account: Account, promise: Promise) -> bool:
    """Whether an account is one of the level's: its own, or that of a client that is at it."""
    if not account.scope.startswith(("level:", "client:")):
        return False  # charged to be known beside it
    if account.level is not None:
        return account.level == promise.level
    return (account.budget, account.delta) == (promise.budget, promise.delta)


def _risk(account: Account, line: Line) -> Risk:
    events = {from_json(text): count for text, count in account.history.items()}
    return risk(profile(events, line.relation, line.accountant))  # type: ignore[arg-type]


def _in_words(account: Account, unit: str) -> list[str]:
    often = sorted(account.history.items(), key=lambda item: -item[1])
    return [f"{count:,} times {describe(from_json(text), unit)}" for text, count in often[:5]]


# --- what it is bound to


def _releases(subject: Subject) -> Iterator[dict[str, Any]]:
    """The shared model where the run stands, by hashes of its tensors; nothing if nothing is shared."""
    if not subject.folder.checkpoint.is_file() or not subject.facts.shares:
        return
    from tacit.rounds import checkpoint

    saved = checkpoint.load(subject.folder.checkpoint)
    tensors = {name: _tensor_digest(leaf) for name, leaf in saved["model"].items()}
    yield {"what": "shared model", "round": int(saved["round"]), "tensors": tensors}


_TYPES: Final = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64"}


def _tensor_digest(leaf: Any) -> str:
    """As `verify.tensor_digest` has it of a safetensors file: type, shape, bytes."""
    import torch

    plain = leaf.detach().cpu().contiguous()
    kind = _TYPES.get(str(plain.dtype).removeprefix("torch."), str(plain.dtype))
    head = json.dumps([kind, list(plain.shape)]).encode()
    body = plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b""
    return hashlib.sha256(head + body).hexdigest()


def _hashes(subject: Subject, ledger: Ledger) -> dict[str, Any]:
    place = subject.folder.path
    files = {name: _file_digest(place / name) for name in _BOUND if (place / name).is_file()}
    return {"files": files, "code": code_digest(), "ledger_head": str(ledger.head())}


def code_digest() -> str:
    """SHA-256 over the package's own sources, by name: which code made, or checks, a certificate."""
    root = Path(__file__).resolve().parent.parent
    hasher = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".c", ".h")):
        hasher.update(f"{path.relative_to(root).as_posix()}\0{_file_digest(path)}\n".encode())
    return hasher.hexdigest()


def _file_digest(path: Path) -> str:
    with storage(path):
        return hashlib.sha256(path.read_bytes()).hexdigest()


def _departed(place: Path, accounts: Mapping[str, Account]) -> list[dict[str, Any]]:
    """Members that have left, with the last round that they were charged for where they have accounts of their own."""
    departed = []
    for name in (each["name"] for each in _json(place.parent / "members.json") or [] if each["left"]):
        account = accounts.get(f"client:{name}")
        departed.append({"client": name, "last_charged_round": None if account is None else account.last + 1})
    return departed


def _json(path: Path) -> Any:
    if not path.is_file():
        return None
    with storage(path):
        return json.loads(path.read_text(encoding="utf-8"))


def _number(value: float) -> float | None:
    """JSON has no infinity: None says that there is no bound."""
    return value if math.isfinite(value) else None


def _version() -> str:
    try:
        return version("tacit-fl")
    except PackageNotFoundError:  # a source tree that was not installed
        return "unknown"


# --- members


def countersign(content: dict[str, Any], folder: Path, member: str, key: Path) -> dict[str, Any]:
    """The certificate with a member's signature on what it saw: its own account, and the server's ledger.

    Args:
        content: the certificate.
        folder: the member's own folder, with its ledger.
        member: its name in the federation.
        key: its own private key, whose public half is on the federation's roster.

    Raises:
        TacitError: if the member's own ledger has more than the certificate says.
    """
    run = content["run"]["federation"]
    with open_ledger(folder) as ledger:
        lines = [line for line in statement(ledger) if line.scope.startswith(("level:", "client:"))]
        server_head = ledger.last_kept("server", run or "")
        turns = len(ledger.answered(run))
    spent = max((line.epsilon for line in lines), default=0.0)
    claims = {entry["epsilon"] for entry in content["guarantees"] if entry["epsilon"] is not None}
    if claims and spent > max(claims) * (1 + 1e-6):
        raise TacitError(
            f"this member's own ledger has epsilon {spent:.4g}, and the certificate at most {max(claims):g}"
        )
    saw = {
        "member": member,
        "certificate": signing.digest(content),
        "turns_answered": turns,
        "epsilon": _number(spent),
        "server_ledger_head": None if server_head is None else str(server_head.head),
    }
    added = {"saw": saw} | signing.sign(json.dumps(saw, sort_keys=True).encode(), key)
    return content | {"countersignatures": [*content.get("countersignatures", []), added]}


def countersign_file(path: Path, folder: Path) -> dict[str, Any]:
    """`countersign` with the key and the name in a member's own folder."""
    with storage(path):
        content = json.loads(path.read_text(encoding="utf-8"))
    about = _json(folder / "client.json")
    if about is None:
        raise TacitError(f"{folder} is not the folder of a member: give the one that `tacit join` made")
    return countersign(content, folder, about["name"], folder / "node.key")


def write(content: Mapping[str, Any], path: Path) -> Path:
    """As JSON, the same bytes for the same content."""
    return write_text(json.dumps(content, indent=1, sort_keys=True, allow_nan=False) + "\n", path)


def write_text(text: str, path: Path) -> Path:
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())
    return path
