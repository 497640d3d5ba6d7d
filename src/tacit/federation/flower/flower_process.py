"""One of Flower's own processes, with what this project changes in it: `KIND [FILE] FLOWER'S OWN ARGUMENTS`.

| kind | file | changed |
|---|---|---|
| superlink | control.secret | the control API asks for the secret |
| server-executor | | starts the server application, its token out of sight |
| serverapp | | reads its token from standard input |
| supernode | | sends an answer when it is ready |
| client-executor | the nursery's socket | has the nursery answer, its token out of sight |
| clientapp | | no code from the server is loaded; reads its token from standard input |

Each is started through `lifeline.py`, and ends with its owner.
"""
# pyright: reportMissingImports=false

import sys
from pathlib import Path


def superlink() -> None:
    from flwr.superlink.cli.flower_superlink import flower_superlink

    from tacit.federation.flower.control import require_secret

    require_secret(Path(sys.argv.pop(1)))
    flower_superlink()


def server_executor() -> None:
    from flwr.supercore.cli.flower_superexec import flower_superexec

    from tacit.federation.flower import executor

    executor.use(None)
    flower_superexec()


def serverapp() -> None:
    from flwr.superlink.cli.flwr_serverapp import flwr_serverapp

    _take_token()
    flwr_serverapp()


def supernode() -> None:
    from flwr.supernode.cli.flower_supernode import flower_supernode

    from tacit.federation.flower.transport import send_when_ready

    send_when_ready()
    flower_supernode()


def client_executor() -> None:
    from flwr.supercore.cli.flower_superexec import flower_superexec

    from tacit.federation.flower import executor

    executor.use(Path(sys.argv.pop(1)))
    flower_superexec()


def clientapp() -> None:
    from tacit.federation.flower import no_remote_code

    _take_token()
    no_remote_code.main()


def _take_token() -> None:
    sys.argv += ["--token", sys.stdin.read().strip()]


KINDS = {
    "superlink": superlink,
    "server-executor": server_executor,
    "serverapp": serverapp,
    "supernode": supernode,
    "client-executor": client_executor,
    "clientapp": clientapp,
}


if __name__ == "__main__":
    kind = KINDS[sys.argv.pop(1)]
    kind()
