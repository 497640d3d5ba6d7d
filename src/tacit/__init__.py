"""Differentially private, personalized federated learning: every client chooses its privacy and gets its own model.

    import tacit

    data = tacit.load("digits", clients=200, classes_each=2)
    privacy = tacit.Privacy(
        tacit.Grouped(),
        levels=(tacit.Level("private", epsilon=8, delta=1e-3), tacit.Level("open")),
        choices={"open": 0.1},
    )
    model = tacit.models.build("mlp", data.input_shape, data.classes, hidden=[32])
    result = tacit.train(data, model, tacit.Ditto(), privacy, tacit.Training(rounds=50, sampler=tacit.Poisson(0.2)))
    print(result)
    result.save_html("digits.html")

Names are imported when they are first used.
"""

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tacit import methods, models
    from tacit.engine.assemble import Privacy, Training
    from tacit.engine.loop import Schedule
    from tacit.errors import StorageError, TacitError
    from tacit.experiments.findings import open_findings as open_run
    from tacit.experiments.result import Result
    from tacit.experiments.train import train
    from tacit.federation.cohort import FixedSize, Poisson
    from tacit.federation.data import Federation, from_clients
    from tacit.federation.devices import Devices
    from tacit.federation.rota import Rota
    from tacit.federation.sources import load
    from tacit.methods import (
        APFL,
        KL,
        L1,
        L2,
        AdaPeD,
        AdaPeDAlone,
        Ditto,
        FedAvg,
        FedEM,
        FineTuned,
        KeepLocal,
        LocalOnly,
        LocalSgd,
        Method,
        Mixture,
        Multitask,
        MutualLearning,
        PerFedAvg,
        Personal,
        PFedMe,
        PPSgd,
        QuPeD,
        Scaffold,
        ServerAdam,
        ServerSgd,
    )
    from tacit.privacy.clip import Fixed, Quantile
    from tacit.privacy.levels import Level
    from tacit.privacy.members import Change
    from tacit.privacy.requests import Central, Distributed, Grouped, Local, Open, Record
    from tacit.privacy.stepwise import Stepwise

try:
    __version__ = version("tacit-fl")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0"

_HOMES = {
    "tacit.engine.assemble": ("Privacy", "Training"),
    "tacit.engine.loop": ("Schedule",),
    "tacit.errors": ("StorageError", "TacitError"),
    "tacit.experiments.result": ("Result",),
    "tacit.experiments.train": ("train",),
    "tacit.federation.cohort": ("FixedSize", "Poisson"),
    "tacit.federation.data": ("Federation", "from_clients"),
    "tacit.federation.devices": ("Devices",),
    "tacit.federation.rota": ("Rota",),
    "tacit.federation.sources": ("load",),
    "tacit.methods": (
        "KL",
        "L1",
        "L2",
        "Mixture",
        "Personal",
        "APFL",
        "AdaPeD",
        "AdaPeDAlone",
        "Ditto",
        "FedAvg",
        "FedEM",
        "FineTuned",
        "KeepLocal",
        "LocalOnly",
        "LocalSgd",
        "Method",
        "Multitask",
        "MutualLearning",
        "PFedMe",
        "PerFedAvg",
        "QuPeD",
        "PPSgd",
        "Scaffold",
        "ServerAdam",
        "ServerSgd",
    ),
    "tacit.privacy.clip": ("Fixed", "Quantile"),
    "tacit.privacy.levels": ("Level",),
    "tacit.privacy.members": ("Change",),
    "tacit.privacy.requests": ("Central", "Distributed", "Grouped", "Local", "Open", "Record"),
    "tacit.privacy.stepwise": ("Stepwise",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}
_MODULES = ("methods", "models")

__all__ = [
    "APFL",
    "KL",
    "L1",
    "L2",
    "AdaPeD",
    "AdaPeDAlone",
    "Central",
    "Change",
    "Devices",
    "Distributed",
    "Ditto",
    "FedAvg",
    "FedEM",
    "Federation",
    "FineTuned",
    "Fixed",
    "FixedSize",
    "Grouped",
    "KeepLocal",
    "Level",
    "Local",
    "LocalOnly",
    "LocalSgd",
    "Method",
    "Mixture",
    "Multitask",
    "MutualLearning",
    "Open",
    "PFedMe",
    "PPSgd",
    "PerFedAvg",
    "Personal",
    "Poisson",
    "Privacy",
    "QuPeD",
    "Quantile",
    "Record",
    "Result",
    "Rota",
    "Scaffold",
    "Schedule",
    "ServerAdam",
    "ServerSgd",
    "Stepwise",
    "StorageError",
    "TacitError",
    "Training",
    "__version__",
    "from_clients",
    "load",
    "methods",
    "models",
    "open_run",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"tacit.{name}")
    if name == "open_run":
        value = import_module("tacit.experiments.findings").open_findings
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'tacit' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
