"""The page of a run, or of several beside each other: guarantees first, then figures, the ledger, the configuration.

`tell`, `write_html` and `write_png` make the report of runs on disk: tables for the terminal, a page and an image.
"""

import json
import secrets
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType

from tacit.core.files import storage, write_atomically
from tacit.errors import TacitError
from tacit.privacy.ledger.statement import SIMULATION
from tacit.report import wording
from tacit.report.charts import MEASURED, Legend, accuracy, figures
from tacit.report.facts import Promise
from tacit.report.figures import NEUTRAL, Figure, Panel, svg
from tacit.report.figures import write_png as write_image
from tacit.report.metrics import ALL, label
from tacit.report.page import Card, Look, document, dot, mark, scroll, sections
from tacit.report.page import facts as facts_of
from tacit.report.summary import RunSummary, open_run
from tacit.report.tables import comparison, level_table

_LEDGER_LINES = 12
_HEADS = ("shared mean", "personal mean", "personal variance", "worst decile")
_METRICS = ("shared_mean", "personal_mean", "personal_variance", "personal_worst_decile")
_LOOK: Final[Mapping[str, Look]] = {"protected": "guaranteed", "opted out": "bare", "no noise": "bare"}
"""A level without a guarantee must not look like one that has one."""


def page(runs: Sequence[RunSummary]) -> str:
    """The whole page of one run, or of several beside each other."""
    legend = Legend.of(runs)
    body = [_head(runs), *_guarantees(runs, legend), _figures(runs, legend)]
    body += [_legend(legend), sections(figures(runs)), _ledger(runs), _small_print(runs)]
    return document(" beside ".join(findings.title for findings in runs), "".join(body))


def notebook_cell(findings: RunSummary) -> str:
    """One run as the output of a notebook's cell: its table, its metric over rounds, its guarantees. Without a script,
    so that it is seen wherever notebooks are shown."""
    legend = Legend.of([findings])
    figure = accuracy([findings], legend)
    name = f"result-{secrets.token_hex(4)}"  # a notebook may show many
    charts = "".join(f'<div style="max-width:530px">{svg(panel, name).svg}</div>' for panel in figure.panels)
    lines = "".join(f"<p>{escape(line)}</p>" for line in findings.lines())
    return f'<div class="tacit-result"><style>{_CELL_CSS}</style>{_figures([findings], legend)}{charts}{lines}</div>'


_CELL_CSS: Final = """
.tacit-result { --line: #9995; --paper: transparent; --quiet: #777; }
.tacit-result h2 { font-size: 16px; margin: 4px 0; } .tacit-result p { margin: 4px 0; max-width: 100ch; }
.tacit-result .dot { display: inline-block; width: 10px; height: 10px; border-radius: 50%; margin-right: 7px; }
.tacit-result th, .tacit-result td { text-align: left; } .tacit-result th.n, .tacit-result td.n { text-align: right; }
.tacit-result .bare { color: #d32f2f; font-weight: 600; } .tacit-result .mark { font-size: 12px; font-weight: 400; }
.tacit-result svg { width: 100%; height: auto; }
"""


def _head(runs: Sequence[RunSummary]) -> str:
    title = ", ".join(findings.title for findings in runs)
    alerted = [(findings, text) for findings in runs for text in _alerts(findings)]
    alerts = "".join(f'<p class="alert">{escape(_prefix(findings, runs) + text)}</p>' for findings, text in alerted)
    return f"<header><h1>{escape(title)}</h1>{''.join(_about(each, runs) for each in runs)}{alerts}</header>"


def _alerts(findings: RunSummary) -> list[str]:
    texts = (findings.standing, wording.warning(findings.epsilons), findings.timing, findings.clipped)
    return [text for text in texts if text]


def _about(findings: RunSummary, runs: Sequence[RunSummary]) -> str:
    """What was done, and what a reader asks of every result: when, on which data, by which version, what for."""
    facts = findings.facts
    about = (
        f"{_prefix(findings, runs)}{facts.method} under the plan {facts.plan}: {facts.clients:,} clients, "
        f"{findings.rounds_done:,} rounds, {100 * facts.rate:.3g}% of the clients asked in a round. "
        f"{findings.devices or ''}"
    )
    return f'<p class="quiet">{escape(about.rstrip())}</p>{facts_of(origin(findings))}'


