"""Who gets which rows: pure functions from labels to one array of row numbers for each client.

Every function terminates, is a function of its arguments and the seed, and gives sorted rows that are disjoint
and cover all rows; every client gets at least one. What cannot be done is a `TacitError`.

Rows before they belong to anyone, and the one function that divides them among clients.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple, TypedDict

import numpy as np
import torch
from torch import Tensor

from tacit.core.columns import Rows
from tacit.core.rng import generator
from tacit.data.dataset import FederatedDataset, Pair, hold_out, offsets_of
from tacit.data.from_rows import grouped
from tacit.data.tables import NO_NAMES, Encoding
from tacit.data.validate import at_least, proportion, unknown
from tacit.errors import TacitError

DRAWN: Final = 40  # test rows of a client


class Ids(NamedTuple):
    """Who made each row; the test rows too, where the same people made them or others are known to have."""

    train: np.ndarray
    test: np.ndarray | None = None


@dataclass(frozen=True, eq=False)
class Pool:
    """A data set as it is published. Rows of one unit overlap: they are never divided between training and test."""

    name: str
    x: Rows
    y: Tensor
    classes: int
    test: Pair | None = None
    ids: Mapping[str, Ids] = field(default_factory=dict)  # natural partitions by name: writer, subject, ...
    units: np.ndarray | None = None
    usual: str = "classes"  # the partition of a user who names none
    usual_clients: int = 100
    encoding: Encoding = NO_NAMES  # public: what columns and classes are called


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


Parts = list[np.ndarray]
Rule = Callable[[np.ndarray], Parts]


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
    name = partition or (pool.usual if pool.usual in pool.ids or _one_class_each(pool.y) else "iid")
    said = {"classes_each": classes_each, "alpha": alpha, "minimum": minimum, "group": group}
    _refuse_unused(name, said, natural=name in pool.ids)
    if name in pool.ids:
        return _natural(pool, name, clients, group, test, test_fraction, seed)
    count = pool.usual_clients if clients is None else clients
    rules: dict[str, Rule] = {
        "iid": lambda y: iid(y, count, seed),
        "one-class": lambda y: one_class(y, count, seed),
        "classes": lambda y: n_class(y, count, classes_each, seed),
        "dirichlet": lambda y: dirichlet(y, count, alpha, minimum, seed),
    }
    if name not in rules:
        raise unknown(f"partition of {pool.name}", name, [*rules, *pool.ids])
    if not _one_class_each(pool.y) and (name != "iid" or test in DEALT):
        raise TacitError(
            f"partition '{name}' and test '{test}' go by the classes of rows, and {pool.name} has other targets: use "
            "partition 'iid' and test 'own', or clients of their own"
        )
    pool = pool if pool.test is not None else hold_out_common(pool, common_fraction, seed)
    return _federate(pool, _by_unit(pool, rules[name]), None, test, test_fraction, seed)


_USERS: Final = {"classes_each": ("classes", 2), "alpha": ("dirichlet", 0.5), "minimum": ("dirichlet", 1)}
"""The partition that uses an option, and what the option is where nobody says."""


def _refuse_unused(partition: str, said: Mapping[str, float], natural: bool) -> None:
    for option, (user, usual) in {**_USERS, "group": (partition if natural else "", 1)}.items():
        if said[option] != usual and user != partition:
            where = f"'{user}'" if user else "one whose clients are in the data"
            unused = f"{option} is {said[option]:g}, and partition '{partition}' does not use it"
            raise TacitError(f"{unused}: leave it out, or use {where}")


def _federate(
    pool: Pool, parts: Parts, ids: list[str] | None, test: str | Parts, test_fraction: float, seed: int
) -> FederatedDataset:
    return federate(
        pool.x, pool.y, parts, ids=ids, classes=pool.classes, pooled=pool.test, test=test,
        test_fraction=test_fraction, units=pool.units, seed=seed, name=pool.name, encoding=pool.encoding,
    )  # fmt: skip


def _one_class_each(y: Tensor) -> bool:
    return y.dim() == 1 and not y.is_floating_point()


def _kinds(y: Tensor) -> np.ndarray:
    """By which rows are dealt: their classes, where each has one."""
    return y.numpy() if _one_class_each(y) else np.zeros(len(y), np.int64)


def _by_unit(pool: Pool, rule: Rule) -> Parts:
    """Deals out whole units, so that no two clients hold overlapping rows. A unit's class is that of its first row."""
    if pool.units is None:
        return rule(_kinds(pool.y))
    _, first, unit = np.unique(pool.units, return_index=True, return_inverse=True)
    owner = np.empty(len(first), np.int64)
    parts = rule(_kinds(pool.y)[first])
    for client, part in enumerate(parts):
        owner[part] = client
    return [np.flatnonzero(owner[unit] == client) for client in range(len(parts))]


