"""A server tries one set of terms after the other and reads from the refusals how many rows a member has, and which.

Two members whose rows differ in number and in labels are asked the same: their answers must be the same.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.federation import liar
from tacit.federation.protocol.messages import Answer
from tacit.federation.protocol.terms import Participant, Terms
from tacit.federation.service.client_dir import ClientFolder

LOCAL = {"plan": "local", "clip": 0.5}
ROWS = (4, 5, 8, 9, 13)


def variants(home: ClientFolder, text: str) -> Iterator[tuple[str, Terms]]:
    """What a server may vary, by what it would like to learn."""
    honest = Terms("run", text, liar.INPUTS, liar.CLASSES, liar.roster(home, dict.fromkeys("abcd", "")))

    def of_rows(rows: int) -> Terms:
        seats = (Participant(liar.NAME, liar.LEVEL, rows), *honest.roster[1:])
        return replace(honest, run=f"rows-{rows}", roster=seats)

    yield "honest terms", honest
    for rows in ROWS:
        yield "how many rows", of_rows(rows)
        yield "how many rows", replace(of_rows(rows), run=f"all-{rows}", roster=liar.roster(home, {}, rows))
    for classes in (1, 2, 3, 4, 6, 7, 10**6):
        yield "which labels", replace(honest, run=f"classes-{classes}", classes=classes)
    for inputs in ((1,), (6, 1), (7,), ()):
        yield "the shape of a row", replace(honest, run=f"inputs-{len(inputs)}", inputs=inputs)
    for batch in (4, 9, 10**6):
        yield "batches beside rows", replace(honest, run=f"batch-{batch}", experiment=liar.text(LOCAL, batch=batch))
    for other in ({"plan": "record", "bound": 0.5}, {"plan": "central", "clip": 0.5}, {"plan": "open"}):
        levels = {} if other["plan"] == "open" else {"levels": {liar.LEVEL: {"epsilon": 8.0, "delta": 1e-3}}}
        told = liar.text(other, **levels) if levels else liar.text(other, levels={})
        yield "another plan", replace(of_rows(9), run=f"plan-{other['plan']}", experiment=told)


def attacks(folder: Path) -> dict[str, str]:
    text = liar.text(LOCAL)
    members = [
        liar.joined(folder / f"{several}", liar.offered(text), liar.some_rows(several, labels))
        for several, labels in ((5, 2), (9, 5))
    ]
    found: dict[str, str] = {}
    for what, terms in variants(members[0], text):
        one, other = (liar.answered(home, terms) for home in members)
        good = liar.accepted(one) if what in ("honest terms", "batches beside rows") else liar.verdict(one)
        became = good if _alike(one, other) else f"TOLD APART ({one.refused}, {other.refused})"
        found[what] = became if found.get(what, became) == became else f"{found[what]}, {became}"
    return found


def _alike(one: Answer, other: Answer) -> bool:
    return (one.refused, one.tensors) == (other.refused, other.tensors)


if __name__ == "__main__":
    liar.run(attacks, __doc__, "oracle")
