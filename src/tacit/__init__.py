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
    from tacit.data.dataset import Federation, from_clients
    from tacit.data.loaders import load
    from tacit.errors import StorageError, TacitError
    from tacit.experiments.result import Result
    from tacit.experiments.train import train
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
    from tacit.privacy.levels import Level
    from tacit.privacy.mechanisms.clipping import Fixed, Quantile
    from tacit.privacy.mechanisms.requests import Central, Distributed, Grouped, Local, Open, Record
    from tacit.privacy.mechanisms.stepwise import Stepwise
    from tacit.privacy.membership import Change
    from tacit.report.summary import open_findings as open_run
    from tacit.rounds.assemble import Privacy, Training
    from tacit.rounds.loop import Schedule
    from tacit.sampling.availability import Devices
    from tacit.sampling.cohorts import FixedSize, Poisson
    from tacit.sampling.limited_participation import Rota

try:
    __version__ = version("tacit-fl")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0"

_HOMES = {
    "tacit.rounds.assemble": ("Privacy", "Training"),
    "tacit.rounds.loop": ("Schedule",),
    "tacit.errors": ("StorageError", "TacitError"),
    "tacit.experiments.result": ("Result",),
    "tacit.experiments.train": ("train",),
    "tacit.sampling.cohorts": ("FixedSize", "Poisson"),
    "tacit.data.dataset": ("Federation", "from_clients"),
    "tacit.sampling.availability": ("Devices",),
    "tacit.sampling.limited_participation": ("Rota",),
    "tacit.data.loaders": ("load",),
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
    "tacit.privacy.mechanisms.clipping": ("Fixed", "Quantile"),
    "tacit.privacy.levels": ("Level",),
    "tacit.privacy.membership": ("Change",),
    "tacit.privacy.mechanisms.requests": ("Central", "Distributed", "Grouped", "Local", "Open", "Record"),
    "tacit.privacy.mechanisms.stepwise": ("Stepwise",),
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
        value = import_module("tacit.report.summary").open_findings
    elif name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
    else:
        raise AttributeError(f"module 'tacit' has no attribute '{name}'")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
