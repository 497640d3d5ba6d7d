"""What there is to choose from: data sources, partitions, models, methods, plans, with the keys that each has."""

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.table import Table

from tacit.data import loaders
from tacit.experiments.config import SECTIONS, section_keys

PARTITIONS = {
    "iid": "rows dealt at random, equally many to each client",
    "one-class": "each client holds rows of one class",
    "classes": "each client holds `classes_each` classes (2)",
    "dirichlet": "class shares drawn with `alpha` (0.5); every client gets at least `minimum` rows (1)",
    "writer, subject, ...": "one client a person, where the source knows who made a row; joins `group` of them (1)",
}
_ANYWHERE = "package.module:Name names one of your own, in a module beside the file or in an installed package"


def data_tables() -> list[Table]:
    """Sources, with whether a file that they need is there, and partitions."""
    sources = Table(title="sources: [data] source = ...", title_justify="left", caption=_ANYWHERE)
    for name in ("source", "what", "where from"):
        sources.add_column(name)
    for name, read in loaders.SOURCES.items():
        sources.add_row(name, *_source(name, read))
    dealt = Table(title="partitions: [data] partition = ...", title_justify="left")
    dealt.add_column("partition", no_wrap=True)
    dealt.add_column("who holds what")
    for name, text in PARTITIONS.items():
        dealt.add_row(name, text)
    return [sources, dealt]


def _source(name: str, read: Callable[..., Any]) -> tuple[str, str]:
    if name in loaders.FILES:
        path, about, _ = loaders.FILES[name]
        folder = os.environ.get(loaders.FOLDER)
        there = folder is not None and (Path(folder) / path).is_file()
        return about, f"{path} in ${loaders.FOLDER} ({'found' if there else 'not found'})"
    where = "a file of yours: path = ..." if "path" in inspect.signature(read).parameters else "needs no file"
    return first_line(read.__doc__), where


def section_table(section: str) -> Table:
    """What `[section]` may name, with the keys that each has."""
    key, registry, *_ = SECTIONS[section]
    table = Table(title=f"{section}: [{section}] {key} = ...", title_justify="left", caption_justify="left")
    table.add_column(key, no_wrap=True)
    table.add_column("what")
    table.add_column("keys")
    hidden = ("keep", "first", "pace")
    for name, kind in registry.items():
        keys = [each for each in section_keys(section, name) if each not in hidden]
        table.add_row(name, _about(section, kind), ", ".join(keys))
    table.caption = _ANYWHERE + _KEEP * (section == "method")
    return table


_KEEP = (
    '. keep = ["norm"] keeps parameters with that in their name on the client, under any method; '
    "first = 0.5 trains them alone in the first half of a round's steps (FedRep)"
)


def _about(section: str, kind: Any) -> str:
    """A method's file says what it is; a class says what it does."""
    module = inspect.getdoc(inspect.getmodule(kind)) if section == "method" else None
    return first_line(module or inspect.getdoc(kind))


def first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0].rstrip(".")
