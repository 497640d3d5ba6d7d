"""What each level of a run has spent: epsilon, replayed from the ledger. Every epsilon of a report comes from here.

Nothing else keeps an epsilon: metrics hold what was measured, facts what was promised. Both are compared with the
ledger, and where they disagree nothing is shown: a wrong epsilon is worse than none.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.errors import StorageError
from tacit.privacy.accounting.accountant import Accountant, Relation, answer, profile
from tacit.privacy.accounting.risk import Risk, risk
from tacit.privacy.ledger.earlier_events import put_right
from tacit.privacy.ledger.ledger import Budget, Entry, Ledger
from tacit.privacy.membership import LevelPeriods, promise, replayed
from tacit.report.facts import Facts, Promise

History = frozenset[tuple[Any, int]]
Spent = dict[str, float]
"""Epsilon by the accountant that gave it, the plan's own first; RDP always stands beside PLD."""
_POINTS = 24  # of a line over rounds


@dataclass(frozen=True, eq=False)
class Spending:
    """The charges of a run, and to whom they count. Levels without an account (opted out) have no entry.

    A client counts at the level it is at now, with all that it was charged, at whichever level; where clients have
    accounts of their own, a level's figure is that of the client that spent most.
    """

    facts: Facts
    budgets: Mapping[str, Budget]
    periods: Mapping[str, LevelPeriods]
    entries: Sequence[Entry]  # by round

    @classmethod
    def read(cls, ledger: Ledger, facts: Facts, epochs: int | None = None) -> "Spending":
        """Refuses a ledger that was changed, or does not keep what the facts promise. `epochs`: as in `statement`."""
        ledger.check()
        entries = tuple(put_right(entry, epochs) for entry in ledger.entries())
        spending = cls(facts, ledger.budgets(), ledger.level_periods(), entries)
        spending._check_promises()
        spending._check_rounds()
        return spending

    @cached_property
    def rounds(self) -> int:
        """Rounds that were charged, up to the last; a round is charged before anything of it is released."""
        return 1 + max((entry.round for entry in self.entries), default=-1)

    @cached_property
    def now(self) -> dict[str, Spent]:
        """By name of the level: all that was charged."""
        return self.after(self.rounds)

    def after(self, rounds: int) -> dict[str, Spent]:
        """As `now`, of the first `rounds` rounds."""
        histories = self._histories(rounds)
        return {
            promise.level: self._worst(list(undominated(histories[promise.level])), promise)
            for promise in self.facts.promises
            if promise.level in histories and promise.delta is not None
        }

    def costliest(self, level: str) -> dict[Any, int]:
        """The events behind the level's figure in `now`: those of the client that spent most; none for no account."""
        promise, bounds = self._promises[level], {}
        for history in undominated(self._histories(self.rounds).get(level, ())):
            bounds[history] = answer(dict(history), promise.delta or 0.5, self._relation(promise), "rdp").epsilon
        accountant: Accountant = self.facts.accountant  # type: ignore[assignment]
        best: tuple[float, History] = (-1.0, frozenset())
        for history in sorted(bounds, key=lambda each: bounds[each], reverse=True):
            if bounds[history] <= best[0]:
                break
            cost = answer(dict(history), promise.delta or 0.5, self._relation(promise), accountant).epsilon
            best = max(best, (cost, history), key=lambda each: each[0])
        return dict(best[1])

    def risk(self, level: str) -> Risk | None:
        """What an attacker gets of a member of the level, at most; None for a level without an account."""
        if level not in self.now:
            return None
        accountant: Accountant = next(iter(self.now[level]))  # type: ignore[assignment]
        return risk(profile(self.costliest(level), self._relation(self._promises[level]), accountant))

    @cached_property
    def over_rounds(self) -> list[tuple[int, dict[str, Spent]]]:
        """`after` some rounds, the last of them included: as many as a chart needs."""
        points = min(self.rounds, _POINTS)
        return [(at, self.after(at)) for at in (round(self.rounds * k / points) for k in range(1, points + 1))]

    @property
    def every_round(self) -> bool:
        """Whether every round has a charge: that of a level. Clients in their own name pay when they take part."""
        return bool(self._level_scopes) and not self.periods

    @cached_property
    def _level_scopes(self) -> dict[str, set[int]]:
        """The rounds in which each level was charged."""
        scopes: dict[str, set[int]] = {}
        for entry in self.entries:
            if entry.scope.startswith("level:"):
                scopes.setdefault(entry.scope, set()).add(entry.round)
        return scopes

    # to whom charges count

    def _histories(self, rounds: int) -> dict[str, set[History]]:
        """By level: the histories of those that are there now. Those that stayed have that of their scope."""
        spent: dict[str, Counter[Any]] = {}
        for entry in self.entries:
            if entry.round < rounds:
                spent.setdefault(entry.scope, Counter())[entry.event] += entry.count
        histories: dict[str, set[History]] = {level: set() for level in self._held()}
        for scope, events in spent.items():
            for level in self._levels_of(scope):
                if level in histories and not self._left(scope, level):
                    histories[level].add(frozenset(events.items()))
        for client, events in replayed(self._spent, self.periods, rounds).items():
            if events:
                histories.setdefault(self.periods[client][-1].level, set()).add(frozenset(events.items()))
        return histories

    def _spent(self, scope: str, since: int, until: int | None) -> Counter[Any]:
        counts: Counter[Any] = Counter()
        for entry in self._by_scope.get(scope, ()):
            if since <= entry.round < (self.rounds if until is None else until):
                counts[entry.event] += entry.count
        return counts

    @cached_property
    def _by_scope(self) -> dict[str, list[Entry]]:
        entries: dict[str, list[Entry]] = {}
        for entry in self.entries:
            entries.setdefault(entry.scope, []).append(entry)
        return entries

    def _held(self) -> set[str]:
        """Levels of whose clients some have an account, be it untouched."""
        return {promise.level for promise in self.facts.promises if promise.standing == "protected" and promise.clients}

    def _left(self, scope: str, level: str) -> bool:
        """Whether nobody is left to whom the scope's charges count: all who are there, or the client, have moved."""
        kind, _, name = scope.partition(":")
        if kind == "client":
            return name in self.periods
        moved = sum(periods[-1].level == level for periods in self.periods.values())
        return bool(moved) and self._promises[level].clients <= moved

    def _levels_of(self, scope: str) -> list[str]:
        """The level whose epsilon a scope's charges are; of several that promise the same, where it is not said, all.

        None for what is charged to be known beside it.
        """
        kind, _, name = scope.partition(":")
        if kind not in ("level", "client"):
            return []
        line = self.budgets.get(scope)
        stated = name if kind == "level" else line and line.level
        if stated:
            return [stated]
        alike = [p.level for p in self.facts.promises if line and (p.budget, p.delta) == (line.epsilon, line.delta)]
        if not alike:
            raise _disagree(f"the ledger has charges of {scope}, and no level that it could be at")
        return alike

    @cached_property
    def _promises(self) -> dict[str, Promise]:
        return {promise.level: promise for promise in self.facts.promises}

    # what must agree

    def _check_promises(self) -> None:
        charged = {entry.scope for entry in self.entries}
        for scope in sorted({*self.budgets, *charged}):
            for level in self._levels_of(scope):
                promised = self._promises.get(level)
                if promised is None:
                    raise _disagree(f"the ledger has charges of level '{level}', and the facts do not name it")
                if scope in charged:
                    self._check_standing(promised)
                line = self.budgets.get(scope)
                if line is not None and not (scope.startswith("client:") and scope[7:] in self.periods):
                    self._check_terms(promised, line)
        for periods in self.periods.values():
            last, promised = promise(periods), self._promises.get(promise(periods).level)
            if promised is None or (promised.budget, promised.delta) != (last.epsilon, last.delta):
                raise _disagree(f"the ledger has clients that changed to '{last.level}', with another promise")

    def _check_standing(self, promised: Promise) -> None:
        if self.periods:  # levels may have emptied since
            return
        if promised.standing != "protected" or not promised.clients:
            stated = f"{promised.clients} clients, {promised.standing}"
            raise _disagree(f"the ledger has charges of level '{promised.level}', of which the facts say: {stated}")

    def _check_terms(self, promised: Promise, line: Budget) -> None:
        pairs = (
            ("epsilon", promised.budget, line.epsilon),
            ("delta", promised.delta, line.delta),
            ("unit", self.facts.unit, line.unit),
            ("accountant", self.facts.accountant, line.accountant),
            ("relation", promised.relation or line.relation, line.relation),
        )
        for name, stated, recorded in pairs:
            if stated != recorded:
                raise _disagree(
                    f"the {name} of level '{promised.level}' is {stated} in the facts and {recorded} in the ledger"
                )

    def _check_rounds(self) -> None:
        for scope, rounds in self._level_scopes.items():
            if self.every_round and len(rounds) < self.rounds:
                missing = min(set(range(self.rounds)) - rounds)
                raise _disagree(f"the ledger has no charge of {scope} for round {missing + 1}, but for later ones")

    # what it costs

    def _worst(self, histories: list[History], promised: Promise) -> Spent:
        accountant: Accountant = self.facts.accountant  # type: ignore[assignment]
        if not histories:
            return {accountant: 0.0} | {"rdp": 0.0}
        delta, relation = promised.delta or 0.0, self._relation(promised)
        bounds = {history: answer(dict(history), delta, relation, "rdp").epsilon for history in histories}
        return _tightest(bounds, delta, relation, accountant) | {"rdp": max(bounds.values())}

    def _relation(self, promised: Promise) -> Relation:
        return promised.relation or self.entries[0].relation  # type: ignore[return-value]


def _tightest(bounds: Mapping[History, float], delta: float, relation: Relation, accountant: Accountant) -> Spent:
    """The largest epsilon by the plan's accountant. PLD is at most RDP, so most histories need no second look."""
    if accountant == "rdp":
        return {}
    worst, accountants = 0.0, {"pld"}
    for history in sorted(bounds, key=lambda each: bounds[each], reverse=True):
        if bounds[history] <= worst:
            break
        answered = answer(dict(history), delta, relation, accountant)
        worst = max(worst, answered.epsilon)
        accountants.add(answered.accountant)
    return {} if "rdp" in accountants else {"pld": worst}


def _disagree(problem: str) -> StorageError:
    return StorageError(f"{problem}: restore the run's files from a backup; without them its epsilon cannot be told")


def undominated(histories: Iterable[History]) -> Iterable[History]:
    """Without those that hold the same single event less often: they cannot cost more."""
    largest: dict[Any, int] = {}
    mixed: set[History] = set()
    for history in histories:
        if len(history) == 1:
            ((event, count),) = history
            largest[event] = max(count, largest.get(event, 0))
        else:
            mixed.add(history)
    return [*(frozenset({(event, count)}) for event, count in largest.items()), *mixed]
