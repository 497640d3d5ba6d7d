"""What a client would gain by opting out, and what staying private costs it.

At r* a client that opts out mostly helps the others: it knows its own estimate in any case, and its choice changes
nothing in the messages of the rest. What it can gain is to lose its own noise in the shared estimate, which a client
that added that noise itself could as well subtract.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from papers.fedhdp.theory import multilevel as levels
from papers.fedhdp.theory import point
from papers.fedhdp.theory.multilevel import Menu, Shares
from papers.fedhdp.theory.point import Hold, Problem
from tacit.errors import TacitError
from tacit.report.figures import PALETTE, Figure, Panel, Series
from tacit.report.page import Table

_BLUE, _RED, _GREEN, _PURPLE = PALETTE[:4]
_HOLDS: dict[Hold, str] = {"z": "z", "message": "message", "gamma2": "γ²"}


@dataclass(frozen=True)
class Offer:
    """One private client may leave. Errors are personal ones at the best lambda, before and after."""

    stays: float
    leaves: float
    others_before: float
    others_after: float
    server_before: float
    server_after: float

    @property
    def gain(self) -> float:
        """Of the client itself, relative; below 0 if opting out would hurt it."""
        return 1 - self.leaves / self.stays

    @property
    def gift(self) -> float:
        """What the clients that stay private gain from it, relative."""
        return 1 - self.others_after / self.others_before

    @property
    def server_gain(self) -> float:
        return 1 - self.server_after / self.server_before


def offer(problem: Problem, *, ratio: float | None = None, hold: Hold = "z", knows_noise: bool = False) -> Offer:
    """What changes if one of at least two private clients opts out; with ratio None the server finds its r* anew."""
    if problem.private < 2:
        raise TacitError(f"someone must stay private beside who leaves; private is {problem.private}, give 2 or more")
    after = problem.with_private(problem.private - 1, hold)

    def error(of: Problem, private: bool) -> float:
        return point.best_mse(of, private=private, ratio=ratio, knows_noise=knows_noise)

    def server(of: Problem) -> float:
        return point.server_variance(of, point.optimal_ratio(of) if ratio is None else ratio)

    stays = error(problem, True)
    return Offer(stays, error(after, False), stays, error(after, True), server(problem), server(after))


def price(problem: Problem, *, ratio: float | None = None) -> float:
    """How much larger a private client's personal error is than an open one's in the same federation, relative.

    Below 0 where few opted out: a private client gains from every open message, an open one from all but its own.
    """
    private = point.best_mse(problem, private=True, ratio=ratio)
    return private / point.best_mse(problem, private=False, ratio=ratio) - 1


def moves(menu: Menu, shares: Callable[[Menu], Shares] = levels.optimal_shares) -> np.ndarray:
    """[from, to]: a client's relative gain by changing its level, everybody keeping its z; NaN from empty levels."""
    size = len(menu.groups)
    gains = np.full((size, size), np.nan)
    for source in (j for j in range(size) if menu.groups[j].clients):
        now = levels.best_mse(menu, shares(menu), source)
        for target in range(size):
            then = menu.move(source, target)
            gains[source, target] = 1 - levels.best_mse(then, shares(then), target) / now
    return gains


def table(problem: Problem) -> Table:
    rows = [_row(name, problem, ratio, hold) for name, ratio in _RULES for hold in _HOLDS]
    return Table(
        "What one private client would gain by opting out",
        note="Personal errors at the best lambda if it stays or leaves, and relative gains: its own; its own if it "
        "takes its part of the noise out of what it receives (knowing); of each client that stays private (others); of "
        "the server. Held: what the others keep. With z held (noise by the server) or the noise of a message (local "
        "noise) they keep their epsilon; with gamma^2 held, which can give the papers' percentages, their z falls.",
        heads=("server", "held", "stays", "leaves", "gain", "knowing", "others", "server"),
        rows=rows,
        words=2,
    )


_RULES: tuple[tuple[str, float | None], ...] = (("FedAvg, r=1", 1.0), ("FedHDP, r*", None))


