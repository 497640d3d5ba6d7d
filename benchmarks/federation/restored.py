"""Files that were restored, lost or edited: every attack is refused or found, and nothing is released uncharged.

    restored server    the server's folder goes back to a copy, while members have seen more
    restored member    a member's folder goes back to a copy, while the server has seen more
    lost custody       a member keeps its ledger and loses the rest; a lying server asks for old turns again
    lost ledger        the other way round: a member's account would start anew
    edited ledger      a smaller charge in the place of a larger one, in a member's ledger and in the server's
    shortened ledger   the last rows are taken off together with their hashes
    hostile head       a member claims to have seen what never was, to stop the server

Clients are those of a deployment, each with its folder, called one after the other: what is attacked are files, and
messages that a server can send. `--loopback` runs the first attack once more with Flower, TLS and processes.
"""

import argparse
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.federation.worlds import World, config_of, federation, note, noted
from tacit.errors import TacitError
from tacit.federation.protocol.messages import Answer, Arrived, Ask, pack, unpack
from tacit.federation.protocol.server import FederationServer
from tacit.federation.service import experiment
from tacit.federation.service.client_dir import ClientFolder
from tacit.federation.service.server_dir import ServerFolder, Settings
from tacit.report.verify import verify

ROUNDS = 12
VICTIM = "1"


@dataclass
class Direct:
    """A transport that calls the clients of the homes."""

    homes: Mapping[str, ClientFolder]
    asked: list[tuple[str, Ask]] = field(default_factory=list)
    released: int = 0
    tamper: Callable[[str, Answer], Answer] = lambda _, answer: answer

    def ask(self, asks: Mapping[str, bytes], seconds: float) -> Iterator[tuple[str, Arrived]]:
        for name, blob in asks.items():
            self.asked.append((name, unpack(Ask, blob)))
            yield name, pack(self.tamper(name, unpack(Answer, self.homes[name].client().answer(blob))))


@dataclass
class Scene:
    """A federation in a folder: homes of members, and the run_folder of a server."""

    folder: Path
    plan: str

    def __post_init__(self) -> None:
        world = World(config_of("fedavg", self.plan, rounds=ROUNDS, rate=1.0), fresh=True)
        self.homes, seats = {}, []
        plain = world.config.model_copy(update={"choices": {}})
        for agreement, rows in world.agreements():
            home = self.homes[agreement.name] = ClientFolder(self.folder / agreement.name)
            home.settle(agreement, rows)
            seats.append(experiment.seat(plain, agreement.name, agreement.level, len(rows.x), ""))
        self.terms = world.offer.terms("restored", tuple(seats))
        self.run_folder, self.wire = ServerFolder(self.folder / "server"), Direct(self.homes)
        self.run_folder.open(self.terms, {}, Settings(60.0, True))

    def go(self, steps: int) -> list[Any]:
        """So many rounds of a server that goes on from its files; then its process ends."""
        with self.run_folder.ledger() as ledger:
            conductor: FederationServer = self.run_folder.server(self.wire, ledger)
            return [conductor.step() for _ in range(steps)]

    def copy(self, name: str) -> None:
        shutil.copytree(self.folder / name, self.folder / f"copy-{name}", dirs_exist_ok=True)

    def restore(self, name: str) -> None:
        shutil.rmtree(self.folder / name)
        shutil.copytree(self.folder / f"copy-{name}", self.folder / name)

    def failures(self, name: str, *others: str) -> list[str]:
        found = verify(self.folder / name, [self.folder / other for other in others])
        return [check.text for check in found if check.passed is False]


def restored_server(scene: Scene) -> str:
    scene.go(2)
    scene.copy("server")
    scene.go(3)
    scene.restore("server")
    return _refused(lambda: scene.go(1), "restored from an older copy")


def restored_member(scene: Scene) -> str:
    scene.go(1)
    scene.copy(VICTIM)
    scene.go(1)
    scene.restore(VICTIM)
    return _dropped(scene, "ledger")


def lost_custody(scene: Scene) -> str:
    scene.go(2)
    (scene.folder / VICTIM / "custody.sqlite").unlink()
    old = [ask for name, ask in scene.wire.asked if name == VICTIM and ask.kind == "train"]
    asks = [*old, replace(old[-1], round=2, turn=2, charged=(0, 1, 2))]
    answers = [unpack(Answer, scene.homes[VICTIM].client().answer(pack(ask))) for ask in asks]
    return _all(all(not answer.tensors and answer.refused for answer in answers), "refused")


def lost_ledger(scene: Scene) -> str:
    scene.go(2)
    (scene.folder / VICTIM / "ledger.sqlite").unlink()
    return _dropped(scene, "ledger")


