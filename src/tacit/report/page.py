"""Pages: one HTML file each, everything inside it, nothing fetched. Charts are SVG; a small script answers the pointer.

A page of a run takes about 100 kB. A charting library would add 1 to 5 MB to each, for the same lines.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import count
from typing import TYPE_CHECKING, Any, Final, Literal

from tacit.report.figures import Figure, Panel, svg

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """Rows of text; the first `words` columns are read from the left, the others are figures."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    words: int = 1

    def rich(self) -> "RichTable":
        from rich.box import SIMPLE_HEAD
        from rich.table import Table as RichTable

        left: dict[str, Any] = {"title_justify": "left", "caption_justify": "left", "box": SIMPLE_HEAD}
        table = RichTable(title=self.title, caption=self.note or None, **left)
        for at, head in enumerate(self.heads):
            table.add_column(head, justify="left" if at < self.words else "right")
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        align = [":--"] * self.words + ["--:"] * (len(self.heads) - self.words)
        lines = [f"| {' | '.join(cells)} |" for cells in (self.heads, align, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *lines, *(["", self.note] if self.note else [])])

    def html(self) -> str:
        head, rows = self._cells("th", self.heads), (f"<tr>{self._cells('td', row)}</tr>" for row in self.rows)
        note = f'<p class="note">{escape(self.note)}</p>' if self.note else ""
        return f"<section><h2>{escape(self.title)}</h2>{scroll(self.title, head, rows)}{note}</section>"

    def _cells(self, tag: str, row: Sequence[str]) -> str:
        kinds = ["name" if at == 0 else "" if at < self.words else "n" for at in range(len(self.heads))]
        return "".join(f'<{tag} class="{kind}">{escape(text)}</{tag}>' for kind, text in zip(kinds, row, strict=True))


Look = Literal["", "guaranteed", "bare"]


@dataclass(frozen=True)
class Card:
    """What a group of clients is guaranteed. No guarantee ("bare") must not look like one ("guaranteed").

    Args:
        title: the group.
        figure: the shortest true thing to say.
        terms: what must stand beside it: unit, neighbours, delta, how many.
        words: the whole sentence, and what it means.
        mark: what keeps a reader from taking it for more.
        color: of the group in the charts.
    """

    title: str
    figure: str
    terms: str
    words: str
    look: Look = ""
    mark: str = ""
    color: str = ""

    def html(self) -> str:
        return (
            f'<div class="card {self.look}"><h3>{dot(self.color)}{escape(self.title)}</h3>'
            f'<p class="figure">{escape(self.figure)}</p><p class="quiet">{escape(self.terms)}</p>'
            f'<p class="sentence">{escape(self.words)}</p>{mark(self.mark)}</div>'
        )


def dot(color: str) -> str:
    """A group's colour."""
    return f'<span class="dot" style="background:{color}"></span>' if color else ""


def facts(rows: Mapping[str, str]) -> str:
    """What a reader asks of every result before looking at it: when, of which data, by which version, what for."""
    parts = (f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in rows.items())
    return f'<dl class="facts">{"".join(parts)}</dl>'


