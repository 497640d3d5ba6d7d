"""Epsilon by level and round, replayed from the ledger; where clients have accounts of their own, the worst of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tacit.privacy.account import Accountant, Relation, answer
from tacit.privacy.ledger import Ledger
from tacit.privacy.plan import Account, Plan

History = frozenset[tuple[Any, int]]
Spent = dict[str, float]
"""Epsilon by the accountant that gave it, the plan's own first; RDP always stands beside PLD."""


@dataclass(frozen=True, eq=False)
class Spending:
    """What each level has spent. Levels without an account (opted out, nothing uploaded) have no entry."""

    plan: Plan
    ledger: Ledger
    uploads: bool = True
    _level: Mapping[str, int] = field(init=False)
    _accounts: Mapping[int, Account] = field(init=False)

    def __post_init__(self) -> None:
        choices, level, accounts = self.plan.setting.choices, {}, {}
        if self.uploads:
            owned = [(choices.menu.index(a.scope.removeprefix("level:")), a) for a in self.plan.levels]
            owned += [(j, self.plan.client(k)) for k, j in enumerate(choices.level.tolist())]
            for j, account in owned:
                if account is not None:
                    level[account.scope] = j
                    accounts.setdefault(j, account)
        object.__setattr__(self, "_level", level)
        object.__setattr__(self, "_accounts", accounts)

    def at(self, round: int) -> dict[str, Spent]:
        """By name of the level, after `round` rounds. Charges of later rounds are left out, even if they are there."""
        histories = self._histories(round)
        names = self.plan.setting.choices.menu.names
        return {
            names[j]: self._worst(histories.get(j, []), account.delta, account.relation)
            for j, account in sorted(self._accounts.items())
        }

    def _histories(self, round: int) -> dict[int, list[History]]:
        spent: dict[str, Counter[Any]] = {}
        for entry in self.ledger.entries():
            if entry.round < round and entry.scope in self._level:
                spent.setdefault(entry.scope, Counter())[entry.event] += entry.count
        found: dict[int, list[History]] = {}
        for scope, events in spent.items():
            found.setdefault(self._level[scope], []).append(frozenset(events.items()))
        return {level: list(undominated(histories)) for level, histories in found.items()}

    def _worst(self, histories: list[History], delta: float, relation: Relation) -> Spent:
        if not histories:
            return {self.plan.setting.accountant: 0.0} | {"rdp": 0.0}
        bounds = {history: answer(dict(history), delta, relation, "rdp").epsilon for history in histories}
        return self._tightest(bounds, delta, relation) | {"rdp": max(bounds.values())}

    def _tightest(self, bounds: Mapping[History, float], delta: float, relation: Relation) -> Spent:
        """The largest epsilon by the plan's accountant. PLD is at most RDP, so most histories need no second look."""
        asked: Accountant = self.plan.setting.accountant
        if asked == "rdp":
            return {}
        worst, given = 0.0, {"pld"}
        for history in sorted(bounds, key=lambda each: bounds[each], reverse=True):
            if bounds[history] <= worst:
                break
            found = answer(dict(history), delta, relation, asked)
            worst = max(worst, found.epsilon)
            given.add(found.accountant)
        return {} if "rdp" in given else {"pld": worst}


def undominated(histories: Iterable[History]) -> Iterable[History]:
    """Without those that hold the same single event less often: they cannot cost more."""
    most: dict[Any, int] = {}
    mixed: set[History] = set()
    for history in histories:
        if len(history) == 1:
            ((event, count),) = history
            most[event] = max(count, most.get(event, 0))
        else:
            mixed.add(history)
    return [*(frozenset({(event, count)}) for event, count in most.items()), *mixed]
