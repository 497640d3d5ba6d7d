"""A server makes up members, so that shares of noise become small: new names, other keys, a plan of less noise."""

from dataclasses import replace
from pathlib import Path

from benchmarks.federation import liar
from tacit.federation.protocol.terms import Terms

DISTRIBUTED = {"plan": "distributed", "clip": 0.5, "threshold": 0.6}


def attacks(folder: Path) -> dict[str, str]:
    text = liar.text(DISTRIBUTED)
    home = liar.joined(folder / "member", liar.offered(text), liar.some_rows(9))
    others = liar.keys(folder / "others", [f"ward-{k}" for k in range(4)])
    made_up = liar.keys(folder / "made-up", [f"x-{k}" for k in range(40)])

    def terms(run: str, others: dict[str, str], text: str = text) -> Terms:
        return Terms(run, text, liar.INPUTS, liar.CLASSES, liar.roster(home, others))

    def lie(run: str, others: dict[str, str], text: str = text) -> str:
        return liar.verdict(liar.answered(home, terms(run, others, text)))

    swapped = others | {"ward-0": made_up["x-0"]}
    twice = dict.fromkeys(others, others["ward-0"])
    another = terms("own", others)
    seats = tuple(replace(seat, key=made_up["x-1"]) if seat.name == liar.NAME else seat for seat in another.roster)
    return {
        "a first run with 40 invented members": lie("first", others | made_up),
        "the honest run": liar.accepted(liar.answered(home, terms("honest", others))),
        "a later run with 40 invented members": lie("later", others | made_up),
        "a later run with others in their places": lie("places", dict(list(made_up.items())[:4])),
        "a later run with one more": lie("more", others | {"x-0": made_up["x-0"]}),
        "a later run with another key for a name": lie("key", swapped),
        "one key for all other members": lie("twice", twice),
        "another key in the member's own name": liar.verdict(liar.answered(home, replace(another, roster=seats))),
        "a smaller share of noise": lie("noise", others, liar.text(DISTRIBUTED | {"participations": 1})),
        "a lower threshold": lie("threshold", others, liar.text(DISTRIBUTED | {"threshold": 0.5})),
        "the honest run once more": liar.accepted(liar.answered(home, terms("again", others))),
    }


if __name__ == "__main__":
    liar.run(attacks, __doc__, "invented")
