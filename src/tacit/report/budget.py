"""What a budget buys, and what was spent: the texts behind `tacit budget` and `tacit ledger`.

Of who changed its level, what that has cost: replayed from the ledger, by distinct history.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import Accountant, Relation, answer, calibrate, profile
from tacit.privacy.accounting.risk import Risk, risk
from tacit.privacy.ledger import earlier_events
from tacit.privacy.ledger.ledger import Line
from tacit.privacy.ledger.statement import shown, statement
from tacit.report.integrity import open_ledger
from tacit.report.run_folder import epochs_in, ledger_in

if TYPE_CHECKING:
    from dp_accounting import DpEvent
from tacit.privacy.ledger.statement import Moved, moved
from tacit.privacy.membership import LevelPeriod, LevelPeriods, once_open

LARGE: Final = 10.0
"""Above this epsilon the guarantee is too weak to rely on; it is allowed, with a warning."""

Figures = Literal["epsilon", "mu", "risk"]

_MANY: Final = 20
_WORST: Final = 10
_COLUMNS: Final = ("account", "epsilon", "accountant", "by RDP", "budget", "rounds", "what")
_QUANTILES: Final = {"least": 0.0, "25%": 0.25, "median": 0.5, "75%": 0.75, "90%": 0.9, "most": 1.0}
_AGAINST: Final = {
    "client": "whoever sees the released models, but not who took part in which round",
    "record": "everybody, the server too; that clients are drawn is not counted in",
}
_NEIGHBOURS: Final = {
    "add/remove": "two sets of {unit}s that differ by one {unit}, there or not; sensitivity: the clip bound C",
    "replace-one": "two sets of {unit}s in which one {unit} is exchanged for another; sensitivity: 2 C",
}


@dataclass(frozen=True)
class Price:
    """Epsilon after so many rounds. `accountant` gave the first figure, RDP the second."""

    rounds: int
    epsilon: float
    accountant: Accountant
    epsilon_rdp: float


@dataclass(frozen=True)
class BudgetReport:
    """Noise and epsilon of a whole run, under both accountants. Prints itself with rich."""

    delta: float
    rate: float
    rounds: int
    unit: str
    relation: Relation
    noise_multiplier: float
    noise_multiplier_rdp: float | None  # what RDP would need for the same epsilon; None if the noise was given
    prices: tuple[Price, ...]  # the last one is the whole run's
    derivation: tuple[tuple[str, str], ...]
    warnings: tuple[str, ...]
    figures: Figures = "epsilon"
    risk: Risk | None = None  # where one of its figures was asked for
    elsewhere: tuple[tuple[float, float], ...] = ()  # delta, and epsilon at it

    @property
    def epsilon(self) -> float:
        return self.prices[-1].epsilon

    @property
    def accountant(self) -> Accountant:
        return self.prices[-1].accountant

    def __rich__(self) -> RenderableType:
        words = Table.grid(padding=(0, 2))
        for name, text in self.derivation:
            words.add_row(Text(name, style="bold"), text)
        warnings = [Text(f"Warning: {text}", style="yellow") for text in self.warnings]
        title = f"epsilon with z = {self.noise_multiplier:#.4g} ({self._terms()})"
        return Group(
            Text(self._headline(), style="bold"),
            words,
            Text(f"\n{title}", "bold"),
            self._table(),
            *(f"at delta {delta:g}: epsilon {shown(epsilon)}" for delta, epsilon in self.elsewhere),
            *([] if self.risk is None else [Text(f"\n{risk_in_words(self.risk, self.figures)}")]),
            *warnings,
        )

    def _terms(self) -> str:
        return f"{self.unit}-level, {self.relation}, delta {self.delta:g}"

    def _headline(self) -> str:
        claim = f"epsilon {shown(self.epsilon)} ({self._terms()}, {self.accountant.upper()})"
        beside = self.noise_multiplier_rdp
        other = "" if beside is None or self.accountant == "rdp" else f"; RDP would need {beside:#.4g}"
        return f"noise multiplier z = {self.noise_multiplier:#.4g} gives {claim}{other}"

    def _table(self) -> Table:
        table = Table("rounds", self.accountant.upper())
        if self.accountant != "rdp":
            table.add_column("RDP, the cross-check")
        for price in self.prices:
            both = [shown(price.epsilon), shown(price.epsilon_rdp)]
            table.add_row(f"{price.rounds:,}", *both[: len(table.columns) - 1])
        return table


def budget(
    *,
    epsilon: float = 3.6,
    delta: float = 1e-4,
    rate: float = 0.05,
    rounds: int = 500,
    noise_multiplier: float | None = None,
    unit: str = "client",
    steps: int = 1,
    queries: int = 1,
    population: int | None = None,
    fixed_size: int | None = None,
    allow_large_delta: bool = False,
    figures: Figures = "epsilon",
    other_deltas: Sequence[float] = (),
) -> BudgetReport:
    """The noise that keeps a run of `rounds` within epsilon, or, given a noise multiplier, the epsilon that it costs.

    `rate` is a Poisson sampler's; `fixed_size` asks for a cohort of that size out of `population` instead. For
    unit "record", `rate` is that of a local step's batch, `steps` the number of such steps in a round and `queries`
    how many private gradients a batch answers: they compose inside its sample. `figures` other than epsilon add what
    an attacker gets; `other_deltas` add what the same run costs there.
    """
    _check(delta, rounds, unit, steps, queries, population, allow_large_delta)
    event_of, relation, rate, drawn = _sampling(rate, population, fixed_size, unit, queries)
    if noise_multiplier is None:
        z, z_rdp = (calibrate(event_of, epsilon, delta, relation, by, rounds * steps) for by in ("pld", "rdp"))
    else:
        z, z_rdp = _checked_noise(noise_multiplier), None
    counts = sorted({n for n in (1, 10, 100) if n < rounds} | {rounds})
    prices = tuple(_price(event_of(z), n, n * steps, delta, relation) for n in counts)
    whole = {event_of(z): rounds * steps}
    return BudgetReport(
        delta=delta,
        rate=rate,
        rounds=rounds,
        unit=unit,
        relation=relation,
        noise_multiplier=z,
        noise_multiplier_rdp=z_rdp,
        prices=prices,
        derivation=_derivation(drawn, rounds, steps, queries, unit, relation, z),
        warnings=_warnings(prices[-1], population),
        figures=figures,
        risk=None if figures == "epsilon" else risk(profile(whole, relation, prices[-1].accountant)),
        elsewhere=tuple((other, answer(whole, other, relation).epsilon) for other in other_deltas),
    )


def _checked_noise(multiplier: float) -> float:
    if not 0 < multiplier < math.inf:
        raise TacitError(f"noise multiplier {multiplier} must be a number above 0")
    return multiplier


def risk_in_words(risk: Risk, figures: Figures = "risk") -> str:
    """mu with its regret; for "risk" also what it means."""
    mu = f"Gaussian differential privacy: mu {shown(risk.mu)}, with a regret of {risk.regret:.2g}."
    return mu if figures == "mu" else f"{mu}\n{risk.words}"


def _check(
    delta: float, rounds: int, unit: str, steps: int, queries: int, population: int | None, allow_large_delta: bool
) -> None:
    if unit not in ("client", "record"):
        raise TacitError(f"unknown unit {unit!r}: choose client or record")
    if rounds < 1 or steps < 1 or queries < 1:
        raise TacitError(f"{rounds} rounds of {steps} steps with {queries} queries each: give at least 1 of each")
    if unit == "client" and steps != 1:
        raise TacitError(f"a client's {steps} local steps are one release: leave steps out, or choose unit record")
    if unit == "client" and queries != 1:
        raise TacitError(f"a client's {queries} queries are one release: leave queries out, or choose unit record")
    if population is not None and population < 1:
        raise TacitError(f"a population of {population} {unit}s: give at least 1")
    if population is not None and delta >= 1 / population and not allow_large_delta:
        raise TacitError(
            f"delta {delta:g} is not below 1/{population}: a mechanism could publish somebody's data whole; "
            f"choose at most {0.1 / population:.1g}, or allow a large delta"
        )


def _sampling(
    rate: float, population: int | None, fixed_size: int | None, unit: str, queries: int
) -> tuple[Callable[[float], "DpEvent"], Relation, float, str]:
    import dp_accounting as dp

    def noise(z: float) -> "DpEvent":
        return dp.GaussianDpEvent(z) if queries == 1 else dp.SelfComposedDpEvent(dp.GaussianDpEvent(z), queries)

    if fixed_size is None:
        if not 0 < rate <= 1:
            raise TacitError(f"rate {rate} must be above 0 and at most 1")
        drawn = f"each {unit} takes part independently with probability q = {rate:g} (Poisson sampling)"
        return lambda z: dp.PoissonSampledDpEvent(rate, noise(z)), "add/remove", rate, drawn
    if population is None or not 1 <= fixed_size <= population:
        raise TacitError(f"a fixed size of {fixed_size} needs a population of at least as many: give population")
    size, total = fixed_size, population
    drawn = f"{size:,} of {total:,} {unit}s without replacement, q = {size / total:g} (only RDP models this)"
    return (
        lambda z: dp.SampledWithoutReplacementDpEvent(total, size, noise(z)),
        "replace-one",
        size / total,
        drawn,
    )


def _price(event: "DpEvent", rounds: int, count: int, delta: float, relation: Relation) -> Price:
    best, rdp = (answer({event: count}, delta, relation, accountant) for accountant in ("pld", "rdp"))
    return Price(rounds, best.epsilon, best.accountant, rdp.epsilon)


def _derivation(
    drawn: str, rounds: int, steps: int, queries: int, unit: str, relation: Relation, z: float
) -> tuple[tuple[str, str], ...]:
    whole = "all data of one client, over the whole run" if unit == "client" else "one record of one client"
    releases = f"{rounds:,} rounds, one noisy sum each"
    if unit == "record":
        each = "a noisy gradient" if queries == 1 else f"{queries:,} noisy gradients of one batch, composed,"
        releases = f"{rounds:,} rounds of {steps:,} steps, {each} each: T = {rounds * steps:,}"
    bound = "C" if relation == "add/remove" else "2 C"
    return (
        ("unit", f"{unit}: what is hidden is {whole}"),
        ("neighbours", f"{relation}: {_NEIGHBOURS[relation].format(unit=unit)}"),
        ("q", drawn),
        ("T", releases),
        ("noise", f"standard deviation z x {bound} on the sum, z = {z:#.4g}; then divided by a public number"),
        ("holds against", _AGAINST[unit]),
    )


def _warnings(price: Price, population: int | None) -> tuple[str, ...]:
    warnings = []
    if price.epsilon > LARGE:
        warnings.append(
            f"epsilon {shown(price.epsilon)} is above {LARGE:g} and promises little: more noise, fewer rounds"
        )
    if population is None:
        warnings.append("delta was not compared with the number of people: give population")
    return tuple(warnings)


@dataclass(frozen=True)
class LedgerReport:
    """What every scope has spent. Figures of different units, relations or deltas stand in different tables."""

    lines: tuple[Line, ...]
    all: bool = False
    note: str = ""  # whose account it is, where a client was asked for

    def groups(self) -> list[list[Line]]:
        """Lines that may stand in one table."""
        return [list(group) for _, group in groupby(sorted(self.lines, key=_comparable), key=_comparable)]

    def __rich__(self) -> RenderableType:
        if not self.lines:
            return Text(self.note or "The ledger is empty: nothing was charged.")
        return Group(
            *([Text(self.note)] if self.note else []),
            *(part for group in self.groups() for part in self._tables(group)),
        )

    def _tables(self, lines: Sequence[Line]) -> list[RenderableType]:
        title = _title(lines)
        if self.all or len(lines) <= _MANY:
            return [Text(f"\n{title}", "bold"), _every(lines)]
        worst = sorted(lines, key=lambda line: -line.epsilon)[:_WORST]
        return [
            Text(f"\n{title}: {len(lines):,} accounts", "bold"),
            _summary(lines),
            Text(f"{title}: the {_WORST} largest", "bold"),
            _every(worst),
        ]


def ledger_table(path: str | Path, all: bool = False, client: str | None = None) -> LedgerReport:
    """The ledger at `path`, replayed: all of it, or one client's account. Many clients are summarised unless `all`.

    `path`: a folder, or the file itself; refused if it was changed (`integrity.py`).
    """
    with open_ledger(Path(path)) as ledger:
        lines = tuple(statement(ledger, epochs_in(ledger_in(Path(path)).parent)))
    if client is None:
        return LedgerReport(lines, all)
    chosen = tuple(line for line in lines if line.scope == f"client:{client}")
    return LedgerReport(chosen, all) if chosen else _at_level(Path(path), client, lines)


def _at_level(path: Path, client: str, lines: Sequence[Line]) -> LedgerReport:
    """The account of the level that a client is at, which it shares; of a run that has evaluated its clients."""
    from tacit.report.run_folder import Folder
    from tacit.report.summary import open_run

    if not (path.is_dir() and Folder(path).clients.is_file()):
        raise TacitError(
            f"client '{client}' has no account of its own in {path}: it has that of its level, see without --client"
        )
    clients: Any = open_run(path).clients
    levels = clients[clients["client"] == client]["level"].tolist()
    if not levels:
        raise TacitError(
            f"there is no client '{client}' among the {len(clients):,} of {path}: `clients.csv` lists them"
        )
    level = levels[0]
    shared = tuple(line for line in lines if line.scope == f"level:{level}")
    account = "its account is the level's" if shared else "which was promised nothing, and no charge is kept for it"
    return LedgerReport(shared, note=f"Client '{client}' is at level '{level}': {account}.")


@dataclass(frozen=True)
class AccountFigures:
    """What one account has spent, in other figures than epsilon at its own delta."""

    scope: str
    unit: str
    relation: str
    figures: Figures
    risk: Risk | None  # None where epsilon alone was asked for
    elsewhere: tuple[tuple[float, float], ...]  # (another delta, epsilon there)

    def __str__(self) -> str:
        costs = [f"epsilon {shown(epsilon)} at delta {delta:g}" for delta, epsilon in self.elsewhere]
        if self.risk is not None and self.figures != "epsilon":
            costs.append(risk_in_words(self.risk, self.figures))
        return f"{self.scope} ({self.unit}-level, {self.relation}): {'; '.join(costs)}"


def ledger_figures(
    path: str | Path, figures: Figures, other_deltas: Sequence[float] = (), client: str | None = None
) -> list[AccountFigures]:
    """The same in other figures: of every level; where clients have accounts, of the one that spent most.

    Args:
        path: as of `ledger_table`.
        figures: "mu", or "risk": also what an attacker gets.
        other_deltas: what the account costs at each of them.
        client: only the account of this client.
    """
    groups = ledger_table(path, True, client).groups()
    levels = [line for group in groups for line in group if line.scope.startswith("level:")]
    clients = [[line for line in group if line not in levels] for group in groups]
    told_of = levels + [max(group, key=lambda line: line.epsilon) for group in clients if group]
    rows = []
    with open_ledger(Path(path)) as ledger:
        for line in told_of:
            history = earlier_events.spent(ledger, line.scope, epochs=epochs_in(ledger_in(Path(path)).parent))
            elsewhere = tuple(
                (delta, answer(history, delta, line.relation, line.accountant).epsilon)  # type: ignore[arg-type]
                for delta in other_deltas
            )
            converted = None if figures == "epsilon" else risk(profile(history, line.relation, line.accountant))  # type: ignore[arg-type]
            rows.append(AccountFigures(line.scope, line.unit, line.relation, figures, converted, elsewhere))
    return rows


def _comparable(line: Line) -> tuple[str, str, str, float]:
    return line.unit, line.scope.partition(":")[0], line.relation, line.delta or 0.0


def _title(lines: Sequence[Line]) -> str:
    first = lines[0]
    delta = "delta unknown" if first.delta is None else f"delta {first.delta:g}"
    return f"{first.unit}-level, {first.relation} neighbours, {delta}"


def _every(lines: Sequence[Line]) -> Table:
    table = Table(*_COLUMNS)
    for line in lines:
        table.add_row(
            Text(line.scope),  # a name is not markup
            shown(line.epsilon),
            line.accountant.upper(),
            shown(line.epsilon_rdp),
            _limit(line),
            f"{line.rounds:,}",
            line.words.partition("): ")[2],
        )
    return table


def _limit(line: Line) -> str:
    if line.budget is None:
        return "none"
    return f"{line.budget:g}" if line.epsilon <= line.budget else f"{line.budget:g}, exceeded"


def _summary(lines: Sequence[Line]) -> Table:
    names = "/".join(sorted({line.accountant.upper() for line in lines}))
    table = Table("epsilon", *_QUANTILES)
    for name, values in ((names, [x.epsilon for x in lines]), ("by RDP", [x.epsilon_rdp for x in lines])):
        ordered = sorted(values)
        picked = (ordered[math.ceil(share * (len(ordered) - 1))] for share in _QUANTILES.values())
        table.add_row(name, *map(shown, picked))
    return table


_CHANGE_COLUMNS = ("clients", "levels, by rounds", "epsilon", "by", "limit", "delta", "events")


@dataclass(frozen=True)
class ChangesReport:
    """Clients with the same history share one account and one line."""

    groups: tuple[Moved, ...]
    all: bool = False

    def __rich__(self) -> RenderableType:
        clients = sum(len(group.clients) for group in self.groups)
        lines = self.groups if self.all else self.groups[:_MANY]
        left_out = len(self.groups) - len(lines)
        parts: list[RenderableType] = [
            Text(f"\nChanges of level: {clients:,} clients, {len(self.groups):,} histories", "bold"),
            Text("The account of a level is that of clients that stayed; these have their own. Nothing is refunded."),
            _changes(lines),
        ]
        if left_out:
            parts.append(Text(f"and {left_out:,} other histories: see --all"))
        if any(once_open(group.periods) for group in self.groups):
            parts.append(Text("Rounds at a level that is opted out cost nothing and have no guarantee."))
        return Group(*parts)


def changes_table(path: Path, all: bool = False, client: str | None = None) -> ChangesReport | None:
    """The changes in the ledger at `path`, of one client or of all; None if there are none. As in `ledger_table`."""
    with open_ledger(path) as ledger:
        groups = tuple(moved(ledger, client, epochs_in(ledger_in(path).parent)))
    return ChangesReport(groups, all) if groups else None


def _changes(groups: tuple[Moved, ...]) -> Table:
    table = Table(*_CHANGE_COLUMNS)
    for group in groups:
        line = group.line
        limit = "none" if line.budget is None else f"{line.budget:g}"
        delta = "-" if line.delta is None else f"{line.delta:g}"
        events = line.words.partition("): ")[2]
        spent = shown(line.epsilon), line.accountant.upper()
        table.add_row(_names(group), in_words(group.periods), *spent, limit, delta, events)
    return table


def _names(group: Moved) -> Text:
    return Text(group.clients[0] if len(group.clients) == 1 else f"{len(group.clients):,}")


def in_words(level_periods: LevelPeriods) -> Text:
    """'private 0-4, strict 5-8, strict from 9 on (not asked)': rounds are counted from 0, as in the ledger."""
    ends = [*(stay.round for stay in level_periods[1:]), None]
    return Text(", ".join(_stay_in_words(*pair) for pair in zip(level_periods, ends, strict=True)))


def _stay_in_words(stay: LevelPeriod, end: int | None) -> str:
    rounds = f"from {stay.round} on" if end is None else f"{stay.round}-{end - 1}"
    standing = "" if stay.private else " (no guarantee)"
    return f"{stay.level} {rounds}{standing if stay.asked else ' (not asked)'}"
