"""What a name in a file stands for: Tacit's own, what an installed package adds, or an import path.

An installed package adds its own by an entry point: `[project.entry-points."tacit.methods"]`, `anchored =
"mymethods:Anchored"`. What is not installed is named by its import path, "mymethods:Anchored". Nothing of either is
imported before its name is asked for.
"""

import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Generic, TypeVar

from tacit.errors import TacitError

Kind = TypeVar("Kind")


class Registry(Mapping[str, Kind], Generic[Kind]):
    """Classes or functions by name. A name of Tacit's own cannot be taken by a package.

    `what` they are, in words, stands in every error; packages add theirs to the entry points of `group`.
    """

    def __init__(self, what: str, group: str, own: Mapping[str, Kind]) -> None:
        self.what, self.group, self.own = what, group, dict(own)

    @cached_property
    def installed(self) -> dict[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group) if point.name not in self.own}

    def __getitem__(self, name: str) -> Kind:
        return self.own[name] if name in self.own else self._imported(name, self.installed[name].value)

    def __iter__(self) -> Iterator[str]:
        return iter([*self.own, *self.installed])

    def __len__(self) -> int:
        return len(self.own) + len(self.installed)

    def __contains__(self, name: object) -> bool:
        return name in self.own or name in self.installed

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

    def _imported(self, name: str, path: str) -> Kind:
        module, _, attribute = path.partition(":")
        make_importable(Path.cwd())
        try:
            found = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        except Exception as error:  # somebody else's code: anything may come of importing it
            reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise TacitError(f"{self.what} '{name}' cannot be imported ({reason}): check its path") from error
        if not callable(found):
            raise TacitError(f"{self.what} '{name}' is a {type(found).__name__}: name a class or a function")
        return found  # pyright: ignore[reportReturnType]


def make_importable(folder: Path) -> None:
    """Modules in `folder` can be imported; what is installed comes first, so that none of it is replaced."""
    place = os.path.abspath(folder)
    if place not in sys.path:
        sys.path.append(place)


def nearest(name: str, known: list[str]) -> str:
    """A suggestion for a word that is not among the known ones."""
    near = get_close_matches(name, known, 1)
    return f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(known)}"