def validation_split(data: FederatedDataset, fraction: float, seed: int) -> FederatedDataset:
    """The training rows alone: about `fraction` of each client's are held out and take the place of the test rows.

    Settings are chosen on them; the test rows are not in it.
    """
    split = [hold_out(int(n), fraction, seed, k) for k, n in enumerate(data.sizes)]
    kept, held = (
        [rows + start for rows, start in zip(part, data.offsets, strict=False)] for part in zip(*split, strict=True)
    )
    train, test = (torch.from_numpy(np.concatenate(part)) for part in (kept, held))
    return replace(
        data,
        x=data.x[train],
        y=data.y[train],
        offsets=offsets_of([len(rows) for rows in kept]),
        test_x=data.x[test],
        test_y=data.y[test],
        test_offsets=offsets_of([len(rows) for rows in held]),
        common_x=None,
        common_y=None,
    )


def hold_out_common(pool: Pool, fraction: float, seed: int) -> Pool:
    """The pool with `fraction` of each class (of its units) set aside as the test set; 0 sets none aside."""
    proportion(fraction, "common_fraction", one=False)
    units = np.arange(len(pool.y)) if pool.units is None else pool.units
    names, first = np.unique(units, return_index=True)
    kinds, rng = _kinds(pool.y)[first], generator(seed, "common test rows")
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
    names, parts = by_id(pool.ids[name].train)
    members = _members(len(names), clients, group, name, seed)
    joined = [np.sort(np.concatenate([parts[at] for at in own])) for own in members]
    ids = ["+".join(names[at] for at in own) for own in members]
    own: str | Parts = test
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
    return dict(zip(*by_id(ids.test), strict=True))


def iid(labels: np.ndarray, clients: int, seed: int = 0) -> Parts:
    """Rows dealt at random; sizes differ by at most one."""
    _enough(len(labels), clients)
    return _sorted(np.array_split(generator(seed, "partition").permutation(len(labels)), clients))


def one_class(labels: np.ndarray, clients: int, seed: int = 0) -> Parts:
    """Each client holds rows of one class; the largest client is as small as it can be."""
    _enough(len(labels), clients)
    rng, rows = generator(seed, "partition"), _rows_by_class(labels, "partition", seed)
    if clients < len(rows):
        raise TacitError(f"{clients} clients of one class cannot hold {len(rows)} classes: use {len(rows)} or more")
    holders = _seats([len(part) for part in rows], clients)
    parts = [piece for part, count in zip(rows, holders, strict=True) for piece in np.array_split(part, count)]
    return _sorted([parts[at] for at in rng.permutation(clients)])


def _seats(sizes: Sequence[int], seats: int) -> list[int]:
    """At least one seat for each; every further seat goes where the rows for each seat are most."""
    held = [1] * len(sizes)
    heap = [(-float(size), at) for at, size in enumerate(sizes)]
    heapq.heapify(heap)
    for _ in range(seats - len(sizes)):
        at = heap[0][1]
        held[at] += 1
        heapq.heapreplace(heap, (-sizes[at] / held[at], at))
    return held


def n_class(labels: np.ndarray, clients: int, classes_each: int, seed: int = 0) -> Parts:
    """Each client holds `classes_each` classes; a class is divided among its holders as p ~ U(.4, .6) (PrivateFL).

    Classes are chosen at random among those held by the fewest so far, so that every class has a holder. A class
    with fewer rows than holders leaves some of them without it; that a client gets no row at all is an error.
    """
    _enough(len(labels), clients)
    rng, rows = generator(seed, "partition"), _rows_by_class(labels, "partition", seed)
    chosen = _choose_classes(len(rows), clients, classes_each, rng)
    pieces: list[Parts] = [[] for _ in range(clients)]
    for part, held in zip(rows, chosen.T, strict=True):
        holders = np.flatnonzero(held)
        counts = _lift(apportion(len(part), rng.uniform(0.4, 0.6, len(holders))), 1)
        for client, piece in zip(holders, np.split(part, np.cumsum(counts)[:-1]), strict=True):
            pieces[client].append(piece)
    return _nonempty([np.concatenate(own) for own in pieces])


def _choose_classes(classes: int, clients: int, each: int, rng: np.random.Generator) -> np.ndarray:
    """[clients, classes], bool. Numbers of holders differ by at most one."""
    at_least(each, 1, "classes_each")
    if each > classes:
        raise TacitError(f"classes_each is {each} and there are {classes} classes: use at most {classes}")
    if clients * each < classes:
        raise TacitError(
            f"{clients} clients with {each} classes each cannot hold {classes} classes: "
            f"use {-(-classes // each)} clients or more"
        )
    chosen, held = np.zeros((clients, classes), bool), np.zeros(classes, np.int64)
    for client in range(clients):
        fewest = np.lexsort((rng.random(classes), held))[:each]
        chosen[client, fewest] = True
        held[fewest] += 1
    return chosen


