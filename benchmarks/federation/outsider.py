"""Everybody who is not a member knocks at the public port: each is refused."""

import argparse
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import httpx

from benchmarks.federation.worlds import note
from tacit.federation.flower.processes import LOOPBACK, Link, Node, end
from tacit.federation.service.serve import free_port
from tacit.federation.service.supervisor import Site
from tacit.federation.service.tls import make_certificates, make_node_key

PROTOBUF = {"content-type": "application/protobuf"}


def knock(site: Site, folder: Path) -> dict[str, str]:
    """What became of each; every value begins with "refused" if it was."""
    here, ca = f"{LOOPBACK}:{site.port}", site.link.folder / "ca.crt"
    trust = ssl.create_default_context(cafile=str(ca))
    other = folder / "other"
    other.mkdir()
    make_certificates(other, [LOOPBACK])
    found = {}
    with httpx.Client(base_url=f"https://{here}", verify=trust, timeout=30, trust_env=False) as line:
        found["no key"] = _status(line.post("/v1/fleet/pull-messages", content=b"", headers=PROTOBUF))
        found["control API: list runs"] = _status(line.post("/v1/control/list-runs", content=b"", headers=PROTOBUF))
        found["control API: register a node"] = _status(line.post("/v1/control/register-node", content=b""))
        found["control API behind dots"] = _status(line.post("/v1/fleet/%2e%2e/control/list-runs", headers=PROTOBUF))
        found["runtime API"] = _status(line.post("/v1/runtime/pull-messages", content=b""))
        found["documentation of the API"] = _status(line.get("/docs"))
        found["enrolment without an invitation"] = _status(
            line.post("/tacit/enrol", json={"invitation": "x", "name": "m", "level": "l", "rows": 0, "key": "k"})
        )
        found["a request of 1 GB"] = _flood(line)
    found["unregistered key"] = _stranger(site, folder)
    found["plaintext"] = _plaintext(site)
    found["a server of another authority"] = _other_authority(site, other / "ca.crt")
    found["SuperLink's own port from outside"] = _own_port(site)
    return found


def _status(answer: httpx.Response) -> str:
    return f"{'refused' if answer.status_code in (400, 401, 403, 404, 413) else 'LET IN'} ({answer.status_code})"


def _flood(line: httpx.Client) -> str:
    def gigabyte():
        for _ in range(1024):
            yield bytes(2**20)

    try:
        return _status(line.post("/v1/fleet/push-object", content=gigabyte()))
    except httpx.TransportError as error:
        return f"refused ({type(error).__name__})"


def _stranger(site: Site, folder: Path) -> str:
    home = folder / "stranger"
    home.mkdir()
    make_node_key(home / "node.key")
    node = Node(home, f"{LOOPBACK}:{site.port}", site.link.folder / "ca.crt")
    node.prepare()
    process = node.supernode(free_port())
    until = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < until:
        time.sleep(0.5)
    code = process.poll()
    end(process, kill=True)
    return "LET IN" if code is None else f"refused (the node ended with {code})"  # one that is let in goes on


def _plaintext(site: Site) -> str:
    try:
        answer = httpx.post(f"http://{LOOPBACK}:{site.port}/v1/fleet/pull-messages", timeout=10, trust_env=False)
    except httpx.TransportError as error:
        return f"refused ({type(error).__name__})"
    return _status(answer)


def _other_authority(site: Site, ca: Path) -> str:
    trust = ssl.create_default_context(cafile=str(ca))
    try:
        httpx.post(f"https://{LOOPBACK}:{site.port}/v1/fleet/pull-messages", verify=trust, timeout=10, trust_env=False)
    except httpx.ConnectError:
        return "refused (by the client: certificate verify failed)"
    return "LET IN"


def _own_port(site: Site) -> str:
    """The SuperLink listens on loopback alone."""
    listening = subprocess.run(["ss", "-ltnH"], capture_output=True, text=True).stdout
    at = [line.split()[3] for line in listening.splitlines() if line.split()[3].endswith(f":{site.link.port}")]
    if at:
        return "refused (listens on loopback alone)" if at == [f"{LOOPBACK}:{site.link.port}"] else f"LET IN {at}"
    with socket.socket() as one:
        name = socket.gethostbyname(socket.gethostname())
        one.settimeout(3)
        code = one.connect_ex((name, site.link.port))
    return "refused (listens on loopback alone)" if code or name.startswith("127.") else "LET IN"


def _awaited(site: Site) -> None:
    for _ in range(300):
        with suppress(OSError), socket.create_connection((LOOPBACK, site.port), 1.0):
            return
        time.sleep(0.5)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.outsider", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("runs/federation/outsider.json"))
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tacit-outsider-"))
    with Site(Link(folder / "server", free_port()), LOOPBACK, free_port(), most=2**20) as site:
        _awaited(site)
        for who, what in knock(site, folder).items():
            note(options.results, who, what)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