def edited_ledger(scene: Scene) -> str:
    scene.go(2)
    for name in (VICTIM, "server"):
        _edit(scene.folder / name / "ledger.sqlite", "UPDATE charges SET event = replace(event, '1.', '9.')")
    seen = [scene.failures(name) for name in (VICTIM, "server")]
    return _all(all(seen) and _refused(lambda: scene.go(1), "was changed") == "refused", "found")


def shortened_ledger(scene: Scene) -> str:
    scene.go(3)
    for name in (VICTIM, "server"):
        _shorten(scene.folder / name / "ledger.sqlite")
    alone = [scene.failures(VICTIM, "server"), scene.failures("server", VICTIM)]
    return _all(all(any("shortened" in line for line in each) for each in alone), "found")


def hostile_head(scene: Scene) -> str:
    def lie(name: str, answer: Answer) -> Answer:
        return replace(answer, seen=f"9 999:{'ab' * 32} {'cd' * 32}") if name == VICTIM else answer

    scene.wire.tamper = lie
    told = scene.go(2) + scene.go(2)
    return _all(len(told) == 4 and all(each.cohort == len(scene.homes) for each in told), "refused")


ATTACKS: dict[str, tuple[str, Callable[[Scene], str]]] = {
    "restored server, central": ("central", restored_server),
    "restored server, local": ("local", restored_server),
    "restored member": ("local", restored_member),
    "lost custody": ("local", lost_custody),
    "lost ledger": ("local", lost_ledger),
    "edited ledger": ("local", edited_ledger),
    "shortened ledger": ("local", shortened_ledger),
    "hostile head": ("central", hostile_head),
}


def _refused(attack: Callable[[], Any], reason: str) -> str:
    try:
        attack()
    except TacitError as error:
        return _all(reason in str(error), "refused")
    return "NOT REFUSED"


def _dropped(scene: Scene, reason: str) -> str:
    (told,) = scene.go(1)
    return _all(told.cohort == len(scene.homes) - 1 and told.refused == {reason: 1}, "refused")


def _all(good: bool, word: str) -> str:
    return word if good else f"NOT {word.upper()}"


def _edit(path: Path, *statements: str) -> None:
    """With a database browser: the guards away, rows changed, the guards back."""
    with closing(sqlite3.connect(path)) as db, db:
        guards = db.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for sql in (*(f"DROP TRIGGER {name}" for name, _ in guards), *statements, *(sql for _, sql in guards)):
            db.execute(sql)


def _shorten(path: Path) -> None:
    tables = ("charges", "heads", "answers", "scopes", "budgets")
    last = "(SELECT COALESCE(MAX(last), -1) FROM chain WHERE source = '{0}')"
    _edit(
        path,
        "DELETE FROM chain WHERE serial > (SELECT serial FROM chain ORDER BY serial DESC LIMIT 1 OFFSET 4)",
        *(f"DELETE FROM {table} WHERE rowid > {last.format(table)}" for table in tables),
    )


def on_loopback(folder: Path) -> str:
    """The first attack with everything that a real federation has."""
    world = World(config_of("fedavg", "central", rounds=5, rate=1.0), fresh=True)
    with federation(folder, world) as fed:
        run_folder = world.run_folder(folder / "runs", "restored", fed)
        copy = folder / "copy"

        def watch() -> None:
            fed.revive()
            if len(run_folder.told()) >= 2 and not copy.exists():
                _copy_alive(run_folder.folder, copy)

        fed.site.conduct([run_folder], 600, watch)
        shutil.rmtree(run_folder.folder)
        shutil.copytree(copy, run_folder.folder)
        before = len(run_folder.told())
        answer = _refused(lambda: fed.site.conduct([run_folder], 600, fed.revive), "restored from an older copy")
        return answer if len(run_folder.told()) == before else "NOT REFUSED"


def _copy_alive(folder: Path, copy: Path) -> None:
    """A copy of a server that runs: the ledger last, so that it holds what the other files know."""
    part = copy.with_name("part")
    shutil.copytree(folder, part, ignore=shutil.ignore_patterns("ledger.sqlite*", "*.part"))
    with (
        closing(sqlite3.connect(folder / "ledger.sqlite")) as db,
        closing(sqlite3.connect(part / "ledger.sqlite")) as to,
    ):
        db.backup(to)
    part.rename(copy)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.restored", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("runs/federation/restored.json"))
    parser.add_argument("--loopback", action="store_true")
    options = parser.parse_args()
    for name, (plan, attack) in ATTACKS.items():
        if name not in noted(options.results):
            with tempfile.TemporaryDirectory(prefix="tacit-restored-") as folder:
                note(options.results, name, attack(Scene(Path(folder), plan)))
    if options.loopback and "restored server, on loopback" not in noted(options.results):
        with tempfile.TemporaryDirectory(prefix="tacit-restored-") as folder:
            note(options.results, "restored server, on loopback", on_loopback(Path(folder)))
    if any("NOT" in end for end in noted(options.results).values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
