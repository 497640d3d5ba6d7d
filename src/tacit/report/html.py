"""The report as one HTML file: everything inlined, nothing fetched, works offline."""

import json
from collections.abc import Iterator, Sequence
from html import escape
from itertools import count
from typing import Any

from tacit.privacy.ledger.statement import SIMULATION
from tacit.report import wording
from tacit.report.charts import NEUTRAL, Legend, Panel, Section, sections
from tacit.report.facts import Promise
from tacit.report.metrics import ALL, label
from tacit.report.style import CSS, SCRIPT
from tacit.report.summary import RunSummary

_DASH = {"solid": "solid", "dash": "dash", "dot": "dot"}
_LEDGER_LINES = 12
_MARKED = 25  # points up to which a line shows them
_MARK = '<span class="mark">simulation only</span>'
_HEADS = ("shared mean", "personal mean", "personal variance", "worst decile")
_METRICS = ("shared_mean", "personal_mean", "personal_variance", "personal_worst_decile")


def page(several: Sequence[RunSummary]) -> str:
    """The whole page of one run, or of several beside each other."""
    from plotly.offline import get_plotlyjs

    legend, ids = Legend.of(several), count()
    body = [_head(several), *_guarantees(several, legend), _figures(several, legend)]
    body += [_legend(legend), *_charts(sections(several), ids)]
    body += [_ledger(several), _small_print(several)]
    title = escape(" beside ".join(findings.title for findings in several))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{CSS}</style></head>\n<body><main>{''.join(body)}</main>\n"
        f"<script>{get_plotlyjs()}</script>\n<script>{SCRIPT}</script></body></html>\n"
    )


def _head(several: Sequence[RunSummary]) -> str:
    facts = several[0].facts
    if len(several) == 1:
        about = (
            f"{facts.method} under the plan {facts.plan}: {facts.clients:,} clients, {several[0].done:,} rounds, "
            f"{100 * facts.rate:.3g}% of the clients asked in a round. {several[0].devices or ''}".rstrip()
        )
    else:
        about = f"{len(several)} runs side by side."
    title = several[0].title if len(several) == 1 else ", ".join(findings.title for findings in several)
    alerts = [f"{_whose(findings, several)}{findings.standing}" for findings in several if findings.standing]
    warned = [(findings, wording.warning(findings.epsilons)) for findings in several]
    alerts += [f"{_whose(findings, several)}{text}" for findings, text in warned if text]
    alerts += [f"{_whose(findings, several)}{findings.timing}" for findings in several if findings.timing]
    marks = "".join(f'<p class="alert">{escape(alert)}</p>' for alert in alerts)
    return f'<header><h1>{escape(title)}</h1><p class="quiet">{escape(about)}</p>{marks}</header>'


def _whose(findings: RunSummary, several: Sequence[RunSummary]) -> str:
    return f"{findings.title}: " if len(several) > 1 else ""


def _guarantees(several: Sequence[RunSummary], legend: Legend) -> Iterator[str]:
    mark = next(filter(None, (wording.simulation(findings.facts) for findings in several)), "")
    yield f"<h2>What each group is guaranteed {_marked(mark)}</h2>"
    for findings in several:
        if len(several) > 1:
            yield f'<p style="margin:18px 0 0">{_dot(legend.colors[findings.title])}{escape(findings.title)}</p>'
        held = [promise for promise in findings.facts.promises if promise.clients and findings.facts.shares]
        cards = "".join(_card(findings, promise, legend) for promise in held)
        yield f'<div class="cards">{cards}</div>' if cards else ""
        yield from map(_note, [wording.whole(findings.facts, findings.epsilons), *findings.facts.notes])
    yield _note(wording.PERSONAL)


def _marked(text: str) -> str:
    return f'<span class="mark">{escape(text)}</span>' if text else ""


def _note(line: str) -> str:
    return f'<p class="note" style="margin:12px 0 0">{escape(wording.as_sentence(line))}</p>'


