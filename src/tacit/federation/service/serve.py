"""`tacit serve`: everything that a server needs, from one file. Goes on where it stood if it is started again.

`Local` is a whole federation on one machine, with all that a real one has: TLS, node keys, a process for each part.
"""

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from tacit.data.loaders import SOURCES
from tacit.errors import TacitError
from tacit.evidence import certificate
from tacit.evidence.certificate_page import page
from tacit.evidence.signing import fingerprint, make_key
from tacit.experiments.build import build_privacy, load_data
from tacit.experiments.config import Config
from tacit.experiments.federation_table import FederationTable
from tacit.federation.flower.processes import LOOPBACK, Link, Node, free_port
from tacit.federation.protocol.terms import Rows, Terms
from tacit.federation.service import experiment
from tacit.federation.service.client_dir import Agreement, ClientFolder, Offer
from tacit.federation.service.join import News
from tacit.federation.service.roster import Enrolment, Member
from tacit.federation.service.server_dir import ServerFolder, Settings
from tacit.federation.service.supervisor import Site, Station
from tacit.federation.service.tls import key_fingerprint, make_node_key
from tacit.privacy.ledger.statement import shown, statement
from tacit.report.integrity import open_ledger
from tacit.report.run_folder import epochs_in


@dataclass
class Local:
    """Use it as a context: whatever was started is ended."""

    folder: Path
    nodes: dict[str, int] = field(default_factory=dict)
    running: dict[str, Station] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.site = Site(Link(self.folder / "server", free_port()), LOOPBACK, free_port())

    def __enter__(self) -> "Local":
        self.site.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for name in list(self.running):
            self.stop(name, kill=True)
        self.site.__exit__()

    def home(self, name: str) -> ClientFolder:
        return ClientFolder(self.folder / "clients" / name)

    def admit(self, agreement: Agreement, rows: Rows) -> str:
        """A client with its rows, its key and its number; its public key."""
        client = self.home(agreement.name)
        client.settle(agreement, rows)
        key = make_node_key(client.folder / "node.key")
        node = self.nodes[agreement.name] = self.site.link.register(key, agreement.name)
        member = Member(agreement.name, agreement.level, len(rows.x), node, key.decode())
        Enrolment(self.site.link.folder).admit(member)
        return key.decode()

    def node(self, name: str) -> Node:
        return Node(self.home(name).folder, f"{LOOPBACK}:{self.site.port}", self.site.link.folder / "ca.crt")

    def start(self, name: str) -> None:
        """Starts the node of a client, or starts it again."""
        self.running.setdefault(name, Station(self.node(name))).start()

    def stop(self, name: str, kill: bool = False) -> None:
        """Ends a node, or kills it with everything that it runs."""
        if (station := self.running.pop(name, None)) is not None:
            station.stop(kill)

    def revive(self) -> None:
        """Starts again every node that has ended by itself, as the one who runs it would."""
        for station in list(self.running.values()):
            if not station.whole:
                station.start()


Say = Callable[[str], None]


def serve(config: Config, folder: Path, host: str, port: int, link_port: int, console: Console) -> dict[str, Any]:
    """Waits for the members, runs the experiment, and tells how it goes; what came of it."""
    table = _table(config)
    checked = experiment.experiment_of(experiment.text_of(config), None)
    link = Link(folder, link_port)
    with Site(link, host, port) as site:
        run_folder = ServerFolder(folder / "run")
        _offer(checked, table, folder)
        register = Enrolment(folder)
        if not (run_folder.folder / "terms.json").exists():
            _gather(register, table, f"{_address(host)}:{port}", console)
            members = [member for member in register.members() if not member.left]
            run_folder.open(
                _terms(checked, table, members), {m.name: m.node for m in members}, _settings(checked, table)
            )
        return _watched(site, run_folder, console)


def serve_locally(config: Config, clients: int, folder: Path, console: Console) -> dict[str, Any]:
    """The same on this machine alone, with the experiment's own data divided among `clients` nodes."""
    data = load_data(_divided(config, clients))
    if data.clients != clients:
        raise TacitError(f"the data has {data.clients} clients, not {clients}: use --local {data.clients}")
    choices = build_privacy(config).choose(data, config.seed)
    plain = config.model_copy(update={"choices": {}})
    offer = Offer.on(data, experiment.text_of(plain), permitted=None)
    with Local(folder) as fed:
        seats = []
        for k, name in enumerate(data.ids):
            rows, level = Rows.of(data, k), choices.of(k)
            key = fed.admit(Agreement.to(offer, name, level.name), rows)
            seats.append(experiment.seat(plain, name, level.name, len(rows.x), key))
            fed.start(name)
            said = f"node '{name}' joins at level '{level.name}': {level.guarantee}; its key is {key_fingerprint(key)}"
            console.print(said, soft_wrap=True)
        run_folder = ServerFolder(folder / "server" / "run")
        run_folder.open(
            offer.terms(_run_id(), tuple(seats)), fed.nodes, _settings(config, config.federation or FederationTable())
        )
        outcome = _watched(fed.site, run_folder, console, fed.revive)
        for name in data.ids:
            News(fed.home(name)).hand_out(console)
        return outcome


def _divided(config: Config, clients: int) -> Config:
    """The experiment with its data among so many clients; a source of one's own may have clients of its own."""
    if config.data.source not in SOURCES.builtin and config.data.get("clients") is None:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"clients": clients})})


