"""Another user of the machine: it reaches every port on loopback and reads every command line. What does it get?

A server and two members run; a process of the user `nobody` has the server's certificate authority, which the door
gives to anybody, and finds the ports by itself. It tries to admit a node, to run an application of its own, to take
tasks and messages in the name of the executors, to use tokens that it sees, and to read secrets.
"""

import argparse
import json
import os
import pwd
import re
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from flwr.cli.build import build_fab_from_disk
from flwr.common.serde import fab_to_proto
from flwr.proto.control_pb2 import ListRunsRequest, RegisterNodeRequest, StartRunRequest
from flwr.proto.runtime_pb2 import AcquireTaskRequest, GetNodesRequest, PullAppMessagesRequest
from flwr.supercore.fab import Fab
from flwr.supercore.runtime_version_compatibility import RuntimeVersionMetadata

from benchmarks.federation.worlds import World, config_of, federation, note
from tacit.federation.service.serve import Local

SECONDS = 25.0  # of looking at command lines
ROUNDS = 4
TASK_TYPES = ("flwr-serverapp", "flwr-clientapp")
SECRETS = (
    *(f"server/{name}" for name in ("control.secret", "executor.secret", "server.key", "superlink.db", "members.json")),
    *(f"server/runs/neighbour/{name}" for name in ("secret", "ledger.sqlite")),
    *(f"clients/0/{name}" for name in ("node.key", "secret", "rows.safetensors", "ledger.sqlite")),
    *(f"clients/0/flower/tls/{name}" for name in ("executor.secret", "server.key")),
)
FOREIGN = '''"""An application of somebody else's."""
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client, server = ClientApp(), ServerApp()


@server.main()
def main(grid, context):
    print("running as the server")
'''


