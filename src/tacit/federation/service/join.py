# pyright: reportMissingImports=false
"""`tacit join` and `tacit leave`: a client's side, for the one who owns the data.

`tacit members`: who the members of a federation are, as one side knows them, and what a member lets be changed.
"""

import json
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from rich.console import Console

from tacit.core.files import write_atomically
from tacit.errors import TacitError
from tacit.federation.flower.processes import Node
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.service.client_dir import Agreement, ClientFolder, Demands, Offer, about_others, read_offer
from tacit.federation.service.gateway import leaving
from tacit.federation.service.own_rows import read_rows
from tacit.federation.service.roster import Enrolment, read_invitation
from tacit.federation.service.server_dir import ServerFolder
from tacit.federation.service.supervisor import Station
from tacit.federation.service.tls import fingerprint, key_fingerprint, make_node_key, sign
from tacit.privacy.ledger.statement import statement
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import words_of
from tacit.report.integrity import open_ledger


def lines(folder: Path) -> Iterator[str]:
    """A line for each member."""
    if (folder / "members.json").exists():
        for member in Enrolment(folder).members():
            yield f"{member.name}: {key_fingerprint(member.key)}{' (left)' if member.left else ''}"
        return
    if (folder / "run" / "terms.json").exists():  # a trial on one machine, where nobody was invited
        for seat in ServerFolder(folder / "run").terms.roster:
            yield f"{seat.name}: {key_fingerprint(seat.key)}"
        return
    client = ClientFolder(folder)
    name, roster = client.agreement.name, client.roster
    yield f"{name}: {key_fingerprint(make_node_key(folder / 'node.key').decode())} (you)"
    for other, key in roster.known().items():
        if other != name:
            yield f"{other}: {key_fingerprint(key)}"
    for other, key in roster.waiting().items():
        yield f"{other}: {key_fingerprint(key)} (waits to be accepted)"


def change(folder: Path, accept: Sequence[str], own_noise: float | None) -> Iterator[str]:
    """Accepts members by their fingerprints, and another floor for one's own share of the noise; says so."""
    client = ClientFolder(folder)
    for shown in accept:
        yield f"accepted: {client.roster.accept(shown)}"
    if own_noise is not None:
        client.settle(replace(client.agreement, own_noise=own_noise, own_noise_evaluated=own_noise))
        yield f"from now on your own share of the noise has a multiplier of at least {own_noise:g}"


RETRY = 5.0  # seconds before a node that ended is started again


def join(
    server: str,
    invitation: str,
    data: Path,
    name: str,
    level: str | None,
    folder: Path,
    console: Console,
    ask: Callable[[list[str]], str],
    demands: Demands = Demands(),
    permitted: tuple[str, ...] = (),
) -> Node:
    """Registers with a one-time invitation; a client that has joined before is left as it is.

    `permitted`: what is not Tacit's own code and may be imported, as the experiment names it.
    """
    client = ClientFolder(folder)
    if (folder / "server.json").exists():
        return returning(folder)
    token, mark = read_invitation(invitation)
    ca = _authority(server, mark, folder)
    offer = read_offer(_post(server, ca, "offer", {"invitation": token}), permitted)
    offer.compare_code()
    _menu(offer, folder, console)
    level = level or ask(list(offer.levels))
    if level not in offer.levels:
        raise TacitError(f"level '{level}' is not on the menu {sorted(offer.levels)}")
    word = demands.made(Agreement.to(offer, name, level))
    rows = read_rows(data, offer)
    key = make_node_key(folder / "node.key").decode()
    count = len(rows.x) if offer.rows else 0
    _post(server, ca, "enrol", {"invitation": token, "name": name, "level": level, "rows": count, "key": key})
    client.settle(word, rows)
    write_atomically(folder / "server.json", json.dumps({"server": server}).encode())
    console.print(f"'{name}' has joined at level '{level}': {offer.levels[level].guarantee}")
    console.print(f"The fingerprint of your key, by which others know you: {key_fingerprint(key)}", soft_wrap=True)
    for code in word.code:
        console.print(f"You permit '{code.name}' as it is now: {code}. Whoever changes it asks you to join again.")
    for line in about_others(offer, word):
        console.print(line)
    return returning(folder)


def returning(folder: Path) -> Node:
    """The node of a client that has joined."""
    path = folder / "server.json"
    if not path.exists():
        raise TacitError(f"{folder} has not joined a federation: give the server and an invitation")
    return Node(folder, json.loads(path.read_text())["server"], folder / "ca.crt")


def attend(node: Node, console: Console, stop: Callable[[], bool] = lambda: False) -> None:
    """Keeps the node running until told to stop. After a crash the server refuses it for a minute: it tries again."""
    store, seen, station = ClientStore(node.home), -1, Station(node)
    news = News(ClientFolder(node.home))
    try:
        station.start()
        console.print(
            "Taking part; Ctrl-C to stop. Your data, your personal model and your account are in this folder."
        )
        tried = time.monotonic()
        while not stop():
            time.sleep(0.5)
            if not station.whole and time.monotonic() > tried + RETRY:
                station.start()
                tried = time.monotonic()
            if (now := store.answers()) != seen:
                seen = now
                console.print(f"answered {now} times; {_spent(node.home)}")
            news.tell(console)
    finally:
        station.stop()


