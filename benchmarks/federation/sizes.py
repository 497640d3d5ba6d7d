"""Under `record` noise is calibrated to a member's number of rows: a server puts other numbers on the roster."""

from pathlib import Path

from benchmarks.federation import liar
from tacit.federation.protocol.terms import Terms

RECORD = {"plan": "record", "bound": 0.5}
OWN = 20


def attacks(folder: Path) -> dict[str, str]:
    text = liar.text(RECORD)
    home = liar.joined(folder / "member", liar.offered(text), liar.some_rows(OWN))

    def said(rows: int, run: str) -> Terms:
        seats = liar.roster(home, dict.fromkeys("abcd", ""), OWN)
        own, *others = seats
        return Terms(run, text, liar.INPUTS, liar.CLASSES, (own.__class__(own.name, own.level, rows), *others))

    found = {f"{OWN} rows, as they are": liar.accepted(liar.answered(home, said(OWN, "honest")))}
    for rows in (0, 1, OWN - 1, OWN + 1, 10**6, 2**31, 10**30, -1):
        answer = liar.answered(home, said(rows, f"run-{rows % 997}"))
        became = "refused" if answer.refused in ("terms", "malformed") and not answer.tensors else "LET IN"
        found[f"{OWN} rows as {rows:.3g}"] = became
    return found


if __name__ == "__main__":
    liar.run(attacks, __doc__, "sizes")
