"""The server's note of the turn it is in, durable before clients are asked."""

import json
from dataclasses import dataclass
from pathlib import Path

from tacit.core.files import write_atomically
from tacit.privacy.ledger.chain import Head


@dataclass
class Journal:
    """The last turn: durable before its charge. `seen`: the server was about to make a release of it.

    `evaluated`: all turns that were for evaluations. One that was interrupted is not repeated. `head`: of the ledger.
    """

    path: Path | None
    turn: int = -1
    round: int = -1
    seen: bool = False
    evaluated: tuple[int, ...] = ()
    head: str = ""

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.turn, self.round, self.seen, evaluated, *head = json.loads(self.path.read_text())
            self.evaluated, self.head = tuple(evaluated), head[0] if head else ""

    def write(self, turn: int, round: int, seen: bool, head: Head) -> None:
        self.turn, self.round, self.seen, self.head = turn, round, seen, str(head)
        if self.path is not None:
            content = [turn, round, seen, self.evaluated, self.head]
            write_atomically(self.path, json.dumps(content).encode())

    def evaluating(self, turn: int, round: int, head: Head) -> None:
        self.evaluated = (*self.evaluated, turn)
        self.write(turn, round, True, head)
