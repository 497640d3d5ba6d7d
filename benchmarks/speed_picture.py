"""The picture of `benchmarks.speed`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Bar = tuple[str, float, tuple[float, float]]  # title, median, quartiles


def draw(titles: Sequence[str], bars: Sequence[Sequence[Bar]], least: Sequence[float], path: Path) -> None:
    """A panel for each workload, a bar for each system, whiskers over the middle half; a line where the roofline is."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    high = -(-len(titles) // 2)
    figure, panels = plt.subplots(high, min(2, len(titles)), figsize=(11.5, 1.9 * high + 0.3), squeeze=False)
    for panel in panels.flat[len(titles) :]:
        panel.axis("off")
    for panel, title, of_panel, limit in zip(panels.flat, titles, bars, least, strict=False):
        _panel(panel, title, of_panel, limit)
    figure.tight_layout(w_pad=3, h_pad=1.5)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def _panel(panel: Any, title: str, bars: Sequence[Bar], least: float) -> None:
    titles, medians, quartiles = zip(*bars, strict=True)
    spread = [[m - q[0] for m, q in zip(medians, quartiles, strict=True)]]
    spread.append([q[1] - m for m, q in zip(medians, quartiles, strict=True)])
    colors = ["#1f6f8b" if place == 0 else "#b8c4cc" for place in range(len(bars))]
    panel.barh(titles, medians, xerr=spread, color=colors, ecolor="#444444", height=0.62, capsize=3)
    ends = [upper for _, upper in quartiles]
    wide = max(ends) > 30 * min(medians)
    for place, (end, median) in enumerate(zip(ends, medians, strict=True)):
        label = f"{median:.3g} s" + (f" ({_times(median / medians[0])})" if place else "")
        panel.text(end * 1.15 if wide else end + 0.02 * max(ends), place, label, va="center", fontsize=8)
    panel.axvline(least, color="#c0392b", linewidth=1, linestyle=":")
    if wide:
        panel.set_xscale("log")
        panel.set_xlim(0.5 * min(least, *medians), 8 * max(ends))
    else:
        panel.set_xlim(0, 1.4 * max(ends))
    panel.set_ylim(len(bars) - 0.4, -0.6)
    panel.set_title(title, fontsize=9, loc="left")
    panel.set_xlabel("seconds (dotted: roofline)" + (", logarithmic" if wide else ""), fontsize=8)
    panel.tick_params(labelsize=8)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)


def _times(ratio: float) -> str:
    return f"{ratio:.0f}x" if ratio >= 100 else f"{ratio:.2g}x"
