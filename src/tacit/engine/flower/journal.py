"""The server's note of the turn it is in, durable before clients are asked."""

import json
from dataclasses import dataclass
from pathlib import Path

from tacit.engine import checkpoint


@dataclass
class Journal:
    """The last turn: durable before its charge. `seen`: the server was about to make a release of it.

    `evaluated`: all turns that were for evaluations. One that was interrupted is not repeated.
    """

    path: Path | None
    turn: int = -1
    round: int = -1
    seen: bool = False
    evaluated: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.turn, self.round, self.seen, self.evaluated = json.loads(self.path.read_text())
            self.evaluated = tuple(self.evaluated)

    def write(self, turn: int, round: int, seen: bool) -> None:
        self.turn, self.round, self.seen = turn, round, seen
        if self.path is not None:
            content = [turn, round, seen, self.evaluated]
            checkpoint.write_atomically(self.path, json.dumps(content).encode())

    def evaluating(self, turn: int, round: int) -> None:
        self.evaluated = (*self.evaluated, turn)
        self.write(turn, round, True)
