"""Whether a certificate's words and counts follow from its figures, and from the promises that the ledger names.

An issuer can sign anything. What people read must be what the figures say: every sentence, every answer and both public
forms are made again from the rest, and levels, clients and who opted out from the run's own promises. Needs no torch;
what only a mechanism can say of itself is compared where one can be asked.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, Final

from tacit.evidence import questions
from tacit.evidence.replay import Account
from tacit.evidence.second_accountant import TOLERANCE
from tacit.privacy.accounting.events import describe, from_json
from tacit.privacy.accounting.risk import CUT
from tacit.report import wording
from tacit.report.integrity import Check

_FILES: Final = {"simulation": "facts.json", "federation": "promises.json"}


def check_promises(content: Mapping[str, Any], bound: Mapping[str, str]) -> Iterator[Check]:
    """The promises in the certificate are the file that it names; and its files are those that the ledger names."""
    name = _FILES[content["run"]["kind"]]
    digest = hashlib.sha256(content["promises"].encode()).hexdigest()
    stated = content["hashes"]["files"]
    matches = digest == stated[name] and all(value == bound.get(each, value) for each, value in stated.items())
    by = "the ledger names" if name in bound else "the certificate names"
    yield Check(matches, f"promises: {'those' if matches else 'not those'} that {by}")
    facts = json.loads(content["promises"])
    wrong = [*_run(content, facts), *_levels(content, facts)]
    yield Check(
        not wrong, f"promises: {wrong[0] if wrong else 'run, levels, clients and who opted out are as promised'}"
    )


def _run(content: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    run = content["run"]
    stated = {name: run[name] for name in ("name", "method", "plan", "unit", "clients", "rate", "notes")}
    stated |= {"rounds": run["rounds"]["planned"]}
    for name, value in stated.items():
        if value != facts[name]:
            yield f"{name} {value!r} is stated, and {facts[name]!r} was promised"
    if content["opted_out"] != questions.opted_out(facts["promises"]):
        yield "others opted out than is stated"


def _levels(content: Mapping[str, Any], facts: Mapping[str, Any]) -> Iterator[str]:
    promised, stated = [each for each in facts["promises"] if each["clients"]], content["guarantees"]
    if [each["level"] for each in promised] != [entry["level"] for entry in stated]:
        yield "other levels were promised than are stated"
        return
    for entry, promise in zip(stated, promised, strict=True):
        names = {"clients": "clients", "standing": "standing", "once_opted_out": "once_open"}
        expected = {key: promise[name] for key, name in names.items()} | {"unit": facts["unit"]}
        expected |= _text(entry, promise, facts)
        for name, value in expected.items():
            if entry[name] != value:
                yield f"level {entry['level']}: {name} is {entry[name]!r}, and {value!r} was promised"


def _text(entry: Mapping[str, Any], promise: Mapping[str, Any], facts: Mapping[str, Any]) -> dict[str, Any]:
    """What the level's texts must be."""
    level: Any = SimpleNamespace(**promise)
    if entry["epsilon"] is not None:
        texts = {"neighbours": wording.neighbours(level, facts["unit"]), "words": questions.say(entry)}
        return texts | _mechanism_text(facts["plan"])
    if promise["standing"] == "protected":
        return {}  # nothing was charged yet: its sentence is the plan's
    return {"words": wording.sentence(level, level, None).removeprefix(f"{promise['level']}: ")}


def _mechanism_text(plan: str) -> dict[str, str]:
    """What the mechanism says of itself; nothing on a machine that has none."""
    try:
        return {"against": wording.words_of(plan).against}
    except ImportError:
        return {}


def check_account(entry: Mapping[str, Any], account: Account, again: float) -> Iterator[Check]:
    """Everything that is stated of a level's account beside epsilon."""
    releases = [f"{n:,} times {describe(from_json(text), account.unit)}" for text, n in _often(account)]
    expected = {
        "unit": account.unit,
        "budget": account.budget,
        "rounds_charged": account.rounds,
        "released": releases,
        "mu_holds_to_delta": CUT,
    }
    wrong = [f"{name} is {entry[name]!r}, and the ledger has {value!r}" for name, value in expected.items()
             if entry[name] != value]  # fmt: skip
    if account.level is not None and account.level != entry["level"]:
        wrong.append(f"the account is that of level {account.level}")
    second = entry["second_epsilon"]
    if second is not None and abs(second - again) > TOLERANCE * again:
        wrong.append(f"the second accountant's {second:.4g} is stated, and {again:.4g} follows")
    yield Check(
        not wrong, f"level {entry['level']}: {wrong[0] if wrong else 'unit, budget, rounds and releases follow'}"
    )


def _often(account: Account) -> list[tuple[str, int]]:
    return sorted(account.history.items(), key=lambda item: -item[1])[:5]


def check_words(content: Mapping[str, Any]) -> Iterator[Check]:
    """Every text that follows from the rest of the certificate, made again."""
    parts = {
        "not_covered": questions.not_covered(content),
        "questions": questions.twelve_questions(content),
        "nist_sp_800_226": questions.nist_factors(content),
    }
    wrong = [name for name, text in parts.items() if content[name] != text]
    wrong += ["deployments_registry"] * (
        not _filled(content["deployments_registry"], questions.registry_entry(content))
    )
    verdict = f"{wrong[0]} does not follow from the figures" if wrong else "every answer follows from the figures"
    yield Check(not wrong, f"words: {verdict}")


def _filled(stated: Any, expected: Any) -> bool:
    """Whether an entry is the one that was made, but for what its issuer was to fill in."""
    if expected in (questions.TO_FILL, "Draft"):
        return isinstance(stated, str)
    if isinstance(expected, Mapping):
        return (
            isinstance(stated, Mapping)
            and stated.keys() == expected.keys()
            and all(_filled(stated[name], expected[name]) for name in expected)
        )
    if isinstance(expected, list):
        return isinstance(stated, list) and (expected == [questions.TO_FILL] or stated == expected)
    return stated == expected