def origin(findings: RunSummary) -> dict[str, str]:
    """When it was run, on which data, by which version, what for."""
    config, environment = tomllib.loads(findings.config), findings.environment
    data = config.get("data", {})
    source = data.get("source") or data.get("name") or "given in Python"
    return {
        "Date": str(environment.get("date", "not recorded")),
        "Data": f"{source}, partition {data['partition']}" if "partition" in data else str(source),
        "Version": f"Tacit {environment.get('versions', {}).get('tacit-fl') or 'unknown'}",
        "Purpose": str(config.get("purpose", "not stated")),
    }


def _prefix(findings: RunSummary, runs: Sequence[RunSummary]) -> str:
    return f"{findings.title}: " if len(runs) > 1 else ""


def _guarantees(runs: Sequence[RunSummary], legend: Legend) -> Iterator[str]:
    simulated = next(filter(None, (wording.simulation(findings.facts) for findings in runs)), "")
    yield f"<h2>What each group is guaranteed{mark(simulated)}</h2>"
    for findings in runs:
        if len(runs) > 1:
            yield f'<p style="margin:18px 0 0">{dot(legend.colors[findings.title])}{escape(findings.title)}</p>'
        held = [promise for promise in findings.facts.promises if promise.clients and findings.facts.shares]
        cards = "".join(_card(findings, promise, legend) for promise in held)
        yield f'<div class="cards">{cards}</div>' if cards else ""
        yield from map(_note, [wording.whole(findings.facts, findings.epsilons), *findings.facts.notes])
    yield _note(wording.PERSONAL)


def _note(line: str) -> str:
    return f'<p class="note" style="margin:12px 0 0">{escape(wording.as_sentence(line))}</p>'


def _card(findings: RunSummary, promise: Promise, legend: Legend) -> str:
    spent, facts = findings.epsilons.get(promise.level), findings.facts
    text = wording.as_sentence(wording.sentence(promise, facts, spent).removeprefix(f"{promise.level}: "))
    risk = None if findings.spending is None else findings.spending.risk(promise.level)
    protected = promise.standing == "protected"
    return Card(
        promise.level,
        wording.headline(promise, spent),
        f"{wording.terms(promise, facts, spent)}{promise.clients:,} clients",
        f"{text} In words: {risk.words}" if risk is not None and spent and protected else text,
        _LOOK.get(promise.standing, ""),
        SIMULATION if protected else "",
        legend.colors.get(promise.level) or legend.colors.get(findings.title, NEUTRAL),
    ).html()


def _figures(runs: Sequence[RunSummary], legend: Legend) -> str:
    named = len(runs) > 1
    heads = [*(["run"] if named else []), "level", "clients", "guarantee", "epsilon spent", *_HEADS]
    numeric = {"clients", *_HEADS}
    head = "".join(f'<th class="{"n" if name in numeric else "name"}">{name}</th>' for name in heads)
    rows = [row for findings in runs for row in _rows(findings, named, legend)]
    common = [(f, value) for f in runs if (value := f.value(ALL, "common")) is not None]
    shared = "; ".join(f"{_prefix(f, runs)}{value:.3f}" for f, value in common)
    note = f"The shared model on the common test set: {shared}." if common else ""
    rounds = sorted({findings.last for findings in runs})
    measure = ", ".join(dict.fromkeys(findings.measure for findings in runs))
    at = f"{measure} after round {rounds[0]}" if len(rounds) == 1 else f"{measure} after the last evaluated round"
    at = f"No {measure[:1].lower()}{measure[1:]} was measured yet" if rounds == [0] else at
    note = " ".join([note, *(f"{_prefix(f, runs)}{f.further}" for f in runs if f.further)]).strip()
    late = " Epsilon is that of the last round in the ledger." if any(findings.timing for findings in runs) else ""
    return (
        f'<h2>{escape(measure)}{mark(MEASURED)}</h2><p class="note">{escape(at)}, each client on its own test rows.'
        f"{late} {escape(note)}"
        " Worst decile: mean over the worst tenth of the clients. Variance: over clients, of their figures.</p>"
        f"{scroll(f'{measure} and privacy by level', head, rows)}"
    )


