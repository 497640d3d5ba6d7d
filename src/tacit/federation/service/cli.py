"""The commands of a real federation. What they need is imported when they run."""

import signal
from pathlib import Path
from typing import Annotated

import typer

from tacit.errors import TacitError

Folder = Annotated[Path | None, typer.Option("--folder", help="Where this side keeps what it keeps.")]


def serve(
    file: Annotated[Path, typer.Argument(help="The experiment, a TOML file with a [federation] table.")],
    host: Annotated[str, typer.Option(help="The address to listen on, and the name in the certificate.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The one port that members reach.")] = 8443,
    link_port: Annotated[int, typer.Option(help="Flower's own port, on loopback only.")] = 8000,
    local: Annotated[int | None, typer.Option(min=1, help="Try it out: so many nodes on this machine.")] = None,
    folder: Folder = None,
) -> None:
    """Run the experiment in FILE across real machines: makes keys on first use, prints how to join, shows how it goes.

    Started again with the same file and folder, it goes on where it stood.
    """
    from rich.console import Console

    from tacit.experiments.config import load

    _needs_flower()
    from tacit.federation.service import serve as serving

    _end_in_order()
    config, console = load(file), Console(highlight=False, markup=False)
    place = folder or Path("federation") / config.name
    if local is not None:
        outcome = serving.serve_locally(config, local, place, console)
    else:
        outcome = serving.serve(config, place, host, port, link_port, console)
    console.print(f"Done: {outcome['round']} rounds" + (f"; {outcome['stopped']}" if outcome["stopped"] else "."))
    if "model" in outcome:
        console.print(f"The shared model: {outcome['model']} (tacit predict, tacit.load_model)", soft_wrap=True)
    else:
        console.print(f"No shared model was saved: {outcome['no_model']}")


def join(
    server: Annotated[str, typer.Argument(help="HOST:PORT of the server.")] = "",
    invitation: Annotated[str, typer.Argument(help="As the server printed it; works once.")] = "",
    data: Annotated[Path | None, typer.Option(help="Your rows: a CSV file with labels, or an .npz of arrays.")] = None,
    name: Annotated[str, typer.Option(help="What the others call you.")] = "",
    level: Annotated[str | None, typer.Option(help="Your privacy level; asked for if not given.")] = None,
    folder: Folder = None,
    own_noise: Annotated[float | None, typer.Option(help="distributed: least noise multiplier of your share.")] = None,
    threshold: Annotated[float | None, typer.Option(help="distributed: least share of members who unmask.")] = None,
    confirm_members: Annotated[bool, typer.Option(help="distributed: no member that you did not accept.")] = False,
    permit: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Code beside Tacit's own that the experiment may name.")
    ] = None,
) -> None:
    """Take part in a federation with your own data, which stays here. Without arguments: go on after a restart."""
    from rich.console import Console

    _needs_flower()
    from tacit.federation.service import join as joining
    from tacit.federation.service.client_dir import Demands

    _end_in_order()
    console, place = Console(highlight=False, markup=False), folder or Path("my-federation")
    if server:
        if not invitation or data is None or not name:
            raise TacitError("to join, give the server, an invitation, --data and --name")

        def ask(levels: list[str]) -> str:
            return typer.prompt(f"Your level ({', '.join(levels)})")

        demands = Demands(own_noise, threshold, confirm_members)
        node = joining.join(server, invitation, data, name, level, place, console, ask, demands, tuple(permit or ()))
    else:
        node = joining.returning(place)
    joining.attend(node, console)


def leave(folder: Folder = None) -> None:
    """Leave the federation that this folder joined. What was spent stays spent, and stays in the ledger here."""
    _needs_flower()
    from tacit.federation.service import join as joining

    joining.leave(folder or Path("my-federation"))
    typer.echo("left; the folder with your data, models and ledger is untouched")


def members(
    folder: Folder = None,
    accept: Annotated[list[str] | None, typer.Option(help="A fingerprint that you have compared.")] = None,
    own_noise: Annotated[float | None, typer.Option(help="The least noise multiplier of your own share.")] = None,
) -> None:
    """Show the members of a federation with the fingerprints of their keys, to compare with them by other means.

    In a member's folder: those it knows, and those that wait to be accepted, since it was agreed on fewer or on others.
    In a server's folder: everybody who has joined.
    """
    _needs_flower()
    from tacit.federation.service import join as listing

    for line in listing.change(folder or Path("my-federation"), accept or (), own_noise):
        typer.echo(line)
    for line in listing.lines(folder or Path("my-federation")):
        typer.echo(line)


def _end_in_order() -> None:
    """SIGTERM, which is how a machine ends a service, is as good as Ctrl-C: the others are told."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _needs_flower() -> None:
    try:
        import flwr  # noqa: F401  # pyright: ignore
    except ImportError:
        raise TacitError("a real federation needs Flower: pip install 'tacit-fl[flower]'") from None
