"""Fills the table of docs/what-the-guarantee-rests-on.md: the files that the guarantee rests on, with their lines.

python -m benchmarks.trusted_base
"""

import re
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGE: Final = ROOT / "docs" / "what-the-guarantee-rests-on.md"
SOURCE: Final = ROOT / "src" / "tacit"
TRUSTED: Final = {
    "privacy/plan.py": "sampler, mechanism and accountant meet here; from a budget to noise",
    "privacy/levels.py": "who chose which level; opting out is explicit",
    "privacy/membership.py": "who is at which level from which round on; the account of a client over its levels",
    "privacy/evaluation.py": "members' accuracies as a release",
    "privacy/mechanisms/clipping.py": "one bound for the whole upload; what the adaptive bound costs",
    "privacy/mechanisms/clipped_upload_sum.py": "clip and sum: the boundary, in torch",
    "privacy/mechanisms/clipped_upload_sum.c": "the same in C",
    "privacy/mechanisms/release.py": "what every release must say; clip, encode and sum of all of them",
    "privacy/mechanisms/__init__.py": "mechanisms by name",
    "privacy/mechanisms/open.py": "no noise, and no guarantee",
    "privacy/mechanisms/grouped.py": "central and grouped: clip, the server's noise, public divisors; what is charged",
    "privacy/mechanisms/local.py": "local: clip and noise on the client; what is charged",
    "privacy/mechanisms/record.py": "record: private gradients; what is charged",
    "privacy/mechanisms/level_ratios.py": "the weights of levels that were asked for; which levels are asked at all",
    "privacy/mechanisms/open_span.py": "private means moved towards open ones after their noise (post-processing)",
    "privacy/mechanisms/level_weights.py": "levels merged after their noise (post-processing)",
    "privacy/mechanisms/gradient.py": "sums of clipped gradients, by ghost norms; calls that are counted",
    "privacy/mechanisms/certified_minimum.py": "solutions of a client's own problem: clip, gap, noise",
    "privacy/mechanisms/dual_ascent.py": "the gap; the solver beside it is not trusted",
    "privacy/mechanisms/dual_ascent.c": "the solver in C: not trusted but for its memory",
    "core/dual_losses.py": "losses of bounded slope and their conjugates, of which a gap is made",
    "core/dropout.py": "what is dropped of a row depends on no data and on no other row",
    "privacy/mechanisms/stepwise.py": "stepwise: clip and noise in every local step; what is charged",
    "privacy/mechanisms/noise.py": "sources of noise, one key for each purpose; rounding and Skellam noise",
    "privacy/mechanisms/keyed_normal.py": "normal numbers of a key, for simulations",
    "privacy/mechanisms/keyed_normal.c": "the same in C",
    "privacy/mechanisms/lattice.py": "clipped vectors as integers of bounded norm",
    "privacy/mechanisms/discrete_gaussian.py": "exact noise",
    "privacy/mechanisms/distributed.py": "distributed: shares of noise on integers modulo 2^b; what is charged",
    "privacy/mechanisms/integer_coding.py": "bits, scale, rotation, wrap-around",
    "privacy/accounting/accountant.py": "events to epsilon; calibration",
    "privacy/accounting/events.py": "events as text, in words, reduced for an accountant",
    "privacy/accounting/library_events.py": "what accountants are told of dp-accounting's events",
    "privacy/accounting/pld.py": "privacy loss distributions",
    "privacy/accounting/rdp.py": "Rényi divergences",
    "privacy/accounting/gaussian.py": "the Gaussian mechanism in closed form",
    "privacy/accounting/risk.py": "from delta(epsilon) to mu, the trade-off curve and an attacker's advantage",
    "privacy/accounting/skellam.py": "the Skellam mechanism",
    "privacy/accounting/sampling.py": "what samplers must state; several queries of one batch",
    "privacy/ledger/ledger.py": "charges before anything is computed",
    "privacy/ledger/sqlite.py": "durable, append-only; heads that others keep",
    "privacy/ledger/chain.py": "rows chained by hash",
    "privacy/ledger/budget.py": "who can still afford a round",
    "privacy/ledger/statement.py": "what was spent, replayed",
    "privacy/ledger/earlier_events.py": "charges of earlier versions, put right",
    "sampling/cohorts.py": "cohorts and batches are drawn with the chances that were stated; participations limited",
    "core/rng.py": "streams that depend on what they are for",
    "rounds/round.py": "settle, draw, charge, collect, release, learn: in this order, whoever collects",
    "rounds/loop.py": "the collector, the noise and the draws of a simulation",
    "rounds/preflight.py": "queries counted before a plan is made; whether data reach an upload by other ways",
    "simulation/client_program.py": "which gradient and which guard a client program is given",
    "simulation/totals.py": "messages become sums by level",
    "simulation/isolation.py": "a recorded program keeps clients apart",
    "federation/protocol/client.py": "a member checks, charges, computes, answers once",
    "federation/protocol/client_store.py": "what a member keeps and owes",
    "federation/protocol/server.py": "collector, noise and draws of a federation; which turns were charged, released",
    "federation/protocol/collect.py": "what the server takes from a message",
    "federation/protocol/heads.py": "ledgers that went back are found",
    "federation/protocol/terms.py": "terms are read without looking at rows",
    "federation/service/experiment.py": "what a server may set for its members",
    "federation/flower/session.py": "what follows from the terms is kept by their text, in memory alone",
    "federation/service/roster.py": "members pinned by their keys",
}
"""By file below src/tacit. Under distributed plans all of `secagg/` is trusted, too."""
_BETWEEN: Final = re.compile(r"(<!-- trusted base -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def lines(name: str) -> int:
    return len((SOURCE / name).read_text().splitlines())


def table() -> str:
    rows = [f"| `{name}` | {lines(name)} | {what} |" for name, what in TRUSTED.items()]
    protocol = sum(len(file.read_text().splitlines()) for file in (SOURCE / "secagg").glob("*.py"))
    rows.append(f"| `secagg/` | {protocol} | secure aggregation: the server learns sums alone (distributed plans) |")
    total = sum(map(lines, TRUSTED)) + protocol
    return "\n".join([*rows, f"| all of it | {total:,} | |"])


def main() -> None:
    head = "| file | lines | what must be right |\n|---|--:|---|\n"
    text = PAGE.read_text().replace(head, "")
    PAGE.write_text(_BETWEEN.sub(lambda found: f"{found[1]}\n{head}{table()}\n\n{found[3]}", text))


if __name__ == "__main__":
    main()