@dataclass
class News:
    """What the owner of a folder is told when it changes: who the other members are, and why it refused."""

    home: ClientFolder
    known: dict[str, str] = field(default_factory=dict)
    refusal: str | None = None
    tried: dict[Path, float] = field(default_factory=dict)  # when runs ended whose models were to be saved

    def tell(self, console: Console) -> None:
        for name, key in self.home.roster.known().items():
            if self.known.get(name) != key:
                self.known[name] = key
                console.print(f"member '{name}' has the key {key_fingerprint(key)}", soft_wrap=True)
        if (why := self.home.refusal) != self.refusal:
            self.refusal = why
            console.print(f"refused to take part: {why}")
        self.hand_out(console)

    def hand_out(self, console: Console) -> None:
        """Saves the models of runs that have ended, and says where: in the owner's own process, so that the server does
        not see how long it takes."""
        for file in self.home.unsaved():
            if self.tried.get(file) == (ended := file.stat().st_mtime):
                continue
            self.tried[file] = ended
            try:
                path = self.home.save_model(file)
            except TacitError as error:
                console.print(f"no model of {file.parent.name} was saved: {error}", soft_wrap=True)
                continue
            console.print(f"{file.parent.name} has ended. Your own model: {path}", soft_wrap=True)
            rows = "rows.npz" if self.home.agreement.layout.several else "rows.csv"
            console.print(f"  tacit predict {path} {rows} --client {self.home.agreement.name}", soft_wrap=True)


def leave(folder: Path) -> None:
    """Takes the client off the server's list. Its folder, with its ledger, stays."""
    client, node = ClientFolder(folder), returning(folder)
    name, when = client.agreement.name, time.time()
    signature = sign(folder / "node.key", leaving(name, when))
    _post(node.server, node.ca, "leave", {"name": name, "time": when, "signature": signature})


def _authority(server: str, mark: str, folder: Path) -> Path:
    """The server's authority, taken over an open line and compared with the invitation's fingerprint."""
    with httpx.Client(verify=False, timeout=30, trust_env=False) as line:
        try:
            pem = line.get(f"https://{server}/tacit/authority").text.encode()
        except httpx.HTTPError as error:
            raise TacitError(f"cannot reach {server}: {error}") from error
    try:
        mark_of_server = fingerprint(pem)
    except ValueError:
        mark_of_server = ""
    if mark_of_server != mark:
        raise TacitError(f"{server} is not the server of this invitation: ask who gave it to you")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    write_atomically(folder / "ca.crt", pem)
    return folder / "ca.crt"


def _post(server: str, ca: Path, what: str, content: dict[str, Any]) -> dict[str, Any]:
    trust = ssl.create_default_context(cafile=str(ca))
    with httpx.Client(verify=trust, timeout=120, trust_env=False) as line:
        try:
            answer = line.post(f"https://{server}/tacit/{what}", json=content)
        except httpx.HTTPError as error:
            raise TacitError(f"cannot reach {server}: {error}") from error
    if answer.status_code == 200:
        return answer.json()
    try:
        reason = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        reason = answer.text[:200]
    raise TacitError(f"the server refused: {reason}")


def _menu(offer: Offer, folder: Path, console: Console) -> None:
    """The levels in plain words, and what this client has spent already."""
    console.print(f"'{offer.config.name}' trains under plan '{offer.plan}': {_plain(offer.plan)}")
    for name, level in offer.levels.items():
        console.print(f"  {name}: {level.guarantee}. {_meaning(level)}")
    if offer.config.privacy.allow_large_delta:
        console.print("The experiment allows a delta of 1/n and more: somebody's data could be published whole.")
    if offer.evaluated:
        console.print(
            "Now and then you report how good the models are on rows that you hold out: with noise, within the epsilon "
            "of your level; plainly if you opt out."
        )
    console.print(f"Spent so far: {_spent(folder)}")


def _plain(plan: str) -> str:
    rota = "; you are asked a few times at most" if plan.endswith("-rota") else ""
    return words_of(plan.removesuffix("-rota")).to_member + rota


def _meaning(level: Level) -> str:
    if not level.private:
        return "Whoever sees the models may learn what your data is."
    if level.epsilon is None:
        return "There is noise, and no limit on how much is spent in the end."
    factor = np.exp(min(level.epsilon, 50.0))
    return (
        f"Whatever anybody concludes from the models, they would conclude it with at most {factor:,.3g} times the "
        f"probability without your data, save for a chance of about {level.delta:g}."
    )


def _spent(folder: Path) -> str:
    if not ClientStore(folder).has_ledger():
        return "nothing"
    with open_ledger(folder) as ledger:
        return "; ".join(line.words.partition(":")[0] for line in statement(ledger)) or "nothing"
