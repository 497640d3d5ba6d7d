"""`tacit members`: who the members of a federation are, as one side knows them, and what a member lets be changed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from tacit.federation.service.client_dir import ClientFolder
from tacit.federation.service.enrolment import Enrolment
from tacit.federation.service.server_dir import ServerFolder
from tacit.federation.service.tls import key_fingerprint, make_node_key


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
    home = ClientFolder(folder)
    name, roster = home.agreement.name, home.roster
    yield f"{name}: {key_fingerprint(make_node_key(folder / 'node.key').decode())} (you)"
    for other, key in roster.known().items():
        if other != name:
            yield f"{other}: {key_fingerprint(key)}"
    for other, key in roster.waiting().items():
        yield f"{other}: {key_fingerprint(key)} (waits to be accepted)"


def change(folder: Path, accept: Sequence[str], own_noise: float | None) -> Iterator[str]:
    """Accepts members by their fingerprints, and another floor for one's own share of the noise; says so."""
    home = ClientFolder(folder)
    for fingerprint in accept:
        yield f"accepted: {home.roster.accept(fingerprint)}"
    if own_noise is not None:
        home.settle(replace(home.agreement, own_noise=own_noise, own_noise_evaluated=own_noise))
        yield f"from now on your own share of the noise has a multiplier of at least {own_noise:g}"
