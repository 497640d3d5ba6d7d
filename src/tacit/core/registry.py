"""What a name in a file stands for: a class of Tacit's, one that an installed package adds, or an import path.

An installed package adds its classes by entry points: `[project.entry-points."tacit.methods"]`, `anchored =
"mymethods:Anchored"`. What is not installed is named by its import path, "mymethods:Anchored". Nothing of either is
imported before its name is asked for.
"""

import importlib
import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property, reduce
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from tacit.errors import TacitError

Kind = TypeVar("Kind")


class Registry(Mapping[str, Kind], Generic[Kind]):
    """Classes or functions by name. A package cannot take a name of `builtin`, which are Tacit's.

    `what` they are, in words, stands in every error; packages add theirs to the entry points of `group`.
    """

    def __init__(self, what: str, group: str, builtin: Mapping[str, Kind]) -> None:
        self.what, self.group, self.builtin = what, group, dict(builtin)

    @cached_property
    def installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.builtin}

    def __getitem__(self, name: str) -> Kind:
        return self.builtin[name] if name in self.builtin else self._imported(name, self.installed[name].value)

    def __iter__(self) -> Iterator[str]:
        return iter([*self.builtin, *self.installed])

    def __len__(self) -> int:
        return len(self.builtin) + len(self.installed)

    def __contains__(self, name: object) -> bool:
        return name in self.builtin or name in self.installed

    def find(self, name: str) -> Kind:
        """What `name` stands for, an import path included. Raises `TacitError` with the nearest name if there is none.

        >>> Registry("method", "tacit.methods", {"ditto": dict}).find("collections:OrderedDict").__name__
        'OrderedDict'
        """
        if name in self:
            return self[name]
        if ":" in name:
            return self._imported(name, name)
        raise TacitError(f"unknown {self.what} '{name}': {nearest(name, [*self])}")

    def importable(self) -> Iterator[Kind]:
        """All of them, but for those of packages that cannot be imported: a warning names each."""
        for name in self:
            try:
                yield self[name]
            except TacitError as error:
                warnings.warn(str(error), stacklevel=2)

    def _imported(self, name: str, path: str) -> Kind:
        module, _, attribute = path.partition(":")
        make_importable(Path.cwd())
        try:
            value: Any = reduce(getattr, attribute.split("."), importlib.import_module(module))
        except Exception as error:  # somebody else's code: anything may come of importing it
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise TacitError(f"{self.what} '{name}' cannot be imported ({reason}): check its path") from error
        if not callable(value):
            raise TacitError(f"{self.what} '{name}' is a {type(value).__name__}: name a class or a function")
        return cast(Kind, value)


def make_importable(folder: Path) -> None:
    """Modules in `folder` can be imported; what is installed comes first, so that none of it is replaced."""
    place = os.path.abspath(folder)
    if place not in sys.path:
        sys.path.append(place)


def nearest(name: str, known: list[str]) -> str:
    """A suggestion for a word that is not among the known ones."""
    near = get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(known)}"
