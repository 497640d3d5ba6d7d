"""AdaPeD and FedEM with full participation: the two figures in the text beside Table 1."""

from typing import Final

from tacit.experiments.reproduce import Reproduction
from tacit.experiments.reproduce_adaped import make_everybody

REPRODUCTION: Final = Reproduction(
    name="adaped/everybody",
    title="AdaPeD with every client in every round",
    paper="A generative framework (paper 4), Section 4, comparison with FedEM.",
    make=make_everybody,
    seeds=3,
    version=3,
    cells="adaped",
    fewest=1,
)
