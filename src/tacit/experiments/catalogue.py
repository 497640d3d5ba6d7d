"""What there is to choose from: data sources, partitions, methods."""

import inspect
import os
from pathlib import Path

from rich.table import Table

from tacit import methods
from tacit.data import loaders
from tacit.experiments.build import accepts

SOURCES = {
    "digits": "1,797 handwritten digits of 8x8; nothing is fetched",
    "csv": "a table of numbers with a column of labels and, if you like, one of clients",
    "hub": "a data set of the hub; nothing is fetched for a local path",
    "features": "features of images that tacit encode wrote",
    "mnist": "handwritten digits of 28x28, by writer too",
    "fashion_mnist": "clothes of 28x28",
    "cifar10": "photographs of 32x32 in colour",
    "uci_har": "activities by motion sensors, by subject",
    "chmnist": "tissue of 32x32 in colour, by slide",
    "location30": "places that people visited, 446 yes/no features",
    "clip_vitb32": "CIFAR-10 as features of a large model",
}
PARTITIONS = {
    "iid": "rows dealt at random, equally many to each client",
    "one-class": "each client holds rows of one class",
    "classes": "each client holds `classes_each` classes (2)",
    "dirichlet": "class shares drawn with `alpha` (0.5); every client gets at least `minimum` rows (1)",
    "writer, subject, ...": "one client a person, where the source knows who made a row; joins `group` of them (1)",
}


def data_tables() -> list[Table]:
    """Sources, with whether a file that they need is there, and partitions."""
    found = Table(title="sources: [data] source = ...", title_justify="left")
    for name in ("source", "what", "where from"):
        found.add_column(name)
    for name in loaders.SOURCES:
        found.add_row(name, *_source(name))
    dealt = Table(title="partitions: [data] partition = ...", title_justify="left")
    dealt.add_column("partition", no_wrap=True)
    dealt.add_column("who holds what")
    for name, text in PARTITIONS.items():
        dealt.add_row(name, text)
    return [found, dealt]


def _source(name: str) -> tuple[str, str]:
    if name not in loaders.FILES:
        own = {
            "csv": "a file of yours: path = ...",
            "features": "a file of yours: path = ...",
            "hub": "the hub, or local files in its format: path = ...",
        }
        return _about(name), own.get(name, "scikit-learn, already installed")
    relative, _ = loaders.FILES[name]
    folder = os.environ.get(loaders.FOLDER)
    there = folder is not None and (Path(folder) / relative).is_file()
    return _about(name), f"{relative} in ${loaders.FOLDER} ({'found' if there else 'not found'})"


def _about(name: str) -> str:
    return SOURCES.get(name) or first_line(loaders.SOURCES[name].__doc__)


def methods_table() -> Table:
    """Methods by the name that an experiment gives them, with the keys that each uses."""
    table = Table(title="methods: [method] name = ...", title_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("what")
    table.add_column("keys")
    for name, made in methods.REGISTRY.items():
        keys = [key for key in accepts(name) if key not in ("keep", "first")]
        table.add_row(name, first_line(inspect.getdoc(inspect.getmodule(made))), ", ".join(keys))
    table.caption = (
        'keep = ["norm"] keeps parameters with that in their name on the client, under any method; '
        "first = 0.5 trains them alone in the first half of a round's steps (FedRep)"
    )
    table.caption_justify = "left"
    return table


def first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0].rstrip(".")
