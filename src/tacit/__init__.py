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

from importlib.metadata import PackageNotFoundError, version

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

try:
    __version__ = version("tacit-fl")
except PackageNotFoundError:  # a source tree that was not installed
    __version__ = "0"