def as_nobody(what: Callable[[], Any]) -> Any:
    """What comes of it in a process of another user, which has nothing of this one but what it has in memory."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        code = 1
        try:
            os.close(read)
            if os.getuid() == 0:
                nobody = pwd.getpwnam("nobody")
                os.setgroups([])
                os.setgid(nobody.pw_gid)
                os.setuid(nobody.pw_uid)
            with os.fdopen(write, "w") as line:
                json.dump(what(), line)
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as line:
        told = line.read()
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError("the other user's process failed")
    return json.loads(told)


class Neighbour:
    """What it tries. Every value begins with "refused" if it was."""

    def __init__(self, authority: bytes, bundle: bytes, folder: Path) -> None:
        self.trust = ssl.create_default_context(cadata=authority.decode())
        self.careless = ssl.create_default_context()
        self.careless.check_hostname, self.careless.verify_mode = False, ssl.CERT_NONE
        self.bundle, self.folder = bundle, folder
        self.headers = {
            "content-type": "application/protobuf",
            **dict(RuntimeVersionMetadata.from_local_component("SuperExec").as_metadata()),
        }

    def try_everything(self) -> dict[str, str]:
        lines = _command_lines()
        link, nodes = _ports(lines, "superlink"), _ports(lines, "supernode")
        control = [f"https://127.0.0.1:{port}/v1/control" for port in link]
        tasks = AcquireTaskRequest(supported_task_types=TASK_TYPES)
        foreign = StartRunRequest(fab=fab_to_proto(Fab("", self.bundle, {})))
        found = {
            "finds the ports": f"{len(link)} of the server, {len(nodes)} of members",
            "control API: list runs": self.ask(control, "list-runs", ListRunsRequest()),
            "control API: admit a node": self.ask(control, "register-node", RegisterNodeRequest(public_key=b"k")),
            "control API: run an application of its own": self.ask(control, "start-run", foreign),
            "control API: a guessed secret": self.ask(
                control, "start-run", foreign, {"authorization": f"Bearer {'0' * 64}"}
            ),
            "takes a task as the server's executor": self.ask(_runtimes(link), "acquire-task", tasks),
            "takes a task as a member's executor": self.ask(_runtimes(nodes), "acquire-task", tasks),
            "reads secrets, keys, rows, ledgers": self.read(),
            "asks a nursery": self.call(),
        }
        return found | {"uses tokens that it sees": self.tokens(_runtimes(link + nodes))}

    def ask(self, places: list[str], what: str, request: Any, more: dict[str, str] | None = None) -> str:
        """The worst that came of it, over all places, encrypted or not."""
        found = []
        for place in places:
            for address, trust in ((place, self.trust), (place, self.careless), (place.replace("https", "http"), True)):
                try:
                    answer = httpx.post(f"{address}/{what}", content=request.SerializeToString(), verify=trust,
                                        headers=self.headers | (more or {}), timeout=20, trust_env=False)  # fmt: skip
                    found.append(answer.status_code)
                except httpx.TransportError:
                    continue
        told = ", ".join(str(code) for code in sorted(set(found)))
        refused = bool(found) and all(code in (400, 401, 403, 404) for code in found)
        return f"refused ({told})" if refused else f"LET IN ({told})"

    def read(self) -> str:
        got = []
        for name in SECRETS:
            try:
                (self.folder / name).read_bytes()
                got.append(name)
            except PermissionError:
                continue
            except OSError:
                got.append(f"no {name}")
        return f"READ {', '.join(got)}" if got else f"refused ({len(SECRETS)} files)"

    def call(self) -> str:
        try:
            with socket.socket(socket.AF_UNIX) as line:
                line.connect(str(self.folder / "clients" / "0" / "flower" / "door"))
        except PermissionError:
            return "refused (no permission)"
        except OSError as error:
            return f"NOT TRIED ({error})"
        return "LET IN"

    def tokens(self, places: list[str]) -> str:
        """Looks at all command lines for a while, and uses every token on them."""
        seen, let_in, until = set[str](), 0, time.monotonic() + SECONDS
        calls = (("pull-messages", PullAppMessagesRequest()), ("get-nodes", GetNodesRequest()))
        while time.monotonic() < until:
            new = {token for line in _command_lines() for token in re.findall(r"--token[ =](\S+)", line)} - seen
            seen |= new
            for token in new:
                proof = {"flwr-task-token": token}
                let_in += sum("200" in self.ask(places, what, request, proof) for what, request in calls)
            time.sleep(0.002)
        return f"SAW {len(seen)} tokens, {let_in} calls let in" if seen else "refused (no token to be seen)"


def _runtimes(ports: list[str]) -> list[str]:
    return [f"https://127.0.0.1:{port}/v1/runtime" for port in ports]


def _command_lines() -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def _ports(lines: list[str], kind: str) -> list[str]:
    wanted = [line for line in lines if re.search(rf"(process |flower-){kind} ", line)]
    return sorted({port for line in wanted for port in re.findall(r"--port (\d+)", line)})


def bundle(folder: Path) -> bytes:
    """An application as anybody could write it."""
    app = folder / "foreign"
    app.mkdir()
    (app / "foreign.py").write_text(FOREIGN)
    (app / "pyproject.toml").write_text(
        '[project]\nname = "foreign"\nversion = "1.0.0"\ndependencies = []\n[tool.flwr.app]\npublisher = "anybody"\n'
        '[tool.flwr.app.components]\nserverapp = "foreign:server"\nclientapp = "foreign:client"\n'
    )
    return build_fab_from_disk(app)


def attack(fed: Local, folder: Path) -> dict[str, str]:
    neighbour = Neighbour((fed.site.link.folder / "ca.crt").read_bytes(), bundle(folder), folder)
    return as_nobody(neighbour.try_everything)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.neighbour", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("runs/federation/neighbour.json"))
    options = parser.parse_args()
    data = {"source": "digits", "clients": 2, "classes_each": 5}
    world = World(config_of("fedavg", "central", rounds=ROUNDS, rate=1.0, data=data), fresh=True)
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="tacit-neighbour-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # what protects a folder of ours must be its own
        with federation(folder, world) as fed:
            run_folder = world.run_folder(folder / "server" / "runs", "neighbour", fed, 60)

            def watch() -> None:
                fed.revive()
                if run_folder.told() and not found:
                    found.update(attack(fed, folder))

            fed.site.conduct([run_folder], 600, watch)
            found["the run"] = f"went on: {(run_folder.outcome or {}).get('round')} rounds"
    for who, what in found.items():
        note(options.results, who, what)
    if os.getuid() != 0:
        sys.stdout.write("not root: the other user was this one\n")


if __name__ == "__main__":
    main()
