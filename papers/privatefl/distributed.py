"""Noise in shares beside a trusted server's, at the same epsilon of the released models, over the width of integers.

And what encoding costs."""

from dataclasses import replace
from typing import Final

from papers.bench import Reproduction, Runner
from papers.page import COLORS, Curve, Panel, Part, Picture, Results
from papers.privatefl import encoding
from papers.privatefl.recipe import CLIP, LAYER, RELEASED, Arm
from papers.privatefl.tuned import CLIP_CENTRAL
from papers.privatefl.views import Line, Row, run
from tacit.errors import TacitError

BITS: Final = (8, 10, 12, 14, 16, 18, 20)
ALLOWED: Final = 0.01  # at 18 bits
TUNED: Final = replace(CLIP_CENTRAL, rate=0.5)
CENTRAL: Final = Arm("central", 8.0, transform=LAYER)
SHARES: Final = Arm("distributed", 8.0, transform=LAYER, privacy=RELEASED)


def make(bench: Runner) -> list[Part]:
    (central,) = run(bench, [Line("a trusted server", CLIP, CENTRAL, TUNED)])
    found = {bits: _row(bench, bits) for bits in BITS}
    done = {bits: row for bits, row in found.items() if isinstance(row, Row)}
    rows = [["a trusted server", *_figures(central, central), ""]]
    for bits, row in found.items():
        shown = [*_figures(row, central), _noise(row)] if isinstance(row, Row) else ["refused", "", "", "", row]
        rows.append([f"shares, {bits} bits", *shown])
    heads = ["", "(a) own", "difference", "(b) whole", "difference", "noise beside a trusted server's (std)"]
    accuracy = [Results("Accuracy over bits", heads, rows), _judge(done, central), _picture(done, central)]
    return [_SETTING, *accuracy, *encoding.parts(bench)]


def _row(bench: Runner, bits: int) -> Row | str:
    """A row, or why so few bits are refused."""
    arm = SHARES.changed(privacy={**SHARES.privacy, "bits": bits})
    try:
        return run(bench, [Line(f"{bits} bits", CLIP, arm, TUNED)])[0]
    except TacitError as error:
        return str(error)


def _figures(row: Row, central: Row) -> list[str]:
    pairs = [(row.text(name), f"{row.mean(name) - central.mean(name):+.3f}") for name in ("own", "whole")]
    return [text for pair in pairs for text in pair]


def _noise(row: Row) -> str:
    said = next((note for note in row.cells[0]["notes"] if "times the noise" in note), "")
    return said.removeprefix("the mean has ").partition(" times")[0]


def _judge(done: dict[int, Row], central: Row) -> str:
    if 18 not in done:
        return "At 18 bits: refused, target NOT met."
    gaps = {name: done[18].mean(name) - central.mean(name) for name in ("own", "whole")}
    kept = all(gap >= -ALLOWED for gap in gaps.values())
    said = ", ".join(f"{100 * gap:+.2f} points in '{name}'" for name, gap in gaps.items())
    return f"At 18 bits: {said}; target: at most one point below the server's noise: {'met' if kept else 'NOT met'}."


def _picture(done: dict[int, Row], central: Row) -> Picture:
    bits = [float(each) for each in done]
    curves = []
    for at, (name, title) in enumerate((("own", "(a) own model"), ("whole", "(b) shared model"))):
        curves.append(Curve(f"{title}, shares", bits, [row.mean(name) for row in done.values()], COLORS[at]))
        curves.append(Curve(f"{title}, server", bits, [central.mean(name)] * len(bits), COLORS[at], style="dot"))
    return Picture("bits", "Accuracy over the width of the integers.", [Panel("", "bits", "accuracy", curves)])


_SETTING: Final = """CLIP features of CIFAR-10, 100 clients of two classes, each asked with probability 1/2 in each of
20 rounds, with the transform. Client-level epsilon 8 at delta 1e-3 against those who see only the released models, for
both: a trusted server's Gaussian noise (add/remove, PLD), and Skellam noise in shares on integers (zero-out, RDP),
whose figure against the server is charged beside it. (a): each client's own model, its transform included, on test rows
of its own classes; (b): the shared model, transforms reset, on the whole test set."""

REPRODUCTION: Final = Reproduction(
    "privatefl/distributed",
    "Noise in shares beside a trusted server's",
    "PrivateFL, Algorithm 3, corrected; bits from 8 to 20.",
    make,
    seeds=2,
    cells="privatefl",
)