def _row(name: str, problem: Problem, ratio: float | None, hold: Hold) -> list[str]:
    plain = offer(problem, ratio=ratio, hold=hold)
    knowing = offer(problem, ratio=ratio, hold=hold, knows_noise=True)
    gains = [percent(each) for each in (plain.gain, knowing.gain, plain.gift, plain.server_gain)]
    return [name, _HOLDS[hold], f"{plain.stays:.4f}", f"{plain.leaves:.4f}", *gains]


def percent(share: float) -> str:
    """Two decimals, and no minus before a zero."""
    return f"{round(100 * share, 2) + 0.0:.2f}%"


def figure(problem: Problem) -> Figure:
    """Who gains from one more client that opts out, against how many did."""
    counts = range(problem.clients, 1, -1)
    several = [problem.with_private(n) for n in counts]
    rho = [each.rho for each in several]
    return Figure(
        "theory-incentive",
        title="One more client opts out: who gains?",
        note="Gain in personal error (server: in its own) at r* and the best lambda. Left: the client itself, by what "
        "the others hold. Right: with z held, what it gives to the rest.",
        panels=[
            Panel(
                "the client's own gain, by what the others keep",
                "share opted out before",
                "gain, %",
                _own(problem, rho),
            ),
            Panel(
                "with z held: its own gain and the others'", "share opted out before", "gain, %", _gift(several, rho)
            ),
        ],
    )


def _own(problem: Problem, rho: Sequence[float]) -> list[Series]:
    lines = []
    names: dict[Hold, str] = {
        "gamma2": "others keep γ²",
        "message": "others keep their message noise",
        "z": "others keep z",
    }
    for (hold, name), color in zip(names.items(), (_RED, _GREEN, _BLUE), strict=True):
        several = [problem.with_private(n, hold) for n in range(problem.clients, 1, -1)]
        lines.append(Series(name, rho, [100 * offer(each, hold=hold).gain for each in several], color))
    several = [problem.with_private(n) for n in range(problem.clients, 1, -1)]
    knowing = [100 * offer(each, knows_noise=True).gain for each in several]
    return [*lines, Series("others keep z, it knows its noise", rho, knowing, _BLUE, style="dash")]


def _gift(several: Sequence[Problem], rho: Sequence[float]) -> list[Series]:
    offers = [offer(each) for each in several]
    return [
        Series("the server", rho, [100 * each.server_gain for each in offers], _PURPLE),
        Series("each client that stays private", rho, [100 * each.gift for each in offers], _GREEN),
        Series("the client itself", rho, [100 * each.gain for each in offers], _BLUE),
    ]


def price_figure(problem: Problem) -> Figure:
    """Personal errors of both kinds of clients, against who opted out and against the noise."""
    by_share = [problem.with_private(n) for n in range(problem.clients - 1, 0, -1)]
    factors = np.geomspace(1e-2, 1e2, 61)
    middle = problem.gamma2 or problem.sigma2 / problem.private
    by_noise = [replace(problem, gamma2=middle * float(factor)) for factor in factors]
    return Figure(
        "theory-price",
        title="The price of staying private: personal errors in the same federation, at r*",
        note="Private clients stand between training alone and a federation without noise, and below the open clients: "
        "they have all the open messages beside their own data, an open client has one fewer.",
        panels=[
            _price_panel("by how many opted out (z held)", "share opted out", [p.rho for p in by_share], by_share),
            _price_panel(
                f"by noise ({100 * problem.rho:.0f}% opted out)",
                "noise of the private mean γ²",
                [p.gamma2 for p in by_noise],
                by_noise,
                log="x",
            ),
        ],
    )


def _price_panel(
    title: str, x_title: str, x: Sequence[float], several: Sequence[Problem], log: Literal["", "x"] = ""
) -> Panel:
    quiet = [replace(each, gamma2=0.0) for each in several]
    lines = [
        Series("open", x, [point.best_mse(each, private=False) for each in several], _RED),
        Series("private", x, [point.best_mse(each, private=True) for each in several], _BLUE),
        Series(
            "private, Bayes limit", x, [point.bayes_mse(each, private=True) for each in several], _GREEN, style="dash"
        ),
        Series("no noise at all", x, [point.bayes_mse(each, private=True) for each in quiet], _PURPLE, style="dot"),
    ]
    return Panel(title, x_title, "personal error", lines, log=log)
