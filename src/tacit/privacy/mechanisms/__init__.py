"""Mechanisms: what may leave a client and how. A file each: what is asked for, what is done, who sees what, its words.

`MECHANISMS` has them by their names in an experiment's file. An installed package adds its own with an entry point of
the group "tacit.mechanisms", which names a subclass of `Mechanism`.
"""

import warnings
from collections import UserDict
from collections.abc import Iterator
from functools import cached_property
from importlib.metadata import entry_points
from typing import Final

from tacit.privacy.mechanisms.distributed import Distributed
from tacit.privacy.mechanisms.grouped import Central, Grouped
from tacit.privacy.mechanisms.local import Local
from tacit.privacy.mechanisms.open import Open
from tacit.privacy.mechanisms.record import Record
from tacit.privacy.mechanisms.stepwise import Stepwise
from tacit.privacy.plan import Mechanism, Words

__all__ = [
    "MECHANISMS",
    "Central",
    "Distributed",
    "Grouped",
    "Local",
    "Mechanism",
    "Open",
    "Record",
    "Stepwise",
    "words_of",
]

GROUP: Final = "tacit.mechanisms"


class _Registry(UserDict[str, type[Mechanism]]):
    """By name. What other packages have installed is looked for when it is first read, and never on import."""

    def __init__(self, *kinds: type[Mechanism]) -> None:
        self.own = {kind.name: kind for kind in kinds}

    @cached_property
    def data(self) -> dict[str, type[Mechanism]]:  # pyright: ignore[reportIncompatibleVariableOverride]
        return {kind.name: kind for kind in (*_installed(), *self.own.values())}  # nobody replaces Tacit's own


MECHANISMS: Final = _Registry(Open, Central, Grouped, Local, Record, Stepwise, Distributed)


def _installed() -> Iterator[type[Mechanism]]:
    for point in entry_points(group=GROUP):
        try:
            yield point.load()
        except Exception as error:  # somebody else's code: a broken package must not stop a run that does without it
            warnings.warn(f"the mechanism {point.name!r} of {point.value} cannot be loaded: {error}", stacklevel=2)


def words_of(plan: str) -> Words:
    """What people are told of a plan, by its name. No words for one that no installed mechanism makes.

    >>> words_of("local").against
    'against everybody, the server included'
    """
    return next((kind.words[plan] for kind in MECHANISMS.values() if plan in kind.words), Words())
