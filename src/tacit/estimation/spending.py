"""What a table of clients has been asked so far: a ledger beside it. Asking twice costs twice.

Every question draws new messages, and whoever sees both answers knows more than from one. So each is charged before
its estimates are written, with fresh charges for fresh messages, and what the clients have spent in all is told.
Questions of one delta are composed by the accountant; those of different deltas add up, epsilon and delta alike.
"""

import math
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import TacitError
from tacit.estimation.messages import Message
from tacit.privacy.ledger.ledger import Charge, Ledger, Line
from tacit.privacy.ledger.statement import shown, statement
from tacit.report.integrity import open_ledger

UNIT, RELATION = "client", "replace"
SCOPE = "each client"


def beside(table: Path) -> Path:
    """Where the ledger of a table lies unless another place is given."""
    real = table.resolve()  # a link to a table asks the same clients
    return real.with_name(f"{real.name}.ledger.sqlite")


@dataclass(frozen=True)
class Questions:
    """All that was asked of the clients of one table. `budget`: what they may spend in all; None: no limit."""

    path: Path
    budget: float | None = None

    def check(self, message: Message) -> None:
        """Refuses a question that would take the clients past the budget, and a ledger that is not of questions;
        nothing is charged."""
        if self.path.exists():
            with open_ledger(self.path) as kept:
                _require_questions(self.path, kept)
        if self.budget is None:
            return
        with Ledger.open(":memory:") as trial:
            if self.path.exists():
                with open_ledger(self.path) as kept:
                    for line, history in ((kept.budgets()[scope], h) for scope, h in kept.histories().items()):
                        trial.budget(line.scope, UNIT, RELATION, None, line.delta)
                        trial.charge(0, [Charge(line.scope, UNIT, RELATION, e, n) for e, n in history.items()])
            charge(trial, message)
            epsilon, _ = total(statement(trial))
        if epsilon > self.budget * (1 + 1e-9):
            raise TacitError(
                f"this question would take the clients to epsilon {shown(epsilon)}, past the budget of {self.budget:g} "
                f"({self.path} has what was asked before): nothing was asked"
            )

    def pay(self, message: Message) -> None:
        """Durable when it returns: only then may anything made of the messages be written."""
        self.check(message)
        with Ledger.open(self.path) as ledger:
            ledger.check()
            charge(ledger, message)

    def told(self) -> str:
        """What the clients have spent in all, replayed from the ledger."""
        with open_ledger(self.path) as ledger:
            lines, times = statement(ledger), ledger.rounds() + 1
        epsilon, delta = total(lines)
        terms = f"client-level, {RELATION}, {f'delta {delta:g}' if delta else 'pure'}"
        limit = "" if self.budget is None else f", of a budget of {self.budget:g}"
        return f"Asked {times:,} time{'s' * (times > 1)} so far: epsilon {shown(epsilon)} in all{limit} ({terms})"


def _require_questions(path: Path, ledger: Ledger) -> None:
    strange = next((scope for scope in ledger.budgets() if not scope.startswith(SCOPE)), None)
    if strange is not None:
        raise TacitError(f"{path} is the ledger of a run (it has '{strange}'), not of questions: give another --ledger")


def charge(ledger: Ledger, message: Message) -> None:
    """One message of every client."""
    scope = f"{SCOPE}, delta {message.delta:g}" if message.delta else f"{SCOPE}, pure"
    ledger.budget(scope, UNIT, RELATION, None, message.delta)
    asked = Charge(scope, UNIT, RELATION, message.event())
    ledger.charge(ledger.rounds() + 1, [asked], nonce=secrets.token_hex(8))  # new messages, whatever the seed


def total(lines: Sequence[Line]) -> tuple[float, float]:
    """Epsilon and delta of all scopes together, by basic composition."""
    return math.fsum(line.epsilon for line in lines), math.fsum(line.delta or 0.0 for line in lines)
