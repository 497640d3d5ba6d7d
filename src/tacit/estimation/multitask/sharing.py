"""Who learns from whom: the learned correlation with like devices side by side, and where a model comes from."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tacit.core.files import write_atomically
from tacit.estimation.multitask.objective import multitask_of
from tacit.methods.multitask.covariance import correlation
from tacit.report.style import CSS, SCRIPT
from tacit.rounds.loop import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SCALE = [[0.0, "#b2182b"], [0.5, "#ffffff"], [1.0, "#2166ac"]]
_NAMED = 40  # devices up to which axes name them


@dataclass(frozen=True, eq=False)
class Sharing:
    """`correlation` [devices, devices]; `origin[t, s]`: which share of t's model comes from what s has sent.

    A model is a weighted sum of messages, w_t = 1/(2 lambda) sum_s Omega_ts v_s: shares are by the norms of its terms.
    """

    ids: Sequence[str]
    correlation: np.ndarray
    origin: np.ndarray

    @classmethod
    def of(cls, run: Run) -> "Sharing":
        multitask_of(run)
        extra = run.progress.server.view.extra
        omega, sums = extra["covariance"].double(), extra["sums"].double()
        terms = omega.abs() * sums.flatten(1).norm(dim=1)
        origin = terms / terms.sum(1, keepdim=True).clamp(min=1e-300)
        return cls(run.engine.federation.ids, correlation(omega).numpy(), origin.numpy())

    def order(self) -> np.ndarray:
        """Devices with their likes side by side: leaves of a clustering of 1 - correlation."""
        from scipy.cluster.hierarchy import leaves_list, linkage
        from scipy.spatial.distance import squareform

        if len(self.ids) < 3:
            return np.arange(len(self.ids))
        distance = np.clip(1 - (self.correlation + self.correlation.T) / 2, 0, 2)
        np.fill_diagonal(distance, 0)
        return leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))

    def table(self, most: int = 3) -> list[list[str]]:
        """For each device: the share of its model from its own messages, and from those it learns most from."""
        rows = []
        for t, name in enumerate(self.ids):
            others = [s for s in np.argsort(-self.origin[t], kind="stable") if s != t][:most]
            told = ", ".join(f"{self.ids[s]} {100 * self.origin[t, s]:.0f}%" for s in others)
            rows.append([name, f"{100 * self.origin[t, t]:.0f}%", told])
        return rows

    def figure(self) -> "Figure":
        from matplotlib.colors import LinearSegmentedColormap
        from matplotlib.figure import Figure

        order = self.order()
        whole = Figure(figsize=(6.4, 5.4), layout="constrained", facecolor="white")
        axes = whole.subplots()
        colors = LinearSegmentedColormap.from_list("sharing", [color for _, color in _SCALE])
        shown = axes.imshow(self.correlation[np.ix_(order, order)], cmap=colors, vmin=-1, vmax=1)
        if len(order) <= _NAMED:
            names = [str(self.ids[int(t)]) for t in order]
            axes.set_xticks(range(len(order)), names, rotation=90, fontsize=7)
            axes.set_yticks(range(len(order)), names, fontsize=7)
        axes.set_title("learned correlation of tasks", fontsize=9, loc="left")
        axes.tick_params(length=0)
        whole.colorbar(shown, shrink=0.8).ax.tick_params(labelsize=7)
        return whole

    def save_png(self, path: Path | str) -> Path:
        self.figure().savefig(path, dpi=130)
        return Path(path)

    def save_html(self, path: Path | str) -> Path:
        """One page that needs no other and no network: the heat map, and who learns from whom."""
        write_atomically(Path(path), self._page().encode())
        return Path(path)

    def _page(self) -> str:
        from plotly.offline import get_plotlyjs

        body = "".join(
            f'<tr><td class="name">{escape(who)}</td><td class="n">{own}</td><td>{escape(told)}</td></tr>'
            for who, own, told in self.table()
        )
        head = '<tr><th>device</th><th class="n">from itself</th><th>most from others</th></tr>'
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Who learns from whom</title>'
            f"<style>{CSS} .chart {{ height: 720px; }}</style></head><body><main><h1>Who learns from whom</h1>"
            '<p class="note">Learned correlation of tasks, like devices side by side. A model is a weighted sum of '
            "what devices sent; the table has the share of each.</p>"
            f'<div class="chart" data-from="chart-0"></div>'
            f'<script type="application/json" id="chart-0">{self._chart()}</script>'
            f'<div class="scroll"><table><thead>{head}</thead><tbody>{body}</tbody></table></div></main>'
            f"<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script></body></html>\n"
        )

    def _chart(self) -> str:
        import json

        order = self.order()
        names = [self.ids[t] for t in order]
        values = np.round(self.correlation[np.ix_(order, order)], 4).tolist()
        heat: dict[str, Any] = {
            "type": "heatmap", "x": names, "y": names, "z": values, "zmin": -1, "zmax": 1, "colorscale": _SCALE,
            "hovertemplate": "%{y} and %{x}: %{z:.2f}<extra></extra>",
        }  # fmt: skip
        layout = {
            "xaxis": {"title": "", "type": "category"},
            "yaxis": {"title": "", "type": "category", "autorange": "reversed"},
            "margin": {"l": 60, "r": 12, "t": 12, "b": 60},
        }
        return json.dumps({"data": [heat], "layout": layout}).replace("</", "<\\/")
