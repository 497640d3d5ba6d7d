"""Putting a function of ours in the place of one of Flower's, or refusing to start.

A patch that misses its mark is worse than none: if Flower renamed what is replaced, its own code would run instead, and
a node would execute what a server sends. So it is checked first that the name is there, takes the arguments that are
known, and is what the function that matters really calls.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from importlib import import_module
from typing import Any

from tacit.errors import TacitError


@dataclass(frozen=True)
class Patch:
    """`name` of `module`, which takes `parameters` and is called by `caller`, a function or method of that module."""

    module: str
    name: str
    parameters: tuple[str, ...]
    caller: str

    def check(self) -> Any:
        """The module, if all is as it was when this patch was written."""
        try:
            module = import_module(self.module)
        except ImportError as error:
            raise self._refusal(f"there is no {self.module}") from error
        function, caller = getattr(module, self.name, None), reduce(_part, self.caller.split("."), module)
        if not callable(function):
            raise self._refusal(f"{self.module} has no {self.name}")
        if not inspect.isfunction(caller) or self.name not in caller.__code__.co_names:
            raise self._refusal(f"{self.module}.{self.caller} does not call {self.name}")
        taken = tuple(inspect.signature(function).parameters)
        if taken != self.parameters:
            raise self._refusal(f"{self.module}.{self.name} takes {taken}, not {self.parameters}")
        return module

    def put(self, instead: Callable[..., Any]) -> None:
        """The replacement takes its place, after the check."""
        setattr(self.check(), self.name, instead)

    def _refusal(self, why: str) -> TacitError:
        from flwr import __version__

        return TacitError(
            f"this is not the Flower that Tacit knows ({why}; version {__version__}), so nothing is started: "
            "pip install 'tacit-fl[flower]'"
        )


def _part(whole: Any, name: str) -> Any:
    return getattr(whole, name, None)
