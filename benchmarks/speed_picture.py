"""The picture of `benchmarks.speed`."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tacit.report.figures import INK, NEUTRAL, PALETTE, Figure, Panel, Series, write_png

Bar = tuple[str, float, tuple[float, float]]  # title, median, quartiles


def draw(titles: Sequence[str], bars: Sequence[Sequence[Bar]], least: Sequence[float], path: Path) -> None:
    """A panel for each workload, a row for each system, the middle half as a line; dotted where the roofline is."""
    panels = [_panel(*each) for each in zip(titles, bars, least, strict=True)]
    nameless = [replace(panel, series=[replace(each, name="") for each in panel.series]) for panel in panels[1:]]
    write_png([Figure("speed", "", [*panels[:1], *nameless])], path)  # one legend is enough


def _panel(title: str, bars: Sequence[Bar], least: float) -> Panel:
    systems, medians, quartiles = zip(*bars, strict=True)
    rows = [float(row) for row in range(len(bars), 0, -1)]
    halves = [end for low, high in quartiles for end in (low, high, float("nan"))]
    labels = [
        f"{median:.3g} s" + (f" ({_times(median / medians[0])})" if at else "") for at, median in enumerate(medians)
    ]
    ends = [high for _, high in quartiles]
    series = [
        Series("roofline", [least] * 2, [0.4, len(bars) + 0.6], PALETTE[1], style="dot", width=1.2),
        Series("middle half of the rounds", halves, [row for row in rows for _ in range(3)], INK, width=1),
        Series("", ends, rows, style="none", labels=labels),
        Series("Tacit", medians[:1], rows[:1], PALETTE[0], style="none", mark="filled"),
        Series("others", medians[1:], rows[1:], NEUTRAL, style="none", mark="filled"),
    ]
    return Panel(
        title,
        "seconds a round",
        "",
        [each for each in series if len(each.x)],
        log="x",
        x_range=(0.5 * min(least, *medians), 8 * max(ends)),
        y_range=(0.4, len(bars) + 0.6),
        y_names=dict(zip(rows, systems, strict=True)),
        height=1.6 + 0.25 * len(bars),
    )


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.2g}x"
