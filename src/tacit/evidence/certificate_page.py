"""A certificate as a page for people, and as a section of a model card. Made from the JSON alone, anywhere."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from tacit.evidence.signing import digest, fingerprint
from tacit.privacy.ledger.statement import SIMULATION
from tacit.report.figures import NEUTRAL, PALETTE, Figure, Panel, Series
from tacit.report.page import Card, Look, Table, document, sections


def page(content: Mapping[str, Any]) -> str:
    """The whole page."""
    run = content["run"]
    head = (
        f"<header><h1>Privacy certificate: {escape(run['name'])}</h1><p class='quiet'>{escape(run['method'])} under "
        f"the plan {escape(run['plan'])}: {run['clients']:,} clients, {run['rounds']['charged']:,} rounds charged; "
        f"certified on {escape(run['certified'])}, Tacit {escape(run['version'])}.</p>{_alert(run)}</header>"
    )
    mark = SIMULATION if run["kind"] == "simulation" else ""
    cards = "".join(_card(entry, mark).html() for entry in content["guarantees"])
    body = [
        head,
        f'<h2>What was promised</h2><div class="cards">{cards}</div>',
        sections([_curve(content)]) if _protected(content) else "",
        _list("What is not covered", content["not_covered"]),
        _questions(content),
        _figures(content).html(),
        Table(
            "By the factors of NIST SP 800-226", ("factor", "answer"), list(content["nist_sp_800_226"].items()), "", 2
        ).html(),
        Table("What it is bound to", ("what", "SHA-256"), list(_bound(content)), "", 2).html(),
        Table("Signatures", ("who", "key"), list(_signatures(content)), _how(), 2).html(),
    ]
    return document(f"Privacy certificate: {run['name']}", "".join(body))


def model_card(content: Mapping[str, Any]) -> str:
    """A section for the README.md of a model on a hub, with what it needs to be checked."""
    lines = [
        f"- **{entry['level']}** ({entry['clients']:,} clients): {entry['words']}" for entry in content["guarantees"]
    ]
    bare = [f"- {text}" for text in content["not_covered"]]
    return "\n".join(
        [
            "## Privacy",
            "",
            *lines,
            "",
            "Not covered:",
            "",
            *bare,
            "",
            f"Certificate `{digest(content)}`, ledger head `{content['hashes']['ledger_head']}`. To check it: "
            "`tacit verify certificate.json --ledger ledger.sqlite --models .`",
            "",
        ]
    )


def _alert(run: Mapping[str, Any]) -> str:
    if run["kind"] != "simulation":
        return ""
    return (
        '<p class="alert">This run was a simulation: its noise can be drawn again from a seed, so that nobody is '
        "protected by it. The figures are those that the same run would have as a federation.</p>"
    )


def _protected(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [entry for entry in content["guarantees"] if entry["epsilon"] is not None]


def _card(entry: Mapping[str, Any], mark: str) -> Card:
    bare = entry["epsilon"] is None
    look: Look = "bare" if entry["standing"] in ("opted out", "no noise") else "" if bare else "guaranteed"
    figure = "no guarantee" if look == "bare" else entry["standing"] if bare else f"epsilon {_up(entry['epsilon'])}"
    terms = (
        ""
        if bare
        else f"{entry['unit']}-level, {entry['relation']}, delta {entry['delta']:g}, {entry['accountant'].upper()}; "
    )
    return Card(
        entry["level"], figure, f"{terms}{entry['clients']:,} clients", entry["words"], look, "" if bare else mark
    )


def _curve(content: Mapping[str, Any]) -> Figure:
    lines = [
        Series(entry["level"], *zip(*entry["trade_off"], strict=True), PALETTE[at % len(PALETTE)])  # type: ignore[arg-type]
        for at, entry in enumerate(_protected(content))
    ]
    guess = Series("guessing", [0, 1], [1, 0], NEUTRAL, style="dash", width=1.2)
    unit = content["run"]["unit"]
    note = (
        f"Whoever asks whether a {unit} took part raises false alarms and misses some. No attack lies below the line; "
        "the nearer it is to guessing, the less can be learned."
    )
    panel = Panel("", "false alarms", f"{unit}s missed", [guess, *lines], x_range=(0, 1), y_range=(0, 1.03))
    return Figure("trade-off", note, [panel], "What an attacker gets at most")


def _figures(content: Mapping[str, Any]) -> Table:
    heads = ("level", "epsilon", "second accountant", "mu", "regret", "advantage", "found at 1% false alarms")
    rows = [
        (
            entry["level"],
            f"{_up(entry['epsilon'])} at delta {entry['delta']:g}",
            _up(entry["second_epsilon"]),
            _up(entry["mu"]),
            f"{entry['regret']:.3f}",
            f"{100 * entry['advantage']:.1f}%",
            f"{100 * entry['found_at_1_percent_false_alarms']:.1f}%",
        )
        for entry in _protected(content)
    ]
    note = (
        "mu: telling a draw of a Gaussian from the same moved by mu is easier than telling whether somebody took part. "
        "Regret: how far that Gaussian's curve is from the one above. Where clients have accounts of their own, the "
        "figures are those of the one that spent most."
    )
    return Table("All figures", heads, rows, note)


def _questions(content: Mapping[str, Any]) -> str:
    parts = "".join(
        f"<dt><strong>{at}. {escape(each['question'])}</strong></dt>"
        f"<dd style='margin:0 0 12px'>{escape(each['answer'])}</dd>"
        for at, each in enumerate(content["questions"], 1)
    )
    return f"<section><h2>Twelve questions</h2><dl>{parts}</dl></section>"


def _list(title: str, items: list[str]) -> str:
    return (
        f"<section><h2>{escape(title)}</h2><ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul></section>"
    )


def _bound(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    hashes = content["hashes"]
    yield "ledger: rows and last hash", _breakable(hashes["ledger_head"])
    yield from ((name, _breakable(value)) for name, value in hashes["files"].items())
    yield "code", _breakable(hashes["code"])
    for release in content["releases"]:
        yield f"{release['what']} after round {release['round']}", f"{len(release['tensors'])} tensors, a hash each"


def _breakable(text: str) -> str:
    """In groups, so that a narrow page can break it."""
    return " ".join(text[at : at + 16] for at in range(0, len(text), 16))


def _signatures(content: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    signature = content.get("signature")
    yield "issuer", "not signed" if signature is None else fingerprint(signature["key"])
    for each in content["countersignatures"]:
        yield f"member {each['saw']['member']}", fingerprint(each["key"])


def _how() -> str:
    return "tacit verify certificate.json --ledger ledger.sqlite --models FOLDER --key FINGERPRINT checks all of it."


def _up(value: float | None) -> str:
    from math import ceil

    return "none" if value is None else f"{ceil(value * 1000 - 1e-6) / 1000:.3f}"
