"""Mechanisms: what may leave a client and how. A file each: what is asked for, what is done, who sees what, its words.

`MECHANISMS` has them by their names in an experiment's file. An installed package adds its own with an entry point of
the group "tacit.mechanisms", which has the `name` of a subclass of `Mechanism` and its import path.
"""

from typing import Final

from tacit.core.registry import Registry
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

MECHANISMS: Final[Registry[type[Mechanism]]] = Registry(
    "plan",
    "tacit.mechanisms",
    {kind.name: kind for kind in (Open, Central, Grouped, Local, Record, Stepwise, Distributed)},
)


def words_of(plan: str) -> Words:
    """What people are told of a plan, by its name. No words for one that no installed mechanism makes.

    >>> words_of("local").against
    'against everybody, the server included'
    """
    return next((kind.words[plan] for kind in MECHANISMS.importable() if plan in kind.words), Words())
