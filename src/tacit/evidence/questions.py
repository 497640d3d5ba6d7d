"""What a data protection officer asks, answered from a certificate's figures; and the same in two public forms.

The forms: the factors of NIST SP 800-226 (its pyramid, from epsilon down to data collection), and the fields of the
public registry of differential privacy deployments (opendp/deployments-registry-data). What the registry asks and a run
cannot know is left to the issuer and says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tacit.privacy.accounting.risk import Risk
from tacit.privacy.ledger.statement import SIMULATION
from tacit.report import wording

TO_FILL: Final = "to be filled in by the issuer"
_FAST: Final = "noise is fast: "  # how a plan's notes tell of noise on floating-point numbers
_MODEL: Final = {"local": "Local", "record": "Local", "stepwise": "Local", "distributed": "Distributed"}


def say(entry: Mapping[str, Any]) -> str:
    """A level's whole promise as sentences, from its figures."""
    unit = {"client": "everything that one client contributed", "record": "any one record of a client"}[entry["unit"]]
    infinite, members_found = float("inf"), entry["found_at_1_percent_false_alarms"]
    figures = Risk(entry["mu"] or infinite, entry["regret"], entry["advantage"], members_found, ())
    epsilon = infinite if entry["epsilon"] is None else entry["epsilon"]
    return (
        f"Protected is {unit}: {entry['unit']}-level differential privacy ({entry['neighbours']}) with epsilon "
        f"{wording.number(epsilon)} at delta {entry['delta']:g}, by {entry['accountant'].upper()}; {entry['against']}. "
        f"{figures.words}"
    )