def scroll(name: str, head: str, rows: "Iterator[str] | Sequence[str]") -> str:
    """A table that scrolls by itself where the page is narrow, by keys too."""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table><thead><tr>{head}</tr>'
        f"</thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def document(title: str, body: str) -> str:
    """The whole file."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{CSS}</style></head>\n<body><main>{body}</main>\n"
        f"<script>{SCRIPT}</script></body></html>\n"
    )


def sections(figures: Sequence[Figure]) -> str:
    """Figures below each other; those of one panel stand side by side where there is room."""
    ids = (f"chart-{number}" for number in count())
    return f'<div class="figures">{"".join(_section(figure, ids) for figure in figures)}</div>'


def mark(text: str) -> str:
    return f' <span class="mark">{escape(text)}</span>' if text else ""


def _section(figure: Figure, ids: Iterator[str]) -> str:
    panels = "".join(_chart(panel, next(ids)) for panel in figure.panels)
    wide = " wide-figure" if len(figure.panels) > 1 else ""
    title = f"<h2>{escape(figure.title)}{mark(figure.mark)}</h2>" if figure.title else ""
    note = f'<p class="note">{escape(figure.note)}</p>' if figure.note else ""
    return f'<section class="one-figure{wide}">{title}{note}<div class="panels">{panels}</div></section>'


def _chart(panel: Panel, name: str) -> str:
    drawn = svg(panel, name)
    names = [(series.name, series.group) for series in panel.series] or [("", "")]
    series = [{"name": n, "group": g, "points": points} for (n, g), points in zip(names, drawn.points, strict=True)]
    together = panel.heat is None and not panel.y_names
    data = {"x": panel.x_title, "together": together, "series": series}
    # a closing tag inside the data would end the script
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).replace("</", "<\\/")
    return f'<div class="chart" id="{name}">{drawn.svg}<script type="application/json">{text}</script></div>'


CSS: Final = """
:root { color-scheme: light dark; --paper: #ffffff; --ink: #1c2024; --quiet: #55606a; --line: #dde2e6;
  --card: #f6f7f9; --mark: #7d5100; --mark-paper: #fff4dc; --good: #1b7a43; --bad: #b3261e; --bad-paper: #fdeeec; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e6e9ec; --quiet: #a3adb7; --line: #2c3238;
  --card: #1c2126; --mark: #f0c674; --mark-paper: #2e2716; --good: #5fc98a; --bad: #ff9a90; --bad-paper: #331d1b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 32px 24px 80px; }
h1 { font-size: 28px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; overflow-wrap: anywhere; }
h2 { font-size: 19px; margin: 40px 0 4px; }
h3 { font-size: 15px; margin: 0 0 2px; }
p { margin: 0 0 8px; }
.quiet { color: var(--quiet); font-size: 14px; }
.note { color: var(--quiet); font-size: 14px; max-width: 88ch; margin: 0 0 12px; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(220px, 100%), 1fr)); gap: 4px 24px;
  margin: 12px 0 0; font-size: 14px; }
.facts div { min-width: 0; overflow-wrap: anywhere; }
.facts dt { display: inline; color: var(--quiet); } .facts dt::after { content: ": "; }
.facts dd { display: inline; margin: 0; }
.mark { display: inline-block; vertical-align: 2px; padding: 1px 8px; border-radius: 10px;
  font-size: 12px; font-weight: 500; color: var(--mark); background: var(--mark-paper); }
.card .mark { margin: 8px 0 0; }
.alert { border-left: 3px solid var(--mark); background: var(--mark-paper); padding: 10px 14px; margin: 20px 0 0;
  border-radius: 0 6px 6px 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(280px, 100%), 1fr)); gap: 14px;
  margin-top: 12px; }
.card { background: var(--card); border-radius: 8px; padding: 14px 16px; border-top: 3px solid var(--quiet); }
.card p:last-child { margin-bottom: 0; }
.card .figure { font-size: 22px; font-weight: 600; font-variant-numeric: tabular-nums; }
.card .sentence { font-size: 14px; margin-top: 6px; }
.card.guaranteed { border-top-color: var(--good); } .card.guaranteed .figure { color: var(--good); }
.card.bare { border-top-color: var(--bad); background: var(--bad-paper); }
.card.bare .figure, td.bare { color: var(--bad); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; margin-top: 10px; }
th { text-align: left; font-weight: 600; color: var(--quiet); font-size: 13px; vertical-align: bottom; }
th, td { padding: 7px 12px 7px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.name { white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.sum td { font-weight: 600; }
tr.first td { border-top: 2px solid var(--line); }
.dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 7px; }
.legend { display: flex; flex-wrap: wrap; align-items: center; gap: 8px; margin: 18px 0 0; padding: 8px 0;
  position: sticky; top: 0; background: var(--paper); z-index: 5; font-size: 14px; color: var(--quiet); }
.legend button { font: inherit; color: var(--ink); background: var(--card); cursor: pointer;
  border: 1px solid var(--line); border-radius: 16px; padding: 3px 12px; }
.legend button[aria-pressed="false"] { text-decoration: line-through; background: none; }
.legend button[aria-pressed="false"] .dot { visibility: hidden; }
.figures { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 0 32px; }
.one-figure { min-width: 0; } .wide-figure { grid-column: 1 / -1; }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(420px, 100%), 1fr)); gap: 18px 32px; }
.chart { min-width: 0; max-width: 530px; }
.chart svg { display: block; width: 100%; height: auto; stroke-linejoin: round; }
.chart text { font-family: inherit !important; }
.tip { position: absolute; pointer-events: none; white-space: pre; z-index: 6; padding: 6px 10px; font-size: 13px;
  background: var(--card); border: 1px solid var(--line); border-radius: 6px; max-width: 92vw; overflow: hidden; }
