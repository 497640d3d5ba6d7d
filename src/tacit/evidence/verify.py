"""`tacit verify`: is a certificate true? Every figure again from the ledger, by the second accountant, without torch.

Each line passes or fails with a reason. A line that neither passes nor fails says what nobody can check here.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from tacit.core.files import storage
from tacit.errors import StorageError, TacitError
from tacit.evidence import signing
from tacit.evidence.consistency import check_account, check_promises, check_words
from tacit.evidence.replay import Account, read_accounts
from tacit.evidence.second_accountant import TOLERANCE, second_epsilon, second_profile
from tacit.privacy.accounting.risk import risk
from tacit.privacy.ledger.chain import read_head
from tacit.privacy.ledger.ledger import Ledger
from tacit.report.integrity import Check

_LOOSE: Final = 0.05  # of mu and of shares: they are read from the two accountants' whole curves


def verify(path: Path, ledger: Path, models: Path | None = None, key: str | None = None) -> list[Check]:
    """All checks of a certificate.

    Args:
        path: the certificate, JSON.
        ledger: the ledger's file, or the folder that holds it.
        models: a folder of released models; every safetensors file in it must be one that the certificate names.
        key: whose signature it must be: a fingerprint, a public key, or a file that holds one.

    Returns:
        A line for each check. The certificate is to be refused if any of them failed.
    """
    content = _read(path)
    place = ledger / "ledger.sqlite" if ledger.is_dir() else ledger
    checks = [*_signatures(content, key), *_guarded(lambda: _ledger(content, place))]
    checks += [*_guarded(lambda: _figures(content, place)), *_guarded(lambda: _files(content, place.parent))]
    checks += [*_guarded(lambda: _promises(content, place)), *_guarded(lambda: check_words(content))]
    checks += _guarded(lambda: _models(content, models))
    return checks


def _read(path: Path) -> dict[str, Any]:
    try:
        with storage(path):
            content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] == "tacit-certificate-1":
            return content
    except (ValueError, KeyError, TypeError) as error:
        raise TacitError(f"{path} is no certificate ({error}): give the JSON that `tacit certify` wrote") from error
    raise TacitError(f"{path} has the format {str(content['format'])[:40]!r}: use the Tacit that made it")


def _guarded(checks: Any) -> Iterator[Check]:
    """What was edited may hold anything: whatever goes wrong is a line that fails."""
    try:
        yield from checks()
    except (TacitError, KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        yield Check(False, f"cannot be checked: {type(error).__name__}: {error}")


# --- signatures


def _signatures(content: Mapping[str, Any], key: str | None) -> Iterator[Check]:
    signature = content.get("signature")
    if signature is None:
        yield Check(False, "signature: the certificate is not signed")
        return
    whole = signing.signed(signing.canonical(content), signature)
    name = signing.fingerprint(signature["key"]) if whole else "the key that it names"
    yield Check(whole, f"signature: {'made by' if whole else 'was not made over this content by'} {name}")
    if key is None:
        yield Check(None, "issuer: nobody said whose key that is; give --key with the fingerprint that you were told")
    elif whole:
        expected = signing.expected_fingerprint(key)
        matches = expected == name
        yield Check(
            matches,
            f"issuer: {'as expected' if matches else f'the certificate is signed by {name}, not by {expected}'}",
        )
    for each in content.get("countersignatures", []):
        yield from _guarded(lambda each=each: _countersigned(content, each))


def _countersigned(content: Mapping[str, Any], each: Mapping[str, Any]) -> Iterator[Check]:
    saw, members = each["saw"], content["run"]["members"]
    member = f"member {saw['member']}"
    whole = signing.signed(json.dumps(saw, sort_keys=True).encode(), each)
    yield Check(whole, f"{member}: {'signed what it saw' if whole else 'its signature was not made over what it saw'}")
    known = members.get(saw["member"], "").split()[:2] == each["key"].split()[:2]
    yield Check(known, f"{member}: {'its key is that of the roster' if known else 'another key than on the roster'}")
    matches = saw["certificate"] == signing.digest(content)
    yield Check(matches, f"{member}: {'signed this certificate' if matches else 'signed another certificate'}")


# --- the ledger


def _ledger(content: Mapping[str, Any], place: Path) -> Iterator[Check]:
    with Ledger.read(place) as ledger:
        head, _, faults, _ = ledger.walk()
        for fault in faults:
            yield Check(False, f"chain: {fault}")
        if not faults and head is not None:
            yield Check(True, f"chain: {head.serial:,} rows, each as it was written")
        named = read_head(content["hashes"]["ledger_head"])
        if head == named:
            yield Check(True, "head: the ledger is the one that the certificate names")
        elif ledger.holds(named):
            yield Check(False, f"head: {head.serial - named.serial if head else 0} rows were added since: certify anew")
        else:
            yield Check(False, "head: another run's ledger, or this one was shortened, reordered or written anew")
        for each in content.get("countersignatures", []):
            kept_head = each["saw"]["server_ledger_head"]
            if kept_head is not None:
                held = ledger.holds(read_head(kept_head))
                verdict = "the ledger holds the head that it kept" if held else "it kept a head that this ledger lacks"
                yield Check(held, f"member {each['saw']['member']}: {verdict}")


def _figures(content: Mapping[str, Any], place: Path) -> Iterator[Check]:
    """Every account and every guarantee anew."""
    accounts = read_accounts(place)
    stated = content["accounts"]
    missing = sorted(accounts.keys() ^ stated.keys())
    yield Check(
        not missing,
        f"accounts: {len(accounts):,} in the ledger" + (f", and not in both: {missing[0]}" if missing else ""),
    )
    prices: dict[Any, float] = {}
    wrong = []
    for scope in accounts.keys() & stated.keys():
        again = _price(accounts[scope], stated[scope]["accountant"], prices)
        matches = (stated[scope]["delta"], stated[scope]["rounds"]) == (accounts[scope].delta, accounts[scope].rounds)
        if not (matches and _near(stated[scope]["epsilon"], again)):
            wrong.append(
                f"{scope}: {_format(stated[scope]['epsilon'])} is stated, and {_format(_finite(again))} follows"
            )
    yield Check(not wrong, f"accounts: {wrong[0] if wrong else 'every epsilon follows from its rows'}")
    if content["tuning"] is not None:
        charged = any('"RepeatAndSelect"' in text for account in accounts.values() for text in account.history)
        yield Check(charged, f"tuning: {'the search was charged' if charged else 'no search is in the ledger'}")
    for entry in content["guarantees"]:
        if entry["epsilon"] is not None:
            yield from _guarantee(entry, accounts, prices)


def _promises(content: Mapping[str, Any], place: Path) -> Iterator[Check]:
    with Ledger.read(place) as ledger:
        bound, rounds = ledger.bindings(), ledger.rounds() + 1
    yield from check_promises(content, bound)
    stated = content["run"]["rounds"]["charged"]
    yield Check(stated == rounds, f"rounds: {stated} are stated, {rounds} were charged")


def _guarantee(entry: Mapping[str, Any], accounts: Mapping[str, Account], prices: dict[Any, float]) -> Iterator[Check]:
    label, account = f"level {entry['level']}", accounts[entry["account"]]
    again = _price(account, entry["accountant"], prices)
    right = _near(entry["epsilon"], again) and entry["delta"] == account.delta and entry["relation"] == account.relation
    yield Check(
        right,
        f"{label}: epsilon {_format(entry['epsilon'])} at delta {entry['delta']:g}; again: {_format(_finite(again))}",
    )
    larger = [
        other
        for other in accounts.values()
        if other.level == entry["level"] and _price(other, entry["accountant"], prices) > again * (1 + TOLERANCE)
    ]
    yield Check(not larger, f"{label}: {'no account spent more' if not larger else f'{larger[0].scope} spent more'}")
    yield from check_account(entry, account, again)
    within = account.budget is None or again <= account.budget * (1 + TOLERANCE)
    yield Check(within, f"{label}: {'within' if within else 'beyond'} what was promised" + _limit(account))
    yield from _risk(label, entry, account)


def _risk(label: str, entry: Mapping[str, Any], account: Account) -> Iterator[Check]:
    again = risk(second_profile(account.history, account.relation, entry["accountant"]))
    pairs = (
        ("mu", entry["mu"], again.mu),
        ("advantage", entry["advantage"], again.advantage),
        ("members found", entry["found_at_1_percent_false_alarms"], again.found),
    )
    wrong = [
        f"{name} {_format(stated)}, again {_format(_finite(value))}"
        for name, stated, value in pairs
        if not _about(stated, value)
    ]
    if abs(entry["regret"] - again.regret) > _LOOSE / 2:
        wrong.append(f"regret {entry['regret']:.3g}, again {again.regret:.3g}")
    if len(entry["trade_off"]) != len(again.curve) or not np.allclose(entry["trade_off"], again.curve, atol=_LOOSE / 2):
        wrong.append("the trade-off curve is another")
    yield Check(not wrong, f"{label}: {'; '.join(wrong) if wrong else 'mu, advantage, members found and curve follow'}")


def _price(account: Account, accountant: str, prices: dict[Any, float]) -> float:
    """Equal histories are computed once."""
    key = (account.key, accountant)
    if key not in prices:
        known = account.delta is not None
        prices[key] = (
            second_epsilon(account.history, account.delta or 0.0, account.relation, accountant) if known else math.inf
        )
    return prices[key]


def _near(stated: float | None, again: float) -> bool:
    if stated is None or not math.isfinite(again):
        return stated is None and not math.isfinite(again)
    return abs(stated - again) <= TOLERANCE * max(stated, again) + 1e-4


def _about(stated: float | None, again: float) -> bool:
    if stated is None or not math.isfinite(again):
        return stated is None and not math.isfinite(again)
    return abs(stated - again) <= _LOOSE * max(stated, again) + 1e-4


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _format(value: float | None) -> str:
    return "no bound" if value is None else f"{value:.4g}"


def _limit(account: Account) -> str:
    return ": no limit was set" if account.budget is None else f", epsilon {account.budget:g}"


# --- files and models


def _files(content: Mapping[str, Any], place: Path) -> Iterator[Check]:
    """Those that lie beside the ledger; the others are known by their hashes alone."""
    for name, stated in content["hashes"]["files"].items():
        path = place / name
        if not path.is_file():
            yield Check(None, f"{name}: not here; its hash is {stated[:16]}...")
            continue
        with storage(path):
            matches = hashlib.sha256(path.read_bytes()).hexdigest() == stated
        yield Check(matches, f"{name}: {'as certified' if matches else 'not the file that was certified'}")


def _models(content: Mapping[str, Any], folder: Path | None) -> Iterator[Check]:
    charged = content["run"]["rounds"]["charged"]
    for release in content["releases"]:
        right = 0 <= release["round"] <= charged
        yield Check(right, f"{release['what']}: of round {release['round']}, of {charged} that were charged")
    if folder is None:
        yield Check(None, "models: none were given; give --models with the folder of those that you received")
        return
    files = sorted(folder.rglob("*.safetensors"))
    if not files:
        yield Check(False, f"models: there is no safetensors file in {folder}")
    for path in files:
        yield _model(content, path, str(path.relative_to(folder)))


def _model(content: Mapping[str, Any], path: Path, name: str) -> Check:
    if path.parent.name == "personal":
        return Check(None, f"{name}: a personal model, which no guarantee covers")
    tensors = read_digests(path)
    for release in content["releases"]:
        if all(tensors.get(tensor) == value for tensor, value in release["tensors"].items()):
            extra = sorted(tensors.keys() - release["tensors"].keys())
            beside = f"; beside it {extra[0]}, which was not released" if extra else ""
            return Check(not extra, f"{name}: the {release['what']} of round {release['round']}{beside}")
    return Check(False, f"{name}: not a model that this run released")


def read_digests(path: Path) -> dict[str, str]:
    """SHA-256 over type, shape and bytes of every tensor of a safetensors file, read by hand."""
    with storage(path):
        data = path.read_bytes()
    try:
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        digests = {}
        for name, about in header.items():
            if name != "__metadata__":
                start, end = about["data_offsets"]
                head = json.dumps([about["dtype"], list(about["shape"])]).encode()
                digests[name] = hashlib.sha256(head + data[8 + length + start : 8 + length + end]).hexdigest()
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is no safetensors file ({error})") from error
    return digests