def opted_out(promises: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Who has no guarantee, from the promises of a run."""
    bare = [each for each in promises if each["standing"] in ("opted out", "no noise") and each["clients"]]
    return {
        "clients": sum(each["clients"] for each in bare),
        "levels": [each["level"] for each in bare],
        "for_some_rounds": sum(each["once_open"] for each in promises if each not in bare),
    }


def not_covered(content: Mapping[str, Any]) -> list[str]:
    """What the guarantees say nothing of, from the rest of a certificate."""
    run, without = content["run"], content["opted_out"]["clients"] + content["opted_out"]["for_some_rounds"]
    against = {entry["against"] for entry in content["guarantees"] if entry["epsilon"] is not None}
    lines = {
        f"{without:,} clients that opted out, for all or some rounds.": bool(without),
        "Tuning: choices made by looking at other runs on the same data. None was charged to this ledger.": (
            content["tuning"] is None
        ),
        "Personal models that a client hands to others: they have seen its rows, and no noise protects them.": True,
        f"{wording.as_sentence(SIMULATION)} A deployment draws its noise from the operating system.": (
            run["kind"] == "simulation"
        ),
        "Attacks on floating point: noise was added to floating-point numbers, not to integers.": any(
            note.startswith(_FAST) for note in run["notes"]
        ),
        "Whoever knows who took part in which round, for example by watching the network: sampling hides nothing.": (
            any("not who took part" in text for text in against)
        ),
        "How long computations and messages took, and whether a device answered at all.": True,
        "What follows about somebody from what others contributed; and other runs, which have ledgers of their own.": (
            True
        ),
    }
    return [text for text, holds in lines.items() if holds]


def twelve_questions(content: Mapping[str, Any]) -> list[dict[str, str]]:
    """Question and answer, each in plain words."""
    run, held = content["run"], [entry for entry in content["guarantees"] if entry["epsilon"] is not None]
    return [
        {"question": question, "answer": answer}
        for question, answer in (
            ("What is protected?", _unit(run)),
            ("Which two worlds must look alike?", _each(held, "neighbours", "There is no guarantee.")),
            ("Against whom does it hold, and who must be trusted?", _each(held, "against", "Against nobody.")),
            ("How much can anybody learn, at most?", _budget(held)),
            ("What does that mean for a person?", _meaning(held)),
            ("Who is not protected?", _bare(content)),
            ("What was released, and how often?", _released(content, held)),
            ("What is not covered?", " ".join(content["not_covered"])),
            ("Was tuning counted?", _tuning(content["tuning"])),
            ("Where are the data and the personal models?", _place(run)),
            ("What if somebody leaves, or asks to be erased?", _erasure(content)),
            ("How do I check this without trusting you?", _check(content)),
        )
    ]


def _unit(run: Mapping[str, Any]) -> str:
    return {
        "client": "Whether a client took part at all: all of its data, over the whole run.",
        "record": "Any single record of a client. That a client took part, and how many records it has, is not hidden.",
    }.get(run["unit"], "Nothing: no upload was protected, or nothing was uploaded.")


def _each(held: list[Mapping[str, Any]], name: str, otherwise: str) -> str:
    by_text = {str(entry[name]): entry["level"] for entry in held}
    if len(by_text) == 1:
        return f"{next(iter(by_text)).capitalize()}."
    return " ".join(f"{level}: {text}." for text, level in by_text.items()) or otherwise


def _budget(held: list[Mapping[str, Any]]) -> str:
    each = (
        f"{e['level']}: epsilon {e['epsilon']:.4g} at delta {e['delta']:g}"
        + (f", of {e['budget']:g} promised" if e["budget"] is not None else "")
        + (f"; mu {e['mu']:.3g}." if e["mu"] is not None else ".")
        for e in held
    )
    return " ".join(each) or "There is no bound."


def _meaning(held: list[Mapping[str, Any]]) -> str:
    each = (
        f"{entry['level']}: an attacker who wrongly accuses 1 in 100 finds at most "
        f"{100 * entry['found_at_1_percent_false_alarms']:.1f} in 100 members."
        for entry in held
    )
    return " ".join(each) or "Whoever sees the models may learn what somebody's data are."


def _bare(content: Mapping[str, Any]) -> str:
    bare = content["opted_out"]
    sentence = f"{bare['clients']:,} of {content['run']['clients']:,} clients opted out."
    later = f" {bare['for_some_rounds']:,} more had opted out for some rounds." if bare["for_some_rounds"] else ""
    return sentence + later


def _released(content: Mapping[str, Any], held: list[Mapping[str, Any]]) -> str:
    rounds = content["run"]["rounds"]["charged"]
    events = "; ".join(text for entry in held for text in entry["released"][:2])
    return f"A model after each of {rounds:,} rounds" + (f": {events}." if events else ".")


def _tuning(tuning: Mapping[str, Any] | None) -> str:
    if tuning is None:
        return "No. If settings were chosen by looking at other runs on these data, that is not in the figures."
    return f"Yes: {tuning['words']}"


def _place(run: Mapping[str, Any]) -> str:
    if run["kind"] == "simulation":
        return "On the machine that ran the simulation: it held everybody's data."
    return "On the members' own machines. Only clipped uploads left them, through the plan's noise."


def _erasure(content: Mapping[str, Any]) -> str:
    departed = len(content["departed"])
    sentence = f"{departed:,} clients have left. " if departed else ""
    return sentence + (
        "What a client contributed stays in released models, hidden to the degree above. From its last charged round "
        "on it contributed nothing; its personal model is deleted on its own disk (tacit erase), with a receipt."
    )


def _check(content: Mapping[str, Any]) -> str:
    head = content["hashes"]["ledger_head"].partition(":")[0]
    return (
        f"tacit verify certificate.json --ledger ledger.sqlite --models FOLDER re-derives every figure from the "
        f"{int(head):,} rows of the ledger with another accountant, and checks chain, signatures and hashes."
    )


def nist_factors(content: Mapping[str, Any]) -> dict[str, str]:
    """The factors of SP 800-226's pyramid, from its top."""
    answers = {each["question"]: each["answer"] for each in content["questions"]}
    return {
        "epsilon": answers["How much can anybody learn, at most?"],
        "unit of privacy": answers["What is protected?"],
        "neighbouring datasets": answers["Which two worlds must look alike?"],
        "algorithms and correctness": f"{content['run']['method']} under the plan {content['run']['plan']}; accounted "
        "twice, by independent code; implementation tested against planted faults.",
        "utility and bias": "Not part of this certificate: see the report of the run, by level.",
        "trust model": answers["Against whom does it hold, and who must be trusted?"],
        "security and access control": answers["Where are the data and the personal models?"],
        "side channels": "Timing and message sizes are not hidden.",
        "data collection exposure": answers["What if somebody leaves, or asks to be erased?"],
        "privacy hazards": answers["What is not covered?"],
    }


def registry_entry(content: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the registry's schema."""
    run, answers = content["run"], {each["question"]: each["answer"] for each in content["questions"]}
    held = [entry for entry in content["guarantees"] if entry["epsilon"] is not None]
    return {
        "status": "Draft",
        "deployment": {
            "product": {
                "name": run["name"],
                "data_curators": [TO_FILL],
                "intended_use": TO_FILL,
                "data_product_type": "Machine learning model",
                "data_product_region": TO_FILL,
                "description": f"{run['method']}, trained by federated learning over {run['clients']:,} clients",
                "publication_date": run["certified"],
            },
            "dp_flavor": {
                "name": "Approximate DP",
                "data_domain": TO_FILL,
                "unprotected_quantities": answers["Who is not protected?"],
            },
            "privacy_loss": {
                "privacy_unit": f"{run['unit']}-level",
                "privacy_unit_description": answers["What is protected?"],
                "privacy_parameters": {
                    entry["level"]: {"epsilon": entry["epsilon"], "delta": entry["delta"], "mu": entry["mu"]}
                    for entry in held
                },
                "privacy_parameters_description": answers["What does that mean for a person?"],
            },
            "model": {
                "model_name": _MODEL.get(run["plan"].partition("-")[0], "Central"),
                "actors": answers["Against whom does it hold, and who must be trusted?"],
                "release_type": "Many releases",
                "release_type_description": answers["What was released, and how often?"],
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "the server's step and the personal models are functions of releases and own data",
                "composition": ", ".join(sorted({entry["accountant"].upper() for entry in held})) or "none",
            },
            "implementation": {
                "pre_processing_eda_hyperparameter_tuning": answers["Was tuning counted?"],
                "mechanisms": answers["What was released, and how often?"],
                "justification": TO_FILL,
            },
        },
    }
