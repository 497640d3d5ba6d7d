"""The server's note of the turn it is in, durable before clients are asked."""

import json
from dataclasses import dataclass
from pathlib import Path

from tacit.core.files import write_atomically
from tacit.privacy.ledger.ledger import Ledger


@dataclass
class TurnJournal:
    """The last turn: durable before its charge. `released`: the server was about to make a release of it.

    `fresh`: noise is fresh, so that a repeated round is a new turn with a new charge; else a turn is its round.
    `repeats`: a turn of which nothing was released may be asked again all the same: the server is trusted with uploads.
    `evaluated`: all turns that were for evaluations. One that was interrupted is not repeated. `head`: of the ledger.
    """

    path: Path | None
    ledger: Ledger
    fresh: bool = True
    repeats: bool = False
    turn: int = -1
    round: int = -1
    released: bool = False
    evaluated: tuple[int, ...] = ()
    head: str = ""

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            self.turn, self.round, self.released, evaluated, self.head = json.loads(self.path.read_text())
            self.evaluated = tuple(evaluated)

    def next_turn(self, round: int) -> int:
        if not self.fresh:
            return round
        again = self.repeats and self.round == round and not self.released
        return self.turn if again else self.new_turn()

    def new_turn(self) -> int:
        """One that nobody was asked in or charged for."""
        return max(self.turn, self.ledger.rounds()) + 1

    def begin(self, turn: int, round: int) -> None:
        self._write(turn, round, False)

    def release(self, turn: int, round: int) -> None:
        self._write(turn, round, True)

    def evaluate(self, turn: int, round: int) -> None:
        """Notes the turn of an evaluation, before its charge."""
        self.evaluated = (*self.evaluated, turn)
        self._write(turn, round, True)

    def _write(self, turn: int, round: int, released: bool) -> None:
        self.turn, self.round, self.released, self.head = turn, round, released, str(self.ledger.head())
        if self.path is not None:
            content = [turn, round, released, self.evaluated, self.head]
            write_atomically(self.path, json.dumps(content).encode())
