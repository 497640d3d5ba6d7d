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

`__init__.pyi` is the one table of public names; each is imported when it is first used.
"""

import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import lazy_loader

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
_RENAMED = {"Federation": "FederatedDataset", "Devices": "Availability", "Rota": "LimitedParticipation"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        warnings.warn(f"tacit.{name} is now tacit.{_RENAMED[name]}", DeprecationWarning, stacklevel=2)
    return _load(_RENAMED.get(name, name))


try:
    __version__ = version("tacit-fl")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0"