def dirichlet(labels: np.ndarray, clients: int, alpha: float, minimum: int = 1, seed: int = 0) -> Parts:
    """Each class is divided among all clients in proportions ~ Dirichlet(alpha).

    A client below `minimum` rows takes rows, one at a time, from whoever has most: never a second draw.
    """
    at_least(minimum, 1, "minimum")
    _enough(len(labels), clients, minimum)
    if not (alpha > 0 and np.isfinite(alpha)):
        raise TacitError(f"alpha is {alpha}: give a positive number (small is skewed, large is even)")
    rng = generator(seed, "partition")
    pieces: list[Parts] = [[] for _ in range(clients)]
    for part in _rows_by_class(labels, "partition", seed):
        counts = apportion(len(part), _proportions(clients, alpha, rng))
        for client, piece in enumerate(np.split(part, np.cumsum(counts)[:-1])):
            pieces[client].append(piece)
    return _sorted(_move_rows([rng.permutation(np.concatenate(own)) for own in pieces], minimum))


def _proportions(clients: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """A draw of Dirichlet(alpha). Where it underflows (alpha near 0), its limit: all of it to one client."""
    with np.errstate(all="ignore"):
        drawn = rng.dirichlet(np.full(clients, alpha))
    lucky = int(rng.integers(clients))
    return drawn if np.isfinite(drawn).all() and drawn.sum() > 0 else np.eye(clients)[lucky]


def _move_rows(parts: Parts, minimum: int) -> Parts:
    counts = np.array([len(part) for part in parts])
    surplus = counts - _lift(counts, minimum)  # positive: gives, negative: takes
    pool = np.concatenate([part[:extra] for part, extra in zip(parts, np.maximum(surplus, 0), strict=True)])
    gifts = np.split(pool, np.cumsum(np.maximum(-surplus, 0))[:-1])
    kept = [part[extra:] for part, extra in zip(parts, np.maximum(surplus, 0), strict=True)]
    return [np.concatenate(pair) for pair in zip(kept, gifts, strict=True)]


def _lift(counts: np.ndarray, minimum: int) -> np.ndarray:
    """The same total with every count at least `minimum`, each missing one taken from the largest count.

    Where the total is too small for that, all counts come out within one of each other.
    """
    result, missing = np.maximum(counts, minimum), int(np.maximum(minimum - counts, 0).sum())
    heap = [(-count, at) for at, count in enumerate(result.tolist())]
    heapq.heapify(heap)
    for _ in range(missing):
        count, at = heap[0]
        heapq.heapreplace(heap, (count + 1, at))
    for count, at in heap:
        result[at] = -count
    return result


def by_id(ids: Sequence[Any] | np.ndarray) -> tuple[tuple[str, ...], Parts]:
    """Natural clients (writers, subjects): their names in order, and the rows of each."""
    if not len(ids):
        raise TacitError("there are no client ids: give one for each row")
    names, parts = zip(*grouped(ids), strict=True)
    return names, list(parts)


def apportion(total: int, weights: np.ndarray) -> np.ndarray:
    """Whole numbers in proportion to `weights` that add up to `total`, each within one of its exact share."""
    exact = total * weights / weights.sum()
    counts = np.floor(exact).astype(np.int64)
    rest = np.argsort(counts - exact, kind="stable")[: total - int(counts.sum())]
    counts[rest] += 1
    return counts


def _rows_by_class(labels: np.ndarray, purpose: str, seed: int) -> Parts:
    """The rows of each class that occurs, in random order."""
    rng = generator(seed, f"{purpose}/rows")
    return [rng.permutation(np.flatnonzero(labels == kind)) for kind in np.unique(labels)]


def _enough(rows: int, clients: int, minimum: int = 1) -> None:
    at_least(clients, 1, "the number of clients")
    if clients * minimum > rows:
        raise TacitError(
            f"{clients} clients with at least {minimum} rows need {clients * minimum}, "
            f"and there are {rows}: use at most {rows // minimum} clients"
        )


def _nonempty(parts: Parts) -> Parts:
    for client, part in enumerate(parts):
        if not len(part):
            raise TacitError(f"client {client} would get no row: use fewer clients or more classes for each")
    return _sorted(parts)


def _sorted(parts: Sequence[np.ndarray]) -> Parts:
    return [np.sort(part) for part in parts]


def matched(labels: np.ndarray, parts: Parts, test_labels: np.ndarray, seed: int = 0) -> Parts:
    """Test rows for each client, disjoint; each class is dealt in proportion to the clients' training rows of it.

    Test rows of a class that nobody holds are dealt to nobody.
    """
    kinds = 1 + int(max(labels.max(initial=0), test_labels.max(initial=0)))
    held = np.stack([np.bincount(labels[part], minlength=kinds) for part in parts])
    pieces: list[Parts] = [[np.arange(0)] for _ in parts]
    for rows in _rows_by_class(test_labels, "matched", seed):
        weights = held[:, test_labels[rows[0]]]
        if weights.any():
            for client, piece in enumerate(np.split(rows, np.cumsum(apportion(len(rows), weights))[:-1])):
                pieces[client].append(piece)
    return _sorted([np.concatenate(own) for own in pieces])


def drawn(labels: np.ndarray, parts: Parts, test_labels: np.ndarray, seed: int = 0) -> Parts:
    """Test rows for each client, `DRAWN` of them in proportion to its classes, or all there are of a class.

    No client has a row twice, and different clients may have the same: small pools give everybody enough rows, so that
    accuracies are no longer 0, 1/2 or 1.
    """
    by_class = {int(test_labels[rows[0]]): rows for rows in _rows_by_class(test_labels, "drawn", seed)}
    chosen: Parts = []
    for client, part in enumerate(parts):
        rng, (kinds, counts) = generator(seed, "drawn", client), np.unique(labels[part], return_counts=True)
        wanted = zip(kinds.tolist(), apportion(DRAWN, counts).tolist(), strict=True)
        pools = ((by_class.get(kind, np.arange(0)), count) for kind, count in wanted)
        chosen.append(np.concatenate([rng.permutation(pool)[:count] for pool, count in pools]))
    return _sorted(chosen)


def federate(
    x: Rows,
    y: Tensor,
    parts: Parts,
    *,
    classes: int,
    ids: Sequence[str] | None = None,
    pooled: Pair | None = None,
    test: str | Parts = "own",
    test_fraction: float = 0.2,
    units: np.ndarray | None = None,
    seed: int = 0,
    name: str = "federation",
    encoding: Encoding = NO_NAMES,
) -> FederatedDataset:
    """A federation of pooled rows. `parts[k]` are the rows of client `k`; rows in no part are left out.

    `test="own"` holds out `test_fraction` of each client's rows (whole `units` where given); `test="matched"`
    deals out the pooled test set in each client's class proportions; `test="drawn"` draws from it for each client anew,
    in the same proportions, so that clients share test rows and have enough of them; a list names the test rows
    themselves. The pooled test set is the common one in any case. Without one, all clients' own test rows together are.
    """
    train, own = (
        (parts, _dealt(test, parts, y, pooled, seed)) if test != "own" else _split(parts, test_fraction, units, seed)
    )
    index, test_index = np.concatenate(train), np.concatenate(own)
    source_x, source_y = (x, y) if pooled is None or test == "own" else pooled
    test_x, test_y = source_x[test_index], source_y[test_index]
    common_x, common_y = pooled or ((test_x, test_y) if len(test_x) else (None, None))
    return FederatedDataset(
        name=name,
        x=x[index],
        y=y[index],
        offsets=offsets_of([len(part) for part in train]),
        test_x=test_x,
        test_y=test_y,
        test_offsets=offsets_of([len(part) for part in own]),
        common_x=common_x,
        common_y=common_y,
        classes=classes,
        encoding=encoding,
        ids=tuple(ids) if ids is not None else tuple(map(str, range(len(parts)))),
    )


def _split(parts: Parts, fraction: float, units: np.ndarray | None, seed: int) -> tuple[Parts, Parts]:
    train, test = [], []
    for client, part in enumerate(parts):
        kept, held = hold_out(len(part), fraction, seed, client, None if units is None else units[part])
        train.append(part[kept])
        test.append(part[held])
    return train, test


def _dealt(test: str | Parts, parts: Parts, y: Tensor, pooled: Pair | None, seed: int) -> Parts:
    if pooled is None:
        raise TacitError(f"test={test!r} needs a pooled test set and there is none: use test='own'")
    if not isinstance(test, str):
        return test
    if test not in DEALT:
        raise TacitError(
            f"test is '{test}': use 'own' (held out of each client's rows), 'matched' (dealt from the pool) or 'drawn' "
            "(from the pool, for each client anew)"
        )
    return DEALT[test](y.numpy(), parts, pooled[1].numpy(), seed)


DEALT: Final = {"matched": matched, "drawn": drawn}
"""How a pooled test set comes to clients."""