details { border-top: 1px solid var(--line); padding: 10px 0; }
details:last-of-type { border-bottom: 1px solid var(--line); }
summary { cursor: pointer; font-weight: 600; font-size: 15px; overflow-wrap: anywhere; }
pre { overflow-x: auto; background: var(--card); border-radius: 8px; padding: 14px 16px; font-size: 13px;
  line-height: 1.5; }
@media (max-width: 760px) { main { padding: 24px 16px 56px; } h1 { font-size: 23px; } h2 { margin-top: 32px; }
  .figures { grid-template-columns: minmax(0, 1fr); } th.n { white-space: normal; } }
@media print { .legend { position: static; } }
"""

SCRIPT: Final = """
const tip = document.body.appendChild(Object.assign(document.createElement("div"), { className: "tip", hidden: true }));
const off = new Set();
const charts = [...document.querySelectorAll(".chart")].map(place =>
  ({ place, svg: place.querySelector("svg"), ...JSON.parse(place.querySelector("script").textContent) }));
function near(chart, x, y) {
  const shown = chart.series.filter(each => !off.has(each.group)).flatMap(each =>
    each.points.map(point => ({ name: each.name, point, far: Math.hypot(point[0] - x, (point[1] - y) * 0.5) })));
  const first = shown.reduce((best, each) => each.far < best.far ? each : best, { far: 40 });
  if (!first.point) return "";
  const [at] = first.point, same = each => Math.abs(each.point[0] - at) < 0.2;
  const lines = chart.together ? shown.filter(same) : [first];
  const head = chart.together ? [`${chart.x} ${first.point[2]}`] : [];
  return [...head, ...lines.map(({ name, point }) =>
    [name, chart.together ? point[3] : `${point[2]}: ${point[3]}`].filter(Boolean).join(": "))].join("\\n");
}
charts.forEach(chart => {
  chart.svg.addEventListener("pointermove", event => {
    const box = chart.svg.getBoundingClientRect(), scale = chart.svg.viewBox.baseVal.width / box.width;
    tip.textContent = near(chart, (event.clientX - box.left) * scale, (event.clientY - box.top) * scale);
    tip.hidden = !tip.textContent;
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 4);
    Object.assign(tip.style, { left: `${Math.max(4, left)}px`, top: `${event.clientY + scrollY + 16}px` });
  });
  chart.svg.addEventListener("pointerleave", () => { tip.hidden = true; });
});
document.querySelectorAll(".legend button").forEach(button => button.addEventListener("click", () => {
  const on = button.getAttribute("aria-pressed") === "false", group = button.dataset.group;
  button.setAttribute("aria-pressed", String(on));
  off[on ? "delete" : "add"](group);
  charts.forEach(({ place, series }) => series.forEach((each, at) => {
    const parts = each.group === group ? place.querySelectorAll(`[id^="${place.id}-series-${at}-"]`) : [];
    parts.forEach(part => { part.style.display = on ? "" : "none"; });
  }));
}));
"""
