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

from tacit.engine.checkpoint import storage
from tacit.errors import TacitError
from tacit.experiments.reproduce_page import Page, embed, show, write

if TYPE_CHECKING:
    from rich.console import Console

REGISTRY: Final[dict[str, str]] = {
    "estimation/bernoulli": "tacit.experiments.reproduce_bernoulli",
    "estimation/gaussian-dp": "tacit.experiments.reproduce_gaussian",
    "estimation/elections": "tacit.experiments.reproduce_elections",
    "estimation/linear-regression": "tacit.experiments.reproduce_regression",
    "estimation/mixture": "tacit.experiments.reproduce_mixture",
    "estimation/scale": "tacit.experiments.reproduce_scale",
    "multitask/har": "tacit.experiments.reproduce_multitask",
    "fedhdp": "tacit.experiments.papers.fedhdp_overview",
    "fedhdp/selection": "tacit.experiments.papers.fedhdp_selection",
    "fedhdp/mnist": "tacit.experiments.papers.fedhdp:MNIST_PAGE",
    "fedhdp/mnist-skewed": "tacit.experiments.papers.fedhdp:SKEWED_PAGE",
    "fedhdp/levels": "tacit.experiments.papers.fedhdp:LEVELS_PAGE",
    "fedhdp/writers": "tacit.experiments.papers.fedhdp:WRITERS_PAGE",
    "fedhdp/writers-cnn": "tacit.experiments.papers.fedhdp:WRITERS_CNN_PAGE",
    "fedhdp/incentive": "tacit.experiments.papers.fedhdp_incentive",
    "privatefl": "tacit.experiments.papers.privatefl_overview",
    "privatefl/selection": "tacit.experiments.papers.privatefl_tuned",
    "privatefl/cifar10-clip": "tacit.experiments.papers.privatefl:CLIP_PAGE",
    "privatefl/mnist": "tacit.experiments.papers.privatefl:MNIST_PAGE",
    "privatefl/distributed": "tacit.experiments.papers.privatefl_distributed",
    "privatefl/trust-models": "tacit.experiments.papers.privatefl_trust",
    "privatefl/pictures": "tacit.experiments.papers.privatefl_pictures",
    "privatefl/table-1": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/table-2": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/table-4": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/table-5": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/table-7": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/table-8": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/table-9": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/table-10": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/table-11": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/figure-4": "tacit.experiments.papers.privatefl_table_pages:PAGES",
    "privatefl/figure-1": "tacit.experiments.papers.privatefl_figures:PAGES",
    "privatefl/figure-3": "tacit.experiments.papers.privatefl_figures:PAGES",
    "privatefl/figure-5": "tacit.experiments.papers.privatefl_figures:PAGES",
    "privatefl/figure-6": "tacit.experiments.papers.privatefl_figures:PAGES",
    "privatefl/figure-7": "tacit.experiments.papers.privatefl_figures:PAGES",
    "privatefl/figure-8": "tacit.experiments.papers.privatefl_figures:PAGES",
    "adaped/selection": "tacit.experiments.reproduce_adaped_selection",
    "adaped/table-1": "tacit.experiments.reproduce_adaped",
    "adaped/dp": "tacit.experiments.reproduce_adaped_dp",
    "adaped/everybody": "tacit.experiments.reproduce_adaped_everybody",
}
"""Name to module, and to the name in it where that is not `REPRODUCTION` (of several by name, or of one); imported
when asked for."""

RESULTS: Final = Path("docs/results")
CACHE: Final = Path("runs/reproduce")

Cell = dict[str, Any]


class NotRun(TacitError):
    """A cell is not there, and was not to be run."""


@dataclass(frozen=True)
class Bench:
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
    make: Callable[[Bench], Sequence[Any]]
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
        bench = Bench(console, full, self.seeds if seeds is None else seeds, place, about, self.first)
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
    embed(page, out.parent / "how-to", stem)
    return write(page, out, stem, command(name, full, seeds))


def command(name: str, full: bool, seeds: int | None) -> str:
    return f"tacit reproduce {name}" + " --full" * full + (f" --seeds {seeds}" if seeds is not None else "")


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
