"""A server that lies and a member's folder as `tacit join` leaves it, in one process: what becomes of each lie."""

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.federation.worlds import note
from tacit.experiments.config import parse
from tacit.federation.protocol.messages import Answer, Ask, pack, unpack
from tacit.federation.protocol.terms import Participant, Rows, Terms
from tacit.federation.service import experiment
from tacit.federation.service.client_dir import Agreement, ClientFolder, Demands, Offer
from tacit.federation.service.tls import make_node_key

NAME, LEVEL, INPUTS, CLASSES, NODES = "ward-7", "private", (6,), 5, 5
LATE = 10**6  # a turn that no run has: a member that accepts the terms says "round", and nothing is charged
Attacks = Callable[[Path], Mapping[str, str]]


def text(privacy: Mapping[str, Any], **more: Any) -> str:
    """An experiment as an honest server writes it."""
    content = {
        "rounds": 4,
        "rate": 1.0,
        "batch": 4,
        "model": {"name": "softmax"},
        "privacy": dict(privacy),
        "levels": {LEVEL: {"epsilon": 8.0, "delta": 1e-3}},
    }
    return experiment.text_of(parse(content | more))


def joined(folder: Path, offer: Offer, rows: Rows, demands: Demands | None = None) -> ClientFolder:
    """The folder of a member that has joined."""
    home = ClientFolder(folder)
    home.settle((demands or Demands()).made(Agreement.to(offer, NAME, LEVEL)), rows)
    make_node_key(folder / "node.key")
    return home


def offered(experiment: str) -> Offer:
    return Offer(experiment, INPUTS, CLASSES, NODES)


def some_rows(several: int, labels: int = CLASSES) -> Rows:
    draw = torch.Generator().manual_seed(several)
    x, y = torch.randn(several, *INPUTS, generator=draw), torch.arange(several) % labels
    return Rows(x, y, x[:0], y[:0])


def roster(home: ClientFolder, others: Mapping[str, str], rows: int = 0) -> tuple[Participant, ...]:
    """The member beside others, who all have as many rows."""
    own = make_node_key(home.folder / "node.key").decode()
    return tuple(Participant(name, LEVEL, rows, key) for name, key in ({NAME: own} | dict(others)).items())


def keys(folder: Path, names: list[str]) -> dict[str, str]:
    folder.mkdir(parents=True, exist_ok=True)
    return {name: make_node_key(folder / f"{name}.key").decode() for name in names}


def answered(home: ClientFolder, terms: Terms, turn: int = LATE) -> Answer:
    """What the member says to a request under these terms."""
    ask = Ask(terms.run, "train", 0, turn, terms.text())
    return unpack(Answer, home.client().answer(pack(ask)))


def verdict(answer: Answer) -> str:
    """ "refused" if it is for the terms: the member goes on to the next check, of the turn, if it accepts them."""
    return "refused" if answer.refused == "terms" and not answer.tensors else f"LET IN ({answer.refused})"


def accepted(answer: Answer) -> str:
    """The same for what an honest server asks."""
    return "taken" if answer.refused == "round" else f"NOT TAKEN ({answer.refused})"


def run(attacks: Attacks, doc: str | None, name: str) -> None:
    """A script's main: what came of each attack goes to the results, and is printed."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.federation.{name}", description=doc)
    parser.add_argument("--results", type=Path, default=Path("runs/federation/liar.json"))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tacit-liar-") as folder:
        for what, became in attacks(Path(folder)).items():
            note(options.results, what, became)
