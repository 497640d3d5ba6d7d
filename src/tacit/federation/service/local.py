"""A whole federation on one machine, with everything that a real one has: TLS, node keys, a process for each part."""

from dataclasses import dataclass, field
from pathlib import Path

from tacit.federation.flower.processes import LOOPBACK, Link, Node, free_port
from tacit.federation.protocol.terms import Rows
from tacit.federation.service.client_dir import Agreement, ClientFolder
from tacit.federation.service.roster import Enrolment, Member
from tacit.federation.service.supervisor import Site, Station
from tacit.federation.service.tls import make_node_key


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
        home = self.home(agreement.name)
        home.settle(agreement, rows)
        key = make_node_key(home.folder / "node.key")
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
