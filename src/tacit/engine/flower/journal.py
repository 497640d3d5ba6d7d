"""The server's note of the turn it is in, durable before clients are asked."""

import json
from dataclasses import dataclass
from pathlib import Path

from tacit.engine import checkpoint


@dataclass
class Journal:
    """The last turn: durable before its charge. `seen`: the server was about to make a release of it."""

    path: Path | None
    turn: int = -1
    round: int = -1
    seen: bool = False

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.turn, self.round, self.seen = json.loads(self.path.read_text())

    def write(self, turn: int, round: int, seen: bool) -> None:
        self.turn, self.round, self.seen = turn, round, seen
        if self.path is not None:
            checkpoint.write_atomically(self.path, json.dumps([turn, round, seen]).encode())
