"""The papers' tables and figures, measured again: a registry, a cache of cells, and a runner that writes pages.

A reproduction is registered by name and module; the module has `REPRODUCTION`, or the name behind a colon. Its `make`
asks the bench for one cell after the other, so an interrupted grid goes on where it stopped. Cells are kept by what
they were asked for: the reproduction's name and version, and the cell's configuration.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from papers.page import Page, embed, show, write
from tacit.core.files import storage
from tacit.errors import TacitError

if TYPE_CHECKING:
    from rich.console import Console

REGISTRY: Final[dict[str, str]] = {
    "estimation/bernoulli": "papers.generative.bernoulli",
    "estimation/gaussian-dp": "papers.generative.gaussian",
    "estimation/elections": "papers.generative.elections",
    "estimation/linear-regression": "papers.generative.regression",
    "estimation/mixture": "papers.generative.mixture",
    "estimation/nonparametric": "papers.generative.nonparametric",
    "estimation/scale": "papers.generative.scale",
    "multitask/har": "papers.multitask.reproduce",
    "multitask/heterogeneity": "papers.multitask.heterogeneity",
    "multitask/convergence": "papers.multitask.convergence",
    "fedhdp": "papers.fedhdp.overview",
    "fedhdp/selection": "papers.fedhdp.selection",
    "fedhdp/mnist": "papers.fedhdp.reproduce:MNIST_PAGE",
    "fedhdp/mnist-skewed": "papers.fedhdp.reproduce:SKEWED_PAGE",
    "fedhdp/levels": "papers.fedhdp.reproduce:LEVELS_PAGE",
    "fedhdp/writers": "papers.fedhdp.reproduce:WRITERS_PAGE",
    "fedhdp/writers-cnn": "papers.fedhdp.reproduce:WRITERS_CNN_PAGE",
    "fedhdp/private-levels": "papers.fedhdp.private_levels",
    "fedhdp/personal": "papers.fedhdp.personal",
    "fedhdp/open-clients": "papers.fedhdp.open_clients",
    "fedhdp/incentive": "papers.fedhdp.incentive",
    "privatefl": "papers.privatefl.overview",
    "privatefl/selection": "papers.privatefl.tuned",
    "privatefl/cifar10-clip": "papers.privatefl.reproduce:CLIP_PAGE",
    "privatefl/mnist": "papers.privatefl.reproduce:MNIST_PAGE",
    "privatefl/distributed": "papers.privatefl.distributed",
    "privatefl/trust-models": "papers.privatefl.trust",
    "privatefl/pictures": "papers.privatefl.pictures",
    "privatefl/table-1": "papers.privatefl.table_pages:PAGES",
    "privatefl/table-2": "papers.privatefl.table_pages:PAGES",
    "privatefl/table-4": "papers.privatefl.table_pages:PAGES",
    "privatefl/table-5": "papers.privatefl.table_pages:PAGES",
    "privatefl/table-6": "papers.privatefl.table_6",
    "privatefl/table-7": "papers.privatefl.table_pages:PAGES",
    "privatefl/table-8": "papers.privatefl.table_pages:PAGES",
    "privatefl/table-9": "papers.privatefl.table_pages:PAGES",
    "privatefl/table-10": "papers.privatefl.table_pages:PAGES",
    "privatefl/table-11": "papers.privatefl.table_pages:PAGES",
    "privatefl/chmnist": "papers.privatefl.table_pages:PAGES",
    "privatefl/as-published": "papers.privatefl.as_published",
    "privatefl/figure-4": "papers.privatefl.table_pages:PAGES",
    "privatefl/figure-1": "papers.privatefl.figures:PAGES",
    "privatefl/figure-3": "papers.privatefl.figures:PAGES",
    "privatefl/figure-5": "papers.privatefl.figures:PAGES",
    "privatefl/figure-6": "papers.privatefl.figures:PAGES",
    "privatefl/figure-7": "papers.privatefl.figures:PAGES",
    "privatefl/figure-8": "papers.privatefl.figures:PAGES",
    "adaped/selection": "papers.adaped.selection",
    "adaped/table-1": "papers.adaped.table_1",
    "adaped/dp": "papers.adaped.dp",
    "adaped/few-numbers": "papers.adaped.few",
    "adaped/everybody": "papers.adaped.everybody",
}
"""Name to module, and to the name in it where that is not `REPRODUCTION` (of several by name, or of one); imported
when asked for."""

RESULTS: Final = Path("papers/results")
CACHE: Final = Path("runs/reproduce")
HOW_TO: Final = Path("docs/how-to")  # pages there may show a table

Cell = dict[str, Any]


class NotRun(TacitError):
    """A cell is not there, and was not to be run."""


@dataclass(frozen=True)
class Runner:
    """What a reproduction works on: where to say how far it is, how large to run, and the cells that are done."""

    console: "Console"
    full: bool
    seeds: int
    cache: Path | None
    about: str = ""
    first: int = 0  # repetitions before it had a part in choosing settings, and are not reported
    only_kept: bool = False  # raise `NotRun` instead of running a cell
    asked: list[int] = field(default_factory=list)

    def cell(self, config: Mapping[str, Any], compute: Callable[[], Cell]) -> Cell:
        """The figures for this configuration: from the cache, or computed and kept at once. JSON numbers and text."""
        self.asked.append(1)
        if self.cache is None:
            return compute()
        text = json.dumps({"about": self.about, **config}, sort_keys=True)
        path = self.cache / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"
        found = _kept(path, text)
        if found is None and self.only_kept:
            raise NotRun(f"a cell of {self.about} has not been run: run its own page first")
        if found is None:
            found = compute()
            _keep(path, text, found)
        return found

    @property
    def repetitions(self) -> range:
        """The seeds that are reported."""
        return range(self.first, self.first + self.seeds)

    def over_seeds(self, config: Mapping[str, Any], compute: Callable[[int], Cell]) -> dict[str, list[Any]]:
        """One cell a seed, gathered by figure; says so as it goes."""
        self.console.print(f"  {', '.join(f'{key} {value}' for key, value in config.items())}", style="dim")
        cells = [self.cell({**config, "seed": seed}, lambda seed=seed: compute(seed)) for seed in self.repetitions]
        return {name: [cell[name] for cell in cells] for name in cells[0]}


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper. `version` is raised when its code would give other figures."""

    name: str
    title: str
    paper: str
    make: Callable[[Runner], Sequence[Any]]
    seeds: int = 20
    version: int = 1
    cells: str = ""  # a name for the cells where several pages share them; otherwise the page's own
    fewest: int = 2  # seeds: one where the page says so and shows no spread
    first: int = 0  # the first seed that is reported

    def run(self, console: "Console", full: bool, seeds: int | None, cache: Path | None = None) -> Page:
        """Paper and measured side by side; cells already in `cache` are not computed again."""
        if seeds is not None and seeds < self.fewest:
            raise TacitError(f"{self.name} shows a spread over seeds: give --seeds {self.fewest} or more, not {seeds}")
        cells = self.cells or self.name
        place = None if cache is None else cache / cells.replace("/", "-")
        about = f"{cells} version {self.version}"
        bench = Runner(console, full, self.seeds if seeds is None else seeds, place, about, self.first)
        return Page(self.title, self.paper, self.make(bench))


