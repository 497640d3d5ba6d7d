"""Epsilon by level and round, replayed from the ledger; where clients have accounts of their own, the worst of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.privacy.account import Accountant, Relation, answer
from tacit.privacy.ledger import Ledger
from tacit.privacy.levels import Choices
from tacit.privacy.plan import Plan
from tacit.privacy.stays import accounts

History = frozenset[tuple[Any, int]]
Spent = dict[str, float]
"""Epsilon by the accountant that gave it, the plan's own first; RDP always stands beside PLD."""


@dataclass(frozen=True, eq=False)
class Spending:
    """What each level has spent. Levels without an account (opted out, nothing uploaded) have no entry.

    A client counts at the level it is at now, with all that it was charged, at whichever level.
    """

    plan: Plan  # of the start
    ledger: Ledger
    uploads: bool = True

    def at(self, round: int, now: Plan | None = None) -> dict[str, Spent]:
        """By name of the level, after `round` rounds. Charges of later rounds are left out, even if they are there.

        `now`: the plan of the last draw, where clients have changed their levels.
        """
        choices = (now or self.plan).setting.choices
        names, levels = choices.menu.names, choices.menu.levels
        return {
            names[j]: self._worst(list(undominated(histories)), levels[j].delta or 0.0, self.plan.relation)
            for j, histories in sorted(self._histories(round, choices).items())
            if levels[j].private
        }

    def _histories(self, round: int, choices: Choices) -> dict[int, set[History]]:
        """By level: the histories of those that are there now. Those that stayed have that of their scope."""
        if not self.uploads:
            return {}
        spent: dict[str, Counter[Any]] = {}
        for entry in self.ledger.entries():
            if entry.round < round:
                spent.setdefault(entry.scope, Counter())[entry.event] += entry.count
        moved = accounts(self.ledger, self.ledger.stays(), round)
        level = dict(zip(self.plan.setting.ids, choices.level.tolist(), strict=True))
        found: dict[int, set[History]] = {j: set() for j in self._held({level[k] for k in level if k not in moved})}
        for scope, events in spent.items():
            kind, _, name = scope.partition(":")
            place = choices.menu.names.index(name) if kind == "level" else level.get(name) if kind == "client" else None
            if place in found and name not in moved:
                found[place].add(frozenset(events.items()))
        for name, events in moved.items():
            if events:
                found.setdefault(level[name], set()).add(frozenset(events.items()))
        return found

    def _held(self, levels: set[int]) -> set[int]:
        """Of the levels that somebody stayed at, those whose clients have accounts."""
        names = self.plan.setting.choices.menu.names
        return {j for j in levels if f"level:{names[j]}" in self._scopes or j in self._own}

    @cached_property
    def _scopes(self) -> set[str]:
        return {account.scope for account in self.plan.levels}

    @cached_property
    def _own(self) -> set[int]:
        """Levels at the start whose clients have accounts of their own."""
        level = self.plan.setting.choices.level.tolist()
        return {j for k, j in enumerate(level) if self.plan.client(k) is not None}

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
