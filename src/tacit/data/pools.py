"""Rows before they belong to anyone, and the one function that divides them among clients."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypedDict

import numpy as np
from torch import Tensor

from tacit.core.rng import generator
from tacit.data import partition as deal
from tacit.data.dataset import FederatedDataset, Pair
from tacit.data.validate import at_least, proportion, unknown
from tacit.errors import TacitError


class Ids(NamedTuple):
    """Who made each row; the test rows too, where the same people made them or others are known to have."""

    train: np.ndarray
    test: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Pool:
    """A data set as it is published. Rows of one unit overlap: they are never divided between training and test."""

    name: str
    x: Tensor
    y: Tensor
    classes: int
    test: Pair | None = None
    ids: Mapping[str, Ids] = field(default_factory=dict)  # natural partitions by name: writer, subject, ...
    units: np.ndarray | None = None
    usual: str = "classes"  # the partition of a user who names none
    usual_clients: int = 100


class Options(TypedDict, total=False):
    """The arguments of `divide`."""

    clients: int | None
    partition: str | None
    classes_each: int
    alpha: float
    minimum: int
    group: int
    test: str
    test_fraction: float
    common_fraction: float
    seed: int


Rule = Callable[[np.ndarray], deal.Parts]


def divide(
    pool: Pool,
    *,
    clients: int | None = None,
    partition: str | None = None,
    classes_each: int = 2,
    alpha: float = 0.5,
    minimum: int = 1,
    group: int = 1,
    test: str = "own",
    test_fraction: float = 0.2,
    common_fraction: float = 0.2,
    seed: int = 0,
) -> FederatedDataset:
    """A federation of a pool: by "iid", "one-class", "classes" (`classes_each`), "dirichlet" (`alpha`, `minimum`),
    or by a name among `pool.ids`, where each client joins `group` of them and `clients` says how many are kept.

    A pool without a test set gives up `common_fraction` of its rows, class by class, as the common one; not so
    where clients are natural: there all clients' own test rows together are the common test set.
    """
    name = partition or pool.usual
    if name in pool.ids:
        return _natural(pool, name, clients, group, test, test_fraction, seed)
    count = pool.usual_clients if clients is None else clients
    rules: dict[str, Rule] = {
        "iid": lambda y: deal.iid(y, count, seed),
        "one-class": lambda y: deal.one_class(y, count, seed),
        "classes": lambda y: deal.n_class(y, count, classes_each, seed),
        "dirichlet": lambda y: deal.dirichlet(y, count, alpha, minimum, seed),
    }
    if name not in rules:
        raise unknown(f"partition of {pool.name}", name, [*rules, *pool.ids])
    pool = pool if pool.test is not None else hold_out_common(pool, common_fraction, seed)
    return _federate(pool, _by_unit(pool, rules[name]), None, test, test_fraction, seed)


def _federate(
    pool: Pool, parts: deal.Parts, ids: list[str] | None, test: str | deal.Parts, test_fraction: float, seed: int
) -> FederatedDataset:
    return deal.federate(
        pool.x, pool.y, parts, ids=ids, classes=pool.classes, pooled=pool.test, test=test,
        test_fraction=test_fraction, units=pool.units, seed=seed, name=pool.name,
    )  # fmt: skip


def _by_unit(pool: Pool, rule: Rule) -> deal.Parts:
    """Deals out whole units, so that no two clients hold overlapping rows. A unit's class is that of its first row."""
    if pool.units is None:
        return rule(pool.y.numpy())
    _, first, unit = np.unique(pool.units, return_index=True, return_inverse=True)
    owner = np.empty(len(first), np.int64)
    parts = rule(pool.y.numpy()[first])
    for client, part in enumerate(parts):
        owner[part] = client
    return [np.flatnonzero(owner[unit] == client) for client in range(len(parts))]


def hold_out_common(pool: Pool, fraction: float, seed: int) -> Pool:
    """The pool with `fraction` of each class (of its units) set aside as the test set; 0 sets none aside."""
    proportion(fraction, "common_fraction", one=False)
    units = np.arange(len(pool.y)) if pool.units is None else pool.units
    names, first = np.unique(units, return_index=True)
    kinds, rng = pool.y.numpy()[first], generator(seed, "common test rows")
    order = [rng.permutation(names[kinds == kind]) for kind in np.unique(kinds)]
    held = np.isin(units, np.concatenate([part[: round(len(part) * fraction)] for part in order]))
    rest, held = np.flatnonzero(~held), np.flatnonzero(held)
    return replace(
        pool,
        x=pool.x[rest],
        y=pool.y[rest],
        units=None if pool.units is None else pool.units[rest],
        test=(pool.x[held], pool.y[held]) if len(held) else None,
    )


def _natural(
    pool: Pool, name: str, clients: int | None, group: int, test: str, test_fraction: float, seed: int
) -> FederatedDataset:
    names, parts = deal.by_id(pool.ids[name].train)
    members = _members(len(names), clients, group, name, seed)
    joined = [np.sort(np.concatenate([parts[at] for at in own])) for own in members]
    ids = ["+".join(names[at] for at in own) for own in members]
    own: str | deal.Parts = test
    if test == "matched":
        known = _test_parts(pool, name)
        own = [np.concatenate([known.get(names[at], np.arange(0)) for at in who]) for who in members]
    return _federate(pool, joined, ids, own, test_fraction, seed)


def _members(count: int, clients: int | None, group: int, name: str, seed: int) -> list[np.ndarray]:
    """Which natural ids make up each client. What is left over, fewer than `group`, is left out."""
    at_least(group, 1, "group")
    most = count // group
    wanted = most if clients is None else clients
    at_least(wanted, 1, "the number of clients")
    if wanted > most:
        raise TacitError(f"{wanted} clients of {group} {name} ids each, and there are {count} ids: use at most {most}")
    drawn = generator(seed, "partition").permutation(count)[: wanted * group].reshape(wanted, group)
    return sorted((np.sort(own) for own in drawn), key=lambda own: own.tolist())


def _test_parts(pool: Pool, name: str) -> dict[str, np.ndarray]:
    ids = pool.ids[name]
    if ids.test is None or not np.isin(ids.test, ids.train).all():
        raise TacitError(f"the test rows of {pool.name} are not of the same {name} ids: use test='own'")
    return dict(zip(*deal.by_id(ids.test), strict=True))