def _card(findings: RunSummary, promise: Promise, legend: Legend) -> str:
    spent = findings.epsilons.get(promise.level)
    tone = legend.colors.get(promise.level) or legend.colors.get(findings.title, NEUTRAL)
    text = wording.sentence(promise, findings.facts, spent).removeprefix(f"{promise.level}: ")
    return (
        f'<div class="card" style="--tone:{tone}"><h3>{escape(promise.level)}</h3>'
        f'<p class="figure">{escape(wording.headline(promise, spent))}</p>'
        f'<p class="quiet">{escape(wording.terms(promise, findings.facts, spent))}{promise.clients:,} clients</p>'
        f'<p class="sentence">{escape(wording.as_sentence(text))}</p>'
        f"{_marked(SIMULATION if promise.standing == 'protected' else '')}</div>"
    )


def _figures(several: Sequence[RunSummary], legend: Legend) -> str:
    many = len(several) > 1
    heads = [*(["run"] if many else []), "level", "clients", "guarantee", "epsilon spent", *_HEADS]
    numeric = {"clients", *_HEADS}
    kinds = {**dict.fromkeys(numeric, "n"), "guarantee": "wide", "epsilon spent": "wide"}
    head = "".join(f'<th class="{kinds.get(name, "")}">{name}</th>' for name in heads)
    rows = [row for findings in several for row in _rows(findings, many, legend)]
    common = [(f, value) for f in several if (value := f.value(ALL, "common")) is not None]
    shared = "; ".join(f"{_whose(f, several)}{value:.3f}" for f, value in common)
    note = f"The shared model on the common test set: {shared}." if common else ""
    rounds = sorted({findings.last for findings in several})
    at = f"Accuracy after round {rounds[0]}" if len(rounds) == 1 else "Accuracy after the last evaluated round"
    at = "No accuracy was measured yet" if rounds == [0] else at
    late = " Epsilon is that of the last round in the ledger." if any(findings.timing for findings in several) else ""
    return (
        f'<h2>Accuracy {_MARK}</h2><p class="note">{at}, each client on its own test rows.{late} {escape(note)} '
        "Worst decile: mean over the worst tenth of the clients.</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _rows(findings: RunSummary, many: bool, legend: Legend) -> Iterator[str]:
    facts, first = findings.facts, True
    for place, name in findings.groups():
        promise = next((each for each in facts.promises if label(each.level) == place), None)
        clients = facts.clients if promise is None else promise.clients
        kind = "" if promise is None else wording.guarantee(promise, facts)
        spent = "" if promise is None else wording.spent(promise, findings.epsilons.get(name))
        figures = [findings.value(place, metric) for metric in _METRICS]
        cells = "".join(f'<td class="n">{"-" if value is None else f"{value:.3f}"}</td>' for value in figures)
        run = f'<td class="name">{_dot(legend.colors[findings.title])}{escape(findings.title)}</td>' if many else ""
        dot = "" if many else _dot(legend.colors.get(name, NEUTRAL))
        style = " ".join(["sum"] * (promise is None) + ["first"] * (first and many))
        yield (
            f'<tr class="{style}">{run}<td class="name">{dot}{escape(name)}</td><td class="n">{clients:,}</td>'
            f'<td class="wide">{escape(kind)}</td><td class="wide">{escape(spent)}</td>{cells}</tr>'
        )
        first = False


def _dot(color: str) -> str:
    return f'<span class="dot" style="background:{color}"></span>'


def _legend(legend: Legend) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-group="{escape(name)}">{_dot(color)}{escape(name)}</button>'
        for name, color in legend.colors.items()
    )
    return f'<nav class="legend" aria-label="shown in the charts">{buttons}</nav>'


def _charts(found: Sequence[Section], ids: Iterator[int]) -> Iterator[str]:
    """Sections below each other; after the first, those of a single panel stand side by side where there is room."""
    for at, section in enumerate(found):
        alone = at > 0 and len(section.panels) == 1
        before = alone and at > 1 and len(found[at - 1].panels) == 1
        after = alone and at + 1 < len(found) and len(found[at + 1].panels) == 1
        yield '<div class="pair">' if alone and not before else ""
        yield _section(section, ids)
        yield "</div>" if alone and not after else ""


