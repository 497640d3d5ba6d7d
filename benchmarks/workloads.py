"""What `make bench` measures: which systems take turns on which work, and the target of each comparison."""

from dataclasses import dataclass

from benchmarks import roofline
from benchmarks.machine import CORES
from benchmarks.peers import protocol
from benchmarks.roofline import Work
from benchmarks.systems import SYSTEMS, Setting, System, jax_python, opacus_python, this_python

_THREADS = tuple(sorted({Setting(1, 1), Setting(1, CORES)}))
_ALL = (Setting(1, CORES),)
TACIT_RECORD = System("tacit-record", "Tacit", "tacit_record.py", this_python, _ALL)
OPACUS = System("opacus", "Opacus", "opacus_record.py", opacus_python, _THREADS)
JAX_RECORD = System("jax-record", "JAX", "jax_record.py", jax_python, _THREADS)


@dataclass(frozen=True)
class Entry:
    """One system on a workload: the model or world that its script is asked for, and how many rounds it does."""

    title: str
    system: System
    model: str
    most: int = 10**9
    faster: float | None = None  # Tacit is to be so many times as fast
    longer: float | None = None  # Tacit may take so many times as long


@dataclass(frozen=True)
class Workload:
    """Tacit's entry first."""

    key: str
    title: str
    entries: tuple[Entry, ...]
    repeats: int
    work: Work
    within: float | None = None  # seconds that Tacit may take
    of_roofline: float | None = None  # times the roofline's seconds that it may take


def _training(network: str, models: int = 1) -> Work:
    how = protocol.training(network)
    return roofline.training(network, how.cohort, how.examples, how.examples * how.epochs, models)


_BY_VMAP = ("mlp", "words")  # convolutions with weights of each client's own are what XLA is slow at


def _beside_peers(
    network: str, pfl: float, flower: float | None = None, jax: float | None = None, scan: float | None = None
) -> tuple[Entry, ...]:
    system = SYSTEMS["tacit-field" if network in protocol.FIELD else "tacit"]
    return (
        Entry("Tacit", system, network),
        Entry("pfl-research", SYSTEMS["pfl"], network, faster=pfl),
        Entry("PyTorch loop", SYSTEMS["loop"], network),
        Entry("Flower simulation", SYSTEMS["flower"], network, most=3, faster=flower),
        Entry("JAX, clients by scan", SYSTEMS["jax"], f"{network}-scan", most=5, faster=scan or jax),
        Entry("FedJAX", SYSTEMS["fedjax"], network, most=5, faster=jax),
        *(
            Entry("JAX, clients by vmap", SYSTEMS["jax"], f"{each}-vmap", 5, jax)
            for each in _BY_VMAP
            if each == network
        ),
    )


def _without_flower(entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    return tuple(entry for entry in entries if entry.system is not SYSTEMS["flower"])


def _beside_itself(one: tuple[str, str], other: tuple[str, str], longer: float) -> tuple[Entry, ...]:
    tacit = SYSTEMS["tacit"]
    return Entry(f"Tacit, {one[0]}", tacit, one[1]), Entry(f"Tacit, {other[0]}", tacit, other[1], longer=longer)


_MEAN = sum(protocol.unequal_sizes()) // protocol.CLIENTS
_ROWS = protocol.RECORD_ROWS
_ALL_WORK = (
    Workload(
        "a",
        "DP-FedAvg, MLP 784-100-10",
        _beside_peers("mlp", 19, 100, scan=2.5),
        15,
        _training("mlp"),
        of_roofline=4,
    ),
    Workload("b", "DP-FedAvg, CNN 6-16-120-84-10", _beside_peers("cnn", 7), 9, _training("cnn")),
    Workload("c", "DP-FedAvg, CNN 32-64-128-62", _beside_peers("writers", 3), 5, _training("writers")),
    Workload(
        "d1",
        "Ditto, MLP",
        _beside_itself(("Ditto", "ditto-mlp"), ("FedAvg", "mlp"), 2.2),
        15,
        _training("mlp", 2),
    ),
    Workload(
        "d2",
        "Ditto, CNN 6-16-120-84-10",
        _beside_itself(("Ditto", "ditto-cnn"), ("FedAvg", "cnn"), 2.2),
        7,
        _training("cnn", 2),
    ),
    Workload(
        "e",
        "Record-level DP-SGD, DNN 784-600-100-10",
        (
            Entry("Tacit", TACIT_RECORD, "dnn"),
            Entry("Opacus", OPACUS, "dnn", most=3, faster=8),
            Entry("Opacus, ghost clipping", OPACUS, "dnn-ghost", faster=4),
            Entry("JAX, ghost norms by hand", JAX_RECORD, "dnn", faster=3),
        ),
        5,
        roofline.training("dnn", protocol.RECORD_CLIENTS, _ROWS, _ROWS),
        of_roofline=10 / 3,
    ),
    Workload(
        "f",
        f"Evaluating {protocol.CLIENTS:,} personal MLPs",
        (Entry("Tacit", SYSTEMS["tacit"], "evaluation"),),
        9,
        roofline.evaluation("mlp", protocol.CLIENTS, protocol.TESTS),
        within=1.0,
    ),
    Workload(
        "g",
        "Clients of unequal sizes, MLP",
        _beside_itself(("10 to 1,000 images", "unequal"), (f"{_MEAN} images each", "equal"), 1.25),
        15,
        roofline.training("mlp", protocol.COHORT["mlp"], _MEAN, _MEAN),
    ),
    Workload(
        "h",
        "pfl-research's CIFAR-10 setting, CNN 32-64-128-10 with dropout",
        _beside_peers("cifar", 3, jax=2),
        5,
        _training("cifar"),
    ),
    Workload(
        "i",
        "Next words, transformer of 2 layers",
        _without_flower(_beside_peers("words", 2)),
        5,
        _training("words"),
    ),
    Workload(
        "j",
        "Adapters of a frozen ViT-tiny",
        (Entry("Tacit", SYSTEMS["tacit-field"], "lora"), Entry("PyTorch loop", SYSTEMS["loop"], "lora")),
        5,
        roofline.frozen_training(protocol.FIELD["lora"]),
    ),
)
WORKLOADS = {workload.key: workload for workload in _ALL_WORK}
