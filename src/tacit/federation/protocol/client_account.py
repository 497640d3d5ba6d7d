"""A client's own account of a run: which turns it owes for, and whether its own budget still has this one in it.

Turns for evaluations are paid for like the others, by the evaluation's own plan; they are booked apart, so that a turn
paid for as one is not taken for the other.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.messages import Ask
from tacit.privacy.accounting.accountant import Accountant, most
from tacit.privacy.ledger import earlier_events
from tacit.privacy.ledger.ledger import Batch, Charge, Ledger
from tacit.privacy.plan import Account, Plan

Answering = tuple[str, int]
"""Run and turn."""


class PendingCharge(NamedTuple):
    """One account: turns that have happened and are not paid for, and this one if it is new."""

    account: Account
    book: str  # the run, or the run's evaluations
    past: tuple[int, ...]
    now: int | None


def accounts_of(plan: Plan, place: int) -> list[tuple[Account, bool]]:
    """The accounts that concern a client, and whether each is charged every turn or when the client is asked."""
    name, level = plan.setting.ids[place], plan.setting.choices.of(place).name
    every, own = {f"level:{level}", f"released:{level}"}, {f"client:{name}", f"server:{name}"}
    accounts = plan.accounts(np.array([place]))
    return [(account, account.scope in every) for account in accounts if account.scope in every | own]


def owed(plan: Plan, place: int, ask: Ask, custody: ClientStore, now: bool) -> list[PendingCharge]:
    """A level is charged for every turn, drawn or not; a client for those that it was asked in, says the server."""
    due = _owed(plan, place, ask, custody, ask.run, now and not ask.evaluation)
    if plan.evaluation is not None:
        book = f"{ask.run} evaluations"  # no name of a run: it has a blank
        due += _owed(plan.evaluation.plan, place, ask, custody, book, now and ask.evaluation)
    return due


def _owed(plan: Plan, place: int, ask: Ask, custody: ClientStore, book: str, now: bool) -> list[PendingCharge]:
    due, training = [], book == ask.run
    for account, always in accounts_of(plan, place):
        told = set(range(ask.turn + 1)) if always else {turn for turn in ask.charged if turn <= ask.turn}
        turns = told - set(ask.evaluated) if training else told & set(ask.evaluated)
        new = {ask.turn} if now else set()
        missing = (turns | new) - custody.paid(book, account.scope)
        past = tuple(sorted(missing - new))
        due.append(PendingCharge(account, book, past, ask.turn if missing & new else None))
    return due


class Paid(NamedTuple):
    """Whether the turn could be paid for, and whether it was answered for the first time."""

    affordable: bool
    new: bool = False


def pay(
    ledger: Ledger, custody: ClientStore, accountant: Accountant, due: Sequence[PendingCharge], answer: Answering | None
) -> Paid:
    """Charges the past in any case, and this turn if every budget allows it: with it, in one transaction, that the
    turn is answered. Durable when it returns; of two processes at once one is told that the answer is new."""
    for account, *_ in due:
        ledger.budget(account.scope, account.unit, account.relation, account.epsilon, account.delta, accountant)
    _charge(ledger, custody, [(each, turn) for each in due for turn in each.past])
    if not all(each.now is None or _affords(ledger, each.account, accountant) for each in due):
        return Paid(False)
    return Paid(True, _charge(ledger, custody, [(each, each.now) for each in due if each.now is not None], answer))


def _affords(ledger: Ledger, account: Account, accountant: Accountant) -> bool:
    if account.epsilon is None:
        return True
    spent: Counter = earlier_events.spent(ledger, account.scope)  # of all runs, whoever charged them
    terms = account.epsilon, account.delta, account.relation, accountant
    return most(account.event, spent, *terms, ceiling=account.count) >= account.count


def _charge(
    ledger: Ledger, custody: ClientStore, owing: Sequence[tuple[PendingCharge, int]], answer: Answering | None = None
) -> bool:
    """In the ledger first. A crash in between repeats the same charges, which count once."""
    if not owing and answer is None:
        return False
    batches = [
        Batch(turn, [Charge(due.account.scope, due.account.unit, due.account.relation, due.account.event,
                            due.account.count)], nonce=due.book)
        for due, turn in sorted(owing, key=lambda item: item[1])
    ]  # fmt: skip
    new = ledger.charge_together(batches, answer)
    for due, turn in owing:
        custody.note_paid(due.book, due.account.scope, [turn])
    return new