def _section(section: Section, ids: Iterator[int]) -> str:
    mark = _marked(section.mark)
    panels = "".join(_panel(panel, next(ids)) for panel in section.panels)
    return (
        f'<section><h2>{escape(section.title)} {mark}</h2><p class="note">{escape(section.note)}</p>'
        f'<div class="panels">{panels}</div></section>'
    )


def _panel(panel: Panel, number: int) -> str:
    title = f"<h3>{escape(panel.title)}</h3>" if panel.title else ""
    # a closing tag inside the data would end the script
    data = json.dumps({"data": _traces(panel), "layout": _layout(panel)}).replace("</", "<\\/")
    return (
        f'<div class="panel">{title}<div class="chart" data-from="chart-{number}"></div>'
        f'<script type="application/json" id="chart-{number}">{data}</script></div>'
    )


def _traces(panel: Panel) -> list[dict[str, Any]]:
    shared = [{"name": s.name, "legendgroup": s.group, "x": list(s.x), "y": list(s.y)} for s in panel.series]
    if panel.kind == "bar":
        text = "%{y:.1f}% of the clients, accuracy around %{x:.2f}"
        return [
            {**each, "type": "bar", "marker": {"color": s.color}, "hovertemplate": text}
            for each, s in zip(shared, panel.series, strict=True)
        ]
    return [
        {
            **each,
            "type": "scatter",
            "mode": "lines+markers" if len(s.x) <= _MARKED and s.strong else "lines",
            "marker": {"size": 6},
            "line": {"color": s.color, "dash": _DASH[s.style], "width": 2.5 if s.strong else 1.5},
            "hovertemplate": "%{y:.3f}",
        }
        for each, s in zip(shared, panel.series, strict=True)
    ]


def _layout(panel: Panel) -> dict[str, Any]:
    vertical: dict[str, Any] = {"title": panel.y_title, "rangemode": "tozero"}
    if panel.top is not None:
        vertical["range"] = [0, panel.top]
    return {
        "xaxis": {"title": panel.x_title, "showgrid": False} | ({"range": [0, 1]} if panel.kind == "bar" else {}),
        "yaxis": vertical,
        "margin": {"l": 52, "r": 12, "t": 12, "b": 48},
        "showlegend": False,
        "hovermode": "x unified" if panel.kind == "line" else "closest",
        "bargap": 0.25,
    }


def _ledger(several: Sequence[RunSummary]) -> str:
    parts = [
        "<h2>Ledger</h2>",
        '<p class="note">Every charge, made before its release, replayed by the accountant.</p>',
    ]
    for findings in several:
        lines = sorted(findings.statement, key=lambda line: -line.epsilon)
        parts.append(f"<h3>{escape(findings.title)}</h3>" if len(several) > 1 else "")
        if not lines:
            parts.append("<p>Nothing was charged.</p>")
            continue
        rows = "".join(_ledger_row(line) for line in lines[:_LEDGER_LINES])
        head = '<tr><th>account</th><th class="n">rounds charged</th><th class="n">budget</th><th>spent</th></tr>'
        parts.append(f'<div class="scroll"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>')
        if len(lines) > _LEDGER_LINES:
            more = len(lines) - _LEDGER_LINES
            parts.append(f'<p class="quiet">And {more:,} accounts that spent no more: tacit ledger RUN lists them.</p>')
    return "".join(parts)


def _ledger_row(line: Any) -> str:
    budget = "none" if line.budget is None else f"{line.budget:g}"
    rdp = f"; by RDP {wording.number(line.epsilon_rdp)}" if line.accountant != "rdp" else ""
    return (
        f'<tr><td>{escape(line.scope)}</td><td class="n">{line.rounds:,}</td><td class="n">{budget}</td>'
        f"<td>{escape(line.words)}{rdp}</td></tr>"
    )


def _small_print(several: Sequence[RunSummary]) -> str:
    parts = ["<h2>How it was run</h2>"]
    for findings in several:
        about = json.dumps(dict(findings.environment), indent=2)
        for name, text in (("configuration", findings.config), ("environment", about)):
            summary = escape(f"{_whose(findings, several)}{name}")
            parts.append(f"<details><summary>{summary}</summary><pre>{escape(text)}</pre></details>")
    return "".join(parts)
