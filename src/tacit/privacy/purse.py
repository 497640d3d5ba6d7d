"""Budgets: who can still afford a round. Checked before anything is broadcast, charged before it is released."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from tacit.privacy.account import most
from tacit.privacy.ledger import Charge, Ledger
from tacit.privacy.plan import Account, Plan

_EVER = 2**31


class Purse:
    """The accounts of a plan, as the ledger tells them up to (not including) round `start`.

    Rounds from `start` on are not counted even if the ledger has them: a resumed run repeats them with the same
    noise, so they are charged once, and the same clients are asked as the first time.
    """

    def __init__(self, plan: Plan, ledger: Ledger, start: int = 0) -> None:
        self._plan, self._ledger = plan, ledger
        self._spent: dict[str, Counter] = {}
        for entry in ledger.entries():
            if entry.round < start:
                self._spent.setdefault(entry.scope, Counter())[entry.event] += entry.count
        self._levels = {account.scope: self._left(account) for account in plan.levels}
        accounts = (plan.client(k) for k in range(len(plan.setting.ids)))
        self._clients = np.array([_EVER if a is None else self._left(a) for a in accounts])
        self._position = {f"client:{name}": k for k, name in enumerate(plan.setting.ids)}
        self._register([*plan.levels])

    def eligible(self) -> np.ndarray:
        """Clients that may be asked: those of a level with weight, whose own account has a round left."""
        return self._plan.asked & (self._clients > 0)

    def exhausted(self) -> str | None:
        """Why no further round may happen, or None."""
        for scope, left in self._levels.items():
            if left < 1:
                return f"the budget of {scope} is used up"
        if not self.eligible().any():
            return "every client has used up its budget"
        return None

    def charge(self, round: int, accounts: Sequence[Account]) -> None:
        """Durable when it returns: only then may anything computed from private data leave."""
        self._register(accounts)
        self._ledger.charge(round, [Charge(a.scope, a.unit, a.relation, a.event, a.count) for a in accounts])
        for account in accounts:
            if account.scope in self._levels:
                self._levels[account.scope] -= 1
            else:
                self._clients[self._position[account.scope]] -= 1

    def _register(self, accounts: Sequence[Account]) -> None:
        accountant = self._plan.setting.accountant
        for a in accounts:
            self._ledger.budget(a.scope, a.unit, a.relation, a.epsilon, a.delta, accountant)

    def _left(self, account: Account) -> int:
        """How many more rounds the account can pay for."""
        if account.epsilon is None:
            return _EVER
        spent = self._spent.get(account.scope, Counter())
        events = most(
            account.event,
            spent,
            account.epsilon,
            account.delta,
            account.relation,
            self._plan.setting.accountant,
            ceiling=self._plan.setting.rounds * account.count,
        )
        return events // account.count
