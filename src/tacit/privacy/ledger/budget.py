"""Budgets: who can still afford a round. Checked before anything is broadcast, charged before it is released.

A client may change its level between rounds. The change is written to the ledger first, and the next draw uses it. The
client keeps its account (`membership.py`); its limit is that of the level it is at now, and it is no longer asked
once the next round would take the account past it. Whoever is not asked is not in the level's sum, so divisors and
weights count the asked members only: a public number, because it follows from choices, changes and events, never from
data.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import largest_count
from tacit.privacy.ledger.earlier_events import refuse_to_go_on
from tacit.privacy.ledger.ledger import Budget, Charge, Ledger
from tacit.privacy.membership import Change, LevelHistory, LevelPeriods, Rows, accounts
from tacit.privacy.plan import Account, Plan

_EVER = 2**31


class BudgetTracker:
    """The accounts of a plan, as the ledger tells them up to (not including) round `start`.

    Rounds from `start` on are not counted even if the ledger has them: a resumed run repeats them with the same
    noise, so they are charged once, and the same clients are asked as the first time, at the same levels.
    `plan` is that of the next draw; the one given is that of the start, before anybody changed. Accounts are those of
    the whole plan, whose first rounds may ask, and charge, fewer levels.
    """

    def __init__(self, plan: Plan, ledger: Ledger, start: int = 0, changes: Iterable[Change] = ()) -> None:
        self.plan, self._whole, self._ledger, self._changes = plan, plan, ledger, tuple(changes)
        self._epochs: int | None = getattr(plan.setting.batches, "epochs", None)
        if plan.record is not None:
            refuse_to_go_on(ledger, self._epochs)
        self._members = LevelHistory(plan.setting.choices, plan.setting.ids, ledger.level_periods())
        self._settled = self._members, start
        self._movers = np.zeros(len(plan.setting.ids), bool)
        self._left = self._at_first(start)
        self._position = {f"client:{name}": k for k, name in enumerate(plan.setting.ids)}
        self._register([*plan.levels])
        if self._members.begun(start).any():
            self._adopt(start, self._members.periods)

    def eligible(self) -> np.ndarray:
        """Clients that may be asked: those of a level with weight, whose own account has a round left."""
        return self.plan.eligible & (self._left > 0)

    def exhausted(self) -> str | None:
        """Why no further round may happen, or None. Somebody who changed its level stops nobody but itself."""
        for account in self._whole.levels:
            if (self._left[self._at(account) & ~self._movers] < 1).any():
                return f"the budget of {account.scope} is used up"
        if self.eligible().any():
            return None
        able = self.plan.setting.asked
        if self._movers.any() and (self._left[slice(None) if able is None else able] > 0).any():
            return "nobody is left to ask: the clients that could pay are at levels of weight 0"
        return "every client has used up its budget"

    def change(self, clients: Iterable[str], level: str, round: int) -> None:
        """Moves clients to a level, at the next draw when `round` rounds are done. Public and durable when it returns.

        A round that was charged before an interruption has been drawn: the change comes after it.
        """
        round = max(round, self._ledger.rounds() + 1, self._members.last)
        rounds = self.plan.setting.rounds
        if round >= rounds:
            raise TacitError(f"a change to level '{level}' after {round} of {rounds} rounds: no draw is left to use it")
        rows = self._members.changing(clients, level, round)
        self._whole.moved(*self._members.after(rows).at(round))  # refuses what this plan cannot do
        self._write(rows)

    def settle(self, round: int) -> Plan:
        """The plan of the next draw: with the changes that are due, and without who changed and cannot pay for it."""
        self._write(self._due(round))
        known, last = self._settled
        if known is not self._members or (round != last and round in self._members.rounds):
            self._adopt(round, self._members.beginning(round))
        spent = self._movers & self.plan.eligible & (self._left < 1)
        if spent.any():
            names = [name for name, out in zip(self.plan.setting.ids, spent, strict=True) if out]
            self._write(self._members.dismissing(names, round))
            self._adopt(round, {})
        self.plan = self._whole.at(round)
        return self.plan

    def charge(self, round: int, accounts: Sequence[Account]) -> None:
        """Durable when it returns: only then may anything computed from private data leave."""
        self._register(accounts)
        self._ledger.charge(round, [Charge(a.scope, a.unit, a.relation, a.event, a.count) for a in accounts])
        for account in accounts:
            if account.epsilon is None:
                continue
            place = self._position.get(account.scope)
            self._left[self._at(account) & self.plan.eligible if place is None else place] -= 1

    def _due(self, round: int) -> Rows:
        """The changes that were planned for this round. A round that is repeated has them already, or never will."""
        rows = self._members.planned(self._changes, round)
        if not rows or round > self._ledger.rounds():
            return rows
        late = [client for client in rows if self._members.stay(client, round).round != round]
        if late:
            raise TacitError(
                f"client '{late[0]}' is to change its level after {round} rounds, but the next one was drawn already: "
                "a change cannot lie in the past"
            )
        return {}

    def _write(self, rows: Rows) -> None:
        if rows:
            self._ledger.move(rows)
            self._members = self._members.after(rows)

    def _adopt(self, round: int, moved: Mapping[str, LevelPeriods]) -> None:
        """Takes on the levels of a round; the accounts of `moved` are reckoned anew, the others go on."""
        self._settled = self._members, round
        self._whole = self._whole.moved(*self._members.at(round))
        self.plan = self._whole.at(round)
        self._movers = self._members.begun(round)
        more = self.plan.setting.rounds - round
        for client, spent in accounts(self._ledger, moved, round, self._epochs).items():
            place = self._members.position(client)
            self._left[place] = self._rounds_left(self._whole.of(place), spent, more)

    def _at(self, account: Account) -> np.ndarray:
        """The members of a level, by its account."""
        choices = self.plan.setting.choices
        return choices.level == choices.menu.index(account.scope.removeprefix("level:"))

    def _at_first(self, start: int) -> np.ndarray:
        """Rounds left to each client if nobody had changed."""
        spent: dict[str, Counter[Any]] = {}
        for entry in self._ledger.entries():
            if entry.round < start:
                spent.setdefault(entry.scope, Counter())[entry.event] += entry.count
        nothing, rounds = Counter[Any](), self.plan.setting.rounds
        left = np.full(len(self.plan.setting.ids), _EVER, dtype=np.int64)
        for account in self._whole.levels:
            left[self._at(account)] = self._rounds_left(account, spent.get(account.scope, nothing), rounds)
        for k in range(len(left)):
            if (account := self._whole.client(k)) is not None:
                left[k] = self._rounds_left(account, spent.get(account.scope, nothing), rounds)
        return left

    def _register(self, accounts: Sequence[Account]) -> None:
        """States promises. That to a client which changed its level stands in its stays."""
        accountant = self.plan.setting.accountant
        changed = {f"client:{client}" for client in self._members.periods}
        for a in accounts:
            if not (a.scope in changed and self._ledger.promised(a.scope)):
                place = self._position.get(a.scope)
                note = "" if place is None else Budget.at(self.plan.setting.choices.of(place).name)
                self._ledger.budget(a.scope, a.unit, a.relation, a.epsilon, a.delta, accountant, note)

    def _rounds_left(self, account: Account | None, spent: Counter[Any], rounds: int) -> int:
        """How many more rounds the account can pay for, of so many that may come."""
        if account is None or account.epsilon is None:
            return _EVER
        events = largest_count(
            account.event,
            spent,
            account.epsilon,
            account.delta,
            account.relation,
            self.plan.setting.accountant,
            ceiling=rounds * account.count,
        )
        return events // account.count
