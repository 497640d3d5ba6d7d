"""The same task under every trust model: what "Which trust model do I need?" shows."""

from typing import Final

from papers.bench import Reproduction, Runner
from papers.page import Part
from papers.privatefl.cell import ALONE
from papers.privatefl.distributed import CENTRAL, SHARES, TUNED
from papers.privatefl.recipe import CLIP, CLIP_SCALED, LAYER, Arm
from papers.privatefl.tuned import CLIP_RECORD
from papers.privatefl.views import WAYS, Line, Row, run, settings, table

EIGHTEEN: Final = {**SHARES.privacy, "bits": 18}
CLIENTS: Final = (
    Line("Central: the server is trusted", CLIP, CENTRAL, TUNED),
    Line("Distributed, epsilon against readers", CLIP, SHARES.changed(privacy=EIGHTEEN), TUNED),
    Line(
        "Distributed, epsilon against the server",
        CLIP,
        SHARES.changed(privacy={**EIGHTEEN, "budget": "server"}),
        TUNED,
    ),
)
RECORDS: Final = (Line("Record: nobody is trusted", CLIP_SCALED, Arm("record", 8.0, transform=LAYER), CLIP_RECORD),)
NONE: Final = (Line("training alone: nothing leaves", CLIP, ALONE, TUNED),)


def make(bench: Runner) -> list[Part]:
    clients, records, alone = (run(bench, lines) for lines in (CLIENTS, RECORDS, NONE))
    return [
        WAYS,
        table("What is hidden is a client: epsilon 8, delta 1e-3, client-level", clients),
        table("What is hidden is one record of a client: epsilon 8, delta 1e-3, record-level", records),
        table("Without a federation", alone),
        *_told(clients),
        settings([*clients, *records, *alone]),
    ]


def _told(rows: list[Row]) -> list[Part]:
    """What each plan says of itself."""
    return [f"{row.line.name}: {'; '.join(row.cells[0]['notes'])}." for row in rows if row.cells[0]["notes"]]


REPRODUCTION: Final = Reproduction(
    "privatefl/trust-models",
    "One task under every trust model",
    "CLIP features of CIFAR-10, 100 clients of two classes, a personal transform and a shared linear head.",
    make,
    seeds=2,
    cells="privatefl",
)
