"""AdaPeD and FedEM with full participation: the two figures in the text beside Table 1."""

from typing import Final

from papers.adaped.table_1 import make_everybody
from papers.bench import Reproduction

REPRODUCTION: Final = Reproduction(
    name="adaped/everybody",
    title="AdaPeD with every client in every round",
    paper="A generative framework, Section 4, comparison with FedEM.",
    make=make_everybody,
    seeds=3,
    version=3,
    cells="adaped",
    fewest=1,
)
