"""What `make bench` measures: which systems take turns on which work, and the target of each comparison."""

from dataclasses import dataclass

from benchmarks import roofline
from benchmarks.machine import CORES
from benchmarks.peers import protocol
from benchmarks.roofline import Work
from benchmarks.systems import SYSTEMS, Setting, System, opacus_python, this_python

_THREADS = tuple(sorted({Setting(1, 1), Setting(1, CORES)}))
_ALL = (Setting(1, CORES),)
TACIT_RECORD = System("tacit-record", "Tacit", "tacit_record.py", this_python, _ALL)
OPACUS = System("opacus", "Opacus", "opacus_record.py", opacus_python, _THREADS)


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
    n = protocol.IMAGES_PER_CLIENT
    return roofline.training(network, protocol.COHORT[network], n, n * protocol.LOCAL_EPOCHS, models)


def _beside_peers(network: str, pfl: float, flower: float | None = None) -> tuple[Entry, ...]:
    return (
        Entry("Tacit", SYSTEMS["tacit"], network),
        Entry("pfl-research", SYSTEMS["pfl"], network, faster=pfl),
        Entry("PyTorch loop", SYSTEMS["loop"], network),
        Entry("Flower simulation", SYSTEMS["flower"], network, most=5, faster=flower),
    )


def _beside_itself(one: tuple[str, str], other: tuple[str, str], longer: float) -> tuple[Entry, ...]:
    tacit = SYSTEMS["tacit"]
    return Entry(f"Tacit, {one[0]}", tacit, one[1]), Entry(f"Tacit, {other[0]}", tacit, other[1], longer=longer)


_MEAN = sum(protocol.unequal_sizes()) // protocol.CLIENTS
_ROWS = protocol.RECORD_ROWS
_ALL_WORK = (
    Workload(
        "a",
        "DP-FedAvg, MLP 784-100-10",
        _beside_peers("mlp", 6, 100),
        15,
        _training("mlp"),
        of_roofline=4,
    ),
    Workload("b", "DP-FedAvg, CNN 6-16-120-84-10", _beside_peers("cnn", 2.5), 9, _training("cnn")),
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
            Entry("Opacus", OPACUS, "dnn", faster=8),
            Entry("Opacus, ghost clipping", OPACUS, "dnn-ghost"),
        ),
        5,
        roofline.training("dnn", protocol.RECORD_CLIENTS, _ROWS, _ROWS),
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
)
WORKLOADS = {workload.key: workload for workload in _ALL_WORK}