def _rows(findings: RunSummary, named: bool, legend: Legend) -> Iterator[str]:
    facts, first = findings.facts, True
    for place, name in findings.groups():
        promise = next((each for each in facts.promises if label(each.level) == place), None)
        clients = facts.clients if promise is None else promise.clients
        kind = "" if promise is None else wording.guarantee(promise, facts)
        spent = "" if promise is None else wording.spent(promise, findings.epsilons.get(name))
        figures = [findings.value(place, metric) for metric in _METRICS]
        cells = "".join(f'<td class="n">{"-" if value is None else f"{value:.3f}"}</td>' for value in figures)
        bare = "bare" if promise is not None and _LOOK.get(promise.standing) == "bare" else ""
        run = f'<td class="name">{dot(legend.colors[findings.title])}{escape(findings.title)}</td>' if named else ""
        color = "" if named else dot(legend.colors.get(name, NEUTRAL))
        style = " ".join(["sum"] * (promise is None) + ["first"] * (first and named))
        yield (
            f'<tr class="{style}">{run}<td class="name">{color}{escape(name)}</td><td class="n">{clients:,}</td>'
            f'<td class="{bare}">{escape(kind)}</td><td class="{bare}">{escape(spent)}</td>{cells}</tr>'
        )
        first = False


def _legend(legend: Legend) -> str:
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-group="{escape(name)}">{dot(color)}{escape(name)}</button>'
        for name, color in legend.colors.items()
    )
    return f'<nav class="legend" aria-label="shown in the charts">Show: {buttons}</nav>'


def _ledger(runs: Sequence[RunSummary]) -> str:
    parts = [
        "<h2>Ledger</h2>",
        '<p class="note">Every charge, made before its release, replayed by the accountant.</p>',
    ]
    for findings in runs:
        lines = sorted(findings.statement, key=lambda line: -line.epsilon)
        parts.append(f"<h3>{escape(findings.title)}</h3>" if len(runs) > 1 else "")
        if not lines:
            parts.append("<p>Nothing was charged.</p>")
            continue
        head = '<th>account</th><th class="n">rounds charged</th><th class="n">budget</th><th>spent</th>'
        parts.append(scroll(f"ledger of {findings.title}", head, [_ledger_row(line) for line in lines[:_LEDGER_LINES]]))
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


def _small_print(runs: Sequence[RunSummary]) -> str:
    parts = ["<h2>How it was run</h2>"]
    for findings in runs:
        about = json.dumps(dict(findings.environment), indent=2)
        for name, text in (("configuration", findings.config), ("environment", about)):
            summary = escape(f"{_prefix(findings, runs)}{name}")
            parts.append(f'<details><summary>{summary}</summary><pre tabindex="0">{escape(text)}</pre></details>')
    return "".join(parts)


__all__ = ["open_all", "places", "tell", "write_html", "write_png"]


def open_all(paths: Sequence[Path]) -> list[RunSummary]:
    """The runs in these folders, each under a title of its own."""
    runs = [open_run(path) for path in paths]
    titles = [findings.title for findings in runs]
    if len(set(titles)) < len(titles):
        twice = next(title for title in titles if titles.count(title) > 1)
        raise TacitError(f"two of the runs are called '{twice}': give each run once, or rename one of the folders")
    return runs


def tell(runs: Sequence[RunSummary]) -> Iterator[RenderableType]:
    """What a terminal shows: tables, guarantees in words, and whatever a reader must be warned of."""
    yield comparison(runs) if len(runs) > 1 else level_table(runs[0])
    for findings in runs:
        if len(runs) > 1:
            yield f"\n{findings.title}"
        yield from findings.lines()


def places(paths: Sequence[Path]) -> tuple[Path, Path]:
    """Where page and image go by default: into the run's folder, or for several beside the first."""
    if len(paths) == 1:
        return paths[0] / "report.html", paths[0] / "report.png"
    return paths[0].parent / "comparison.html", paths[0].parent / "comparison.png"


def write_html(runs: Sequence[RunSummary], path: Path) -> Path:
    """One file that needs no other and no network."""
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, page(runs).encode())
    return path


def write_png(runs: Sequence[RunSummary], path: Path) -> Path:
    """All figures in one image; those of simulation only are marked."""
    nothing = Figure("nothing", "", [Panel("nothing was evaluated yet", "round", "")])
    return write_image(figures(runs) or [nothing], path)
