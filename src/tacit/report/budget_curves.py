"""What epsilon costs, drawn: against the noise, the number of rounds and the rate, around one budget."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from tacit.core.files import write_atomically
from tacit.errors import TacitError
from tacit.privacy.ledger.statement import shown
from tacit.report.budget import BudgetReport, budget
from tacit.report.figures import NEUTRAL, PALETTE, Figure, Panel, Series, write_png
from tacit.report.page import document, sections

POINTS: Final = 9
_NOISE: Final = "noise_multiplier"


def curves(chosen: BudgetReport, settings: dict[str, Any]) -> Figure:
    """`settings` are `budget`'s own; the noise is held at the chosen one, and one thing changes in each panel."""
    held = {**settings, _NOISE: chosen.noise_multiplier, "figures": "epsilon", "other_deltas": ()}

    def price(**change: Any) -> float:
        return budget(**{**held, **change}).epsilon

    noise, rounds = chosen.noise_multiplier, chosen.rounds
    panels = [
        _panel(
            "noise multiplier", np.geomspace(noise / 2, noise * 3, POINTS), noise, chosen, price, "noise_multiplier"
        ),
        _panel("rounds", _whole(rounds / 8, rounds * 2), rounds, chosen, price, "rounds"),
    ]
    size = settings.get("fixed_size")
    if size is None:
        rates = np.geomspace(chosen.rate / 8, min(1.0, chosen.rate * 4), POINTS)
        panels.append(_panel("rate", rates, chosen.rate, chosen, price, "rate"))
    else:
        sizes = _whole(size / 8, min(settings["population"], size * 4))
        panels.append(_panel("clients in a round", sizes, size, chosen, price, "fixed_size"))
    terms = f"{chosen.unit}-level, {chosen.relation}, delta {chosen.delta:g}, {chosen.accountant.upper()}"
    title = f"epsilon {shown(chosen.epsilon)} ({terms})"
    note = "Each curve changes one thing and holds the others at the chosen point, which is marked."
    return Figure("budget", note, panels, title)


def _whole(low: float, high: float) -> Sequence[int]:
    return sorted({max(1, round(each)) for each in np.geomspace(max(low, 1), max(high, 1), POINTS)})


def _panel(name: str, places: Any, chosen: float, report: BudgetReport, price: Callable[..., float], key: str) -> Panel:
    at = sorted({*np.asarray(places).tolist(), chosen})
    spent = [report.epsilon if each == chosen else price(**{key: each}) for each in at]
    series = [
        Series("epsilon", at, spent, PALETTE[0]),
        Series("chosen", [chosen], [report.epsilon], PALETTE[1], style="none", mark="filled"),
        Series("", [at[0], at[-1]], [report.epsilon] * 2, NEUTRAL, style="dot", width=1),
    ]
    return Panel("", name, "epsilon", series, log="xy")


def write(figure: Figure, path: Path) -> Path:
    """An image or a page, by the name's ending."""
    if path.suffix.lower() == ".png":
        return write_png([figure], path)
    if path.suffix.lower() not in (".html", ".htm"):
        raise TacitError(f"{path} is no name for a picture: end it with .png or .html")
    write_atomically(path, document(figure.title, f"<h1>What epsilon costs</h1>{sections([figure])}").encode())
    return path
