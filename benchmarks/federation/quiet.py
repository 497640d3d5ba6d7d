"""Does anything call home? A whole federation, from its keys to its last round, with every connection written down.

Runs in a network namespace that has loopback and nothing else, under strace: what would leave is seen, and cannot.
"""

import argparse
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.federation.worlds import World, config_of, federation, finite, note

_CALL = re.compile(r"(?:connect|sendto|sendmsg)\(.*?(?:inet_addr\(\"([^\"]+)\"\)|inet_pton\(AF_INET6, \"([^\"]+)\")")
_FLAGS, _UP = 0x8914, 0x1


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, _FLAGS, struct.pack("16sh22x", b"lo", _UP))


def whole_run() -> None:
    """What a federation does in its life, small."""
    raise_loopback()
    with tempfile.TemporaryDirectory(prefix="tacit-quiet-") as name:
        world = World(config_of("fedavg", "local", rounds=2, rate=1.0), fresh=True)
        with federation(Path(name), world) as fed:
            run_folder = world.run_folder(Path(name) / "runs", "quiet", fed, 240)
            fed.site.conduct([run_folder], 1200, fed.revive)
            assert run_folder.outcome is not None
            sys.stdout.write(f"rounds {run_folder.outcome['round']} finite {finite(run_folder)}\n")


def addresses(trace: str) -> set[str]:
    return {first or second for first, second in _CALL.findall(trace)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.quiet", description=__doc__)
    parser.add_argument("--inside", action="store_true", help="what runs inside the namespace")
    parser.add_argument("--results", type=Path, default=Path("runs/federation/quiet.json"))
    options = parser.parse_args()
    if options.inside:
        whole_run()
        return
    with tempfile.TemporaryDirectory(prefix="tacit-trace-") as name:
        trace = Path(name) / "trace"
        watch = ["strace", "-f", "-ff", "--seccomp-bpf", "-e", "trace=connect,sendto,sendmsg", "-o", str(trace)]
        inside = [sys.executable, "-m", "benchmarks.federation.quiet", "--inside"]
        done = subprocess.run(
            ["unshare", "--net", "--map-root-user", *watch, *inside], capture_output=True, text=True, env=os.environ
        )
        found = set()
        for part in Path(name).iterdir():
            found |= addresses(part.read_text(errors="replace"))
    outside = sorted(one for one in found if not (one.startswith("127.") or one in ("::1", "0.0.0.0")))
    note(options.results, "run", done.stdout.strip().splitlines()[-1] if done.returncode == 0 else done.stderr[-500:])
    note(options.results, "addresses inside", sorted(found - set(outside)))
    note(options.results, "addresses outside loopback", outside)


if __name__ == "__main__":
    main()