def find(name: str) -> Reproduction:
    if name not in REGISTRY:
        raise TacitError(f"no reproduction is called {name!r}: choose one of {', '.join(REGISTRY)}")
    module, _, place = REGISTRY[name].partition(":")
    found = getattr(import_module(module), place or "REPRODUCTION")
    return found[name] if isinstance(found, Mapping) else found


def reproduce(
    name: str,
    console: "Console",
    *,
    full: bool = False,
    seeds: int | None = None,
    out: Path = RESULTS,
    cache: Path | None = CACHE,
) -> Path:
    """Runs what is missing, prints the tables, writes the page and fills how-to pages that ask; returns its path."""
    found = find(name)
    page = found.run(console, full, seeds, cache)
    show(page, console)
    stem = name.replace("/", "-")
    embed(page, HOW_TO, stem)
    return write(page, out, stem, command(name, full, seeds))


def command(name: str, full: bool, seeds: int | None) -> str:
    return f"python -m papers run {name}" + " --full" * full + (f" --seeds {seeds}" if seeds is not None else "")


def data_folder() -> Path:
    """Where real data lies, or an error that says how to name the place."""
    place = os.environ.get("TACIT_DATA")
    if not place or not Path(place).is_dir():
        raise TacitError(f"TACIT_DATA is {place or 'not set'}: set it to the folder of the data sets")
    return Path(place)


def _kept(path: Path, text: str) -> Cell | None:
    try:
        kept = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return kept["figures"] if kept.get("config") == text else None


def _keep(path: Path, text: str, figures: Cell) -> None:
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")  # two processes may fill one cache
        part.write_text(json.dumps({"config": text, "figures": figures}))
        part.replace(path)