def _watched(
    site: Site, run_folder: ServerFolder, console: Console, also: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Follows a run to its end, with a live table where there is a terminal and a line for each round elsewhere."""
    shown_rows: list[int] = [0]
    with Live(_picture(run_folder), console=console, refresh_per_second=2, transient=True) as live:

        def watch() -> None:
            also()
            rows = run_folder.told()
            if len(rows) > shown_rows[0]:
                live.update(_picture(run_folder))
                if not console.is_terminal:
                    for row in rows[shown_rows[0] :]:
                        console.print(_line(row))
                shown_rows[0] = len(rows)

        site.conduct([run_folder], watch=watch)
    console.print(_picture(run_folder))
    _certify(run_folder.folder, console)
    assert run_folder.outcome is not None
    return run_folder.outcome


def _certify(folder: Path, console: Console) -> None:
    """Beside the ledger, for members to countersign. A run that cannot be certified has ended all the same."""
    try:
        content = certificate.certify(folder, make_key(folder.parent / "certificate.key"))
    except TacitError as error:
        console.print(f"no certificate: {error}")
        return
    certificate.write(content, folder / "certificate.json")
    certificate.write_text(page(content), folder / "certificate.html")
    console.print(f"certificate: {folder / 'certificate.json'}, signed by {fingerprint(content['signature']['key'])}")


def _line(row: dict[str, Any]) -> str:
    lost = {**row["refused"], **row["rejected"]}
    why = "".join(f", {count} {reason}" for reason, count in lost.items())
    return (
        f"round {row['round']}/{row['rounds']}: {row['took_part']} of {row['asked']} asked took part, "
        f"{row['dropped']} dropped out{why}; {row['seconds']:.1f} s{_accuracy(row['figures'])}"
        + (f"; {row['warning']}" if row.get("warning") else "")
    )


def _accuracy(figures: dict[str, Any] | None) -> str:
    """An evaluation in words, with the noise that is in it."""
    if figures is None:
        return ""
    who = f"{figures['answered']} of {figures['asked']} members"
    if figures["shared"] is None:
        return f"; {who} evaluated, too few for a release"
    noise = f", noise {figures['std']:.2g}" if figures["std"] else ""
    metric = figures.get("metric", "accuracy")
    return f"; {metric} {figures['shared']:.2f} shared, {figures['personal']:.2f} personal ({who}{noise})"


def _picture(run_folder: ServerFolder) -> Table:
    """Rounds, nodes, drop-outs, and what every account has spent."""
    rows = run_folder.told()
    table = Table(title="federation", show_header=False, box=None)
    if not rows:
        table.add_row("", "waiting for the first round")
        return table
    table.add_row("round", f"{rows[-1]['round']} of {rows[-1]['rounds']}")
    table.add_row("last round", _line(rows[-1]).partition(": ")[2])
    table.add_row("dropped out so far", str(sum(row["dropped"] for row in rows)))
    for scope, words in spent(run_folder).items():
        table.add_row(scope, words)
    return table


def spent(run_folder: ServerFolder) -> dict[str, str]:
    """Epsilon by level; where clients have accounts of their own, the worst of them."""
    with open_ledger(run_folder.folder) as ledger:
        lines = statement(ledger, epochs_in(run_folder.folder))
    levels = {line.scope: f"epsilon {shown(line.epsilon)}" for line in lines if line.scope.startswith("level:")}
    clients = [line for line in lines if line.scope.startswith("client:")]
    if clients:
        worst = max(clients, key=lambda line: line.epsilon)
        levels["clients"] = f"epsilon at most {shown(worst.epsilon)} ({worst.scope.partition(':')[2]})"
    return levels


def _gather(register: Enrolment, table: FederationTable, address: str, console: Console) -> None:
    nodes, layout = table.nodes, table.rows[2]
    file = "my.npz" if layout.several or layout.each else "my.csv"
    missing = nodes - sum(not member.left for member in register.members())
    if missing > 0:
        console.print(f"{missing} members are missing. Give each of them one of these commands; each works once:\n")
        for invitation in register.invite(missing):
            console.print(f"  tacit join {address} {invitation} --data {file} --name NAME", soft_wrap=True)
        console.print("")
    known: set[str] = set()
    while True:
        here = [member for member in register.members() if not member.left]
        for number, member in enumerate(here, 1):
            if member.name not in known:
                said = f"'{member.name}' joined at level '{member.level}' ({number} of {nodes}); its key is "
                console.print(said + key_fingerprint(member.key), soft_wrap=True)
                known.add(member.name)
        if len(here) >= nodes:
            return
        time.sleep(0.5)


def _offer(config: Config, table: FederationTable, folder: Path) -> None:
    """What somebody with an invitation is told before joining."""
    (folder / "offer.json").write_text(json.dumps(_offered(config, table).content(), indent=2))


def _offered(config: Config, table: FederationTable) -> Offer:
    """What a row is, as the table says it."""
    inputs, classes, layout = table.rows
    return Offer(experiment.text_of(config), inputs, classes, table.nodes, table.label, None, layout=layout)


def _terms(config: Config, table: FederationTable, members: list[Member]) -> Terms:
    seats = tuple(experiment.seat(config, each.name, each.level, each.rows, each.key) for each in members)
    return _offered(config, table).terms(_run_id(), seats)


def _settings(config: Config, table: FederationTable) -> Settings:
    return Settings(deadline=table.deadline, track=tuple(config.run.track or ()))


def _run_id() -> str:
    return f"run-{secrets.token_hex(8)}"


def _address(host: str) -> str:
    return LOOPBACK if host in ("0.0.0.0", "::") else host


def _table(config: Config) -> FederationTable:
    table = config.federation
    if table is None or (table.inputs is None and table.columns is None) or table.classes is None:
        raise TacitError(
            "the server sees no data, so the experiment must say what a row is: "
            "add [federation] inputs = [64], classes = 10, nodes = 5"
        )
    return table
