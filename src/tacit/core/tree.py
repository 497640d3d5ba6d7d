"""Arithmetic on dicts of tensors. Every function is pure, keeps the order of keys, and works under `vmap`."""

from collections.abc import Callable, Iterable, Mapping
from typing import overload

import torch
from torch import Tensor

from tacit.core.contract import Shared, Tree

View = Mapping[str, Tensor]


@overload
def each(f: Callable[[Tensor], Tensor], tree: View, /) -> Tree: ...
@overload
def each(f: Callable[[Tensor, Tensor], Tensor], tree: View, other: View, /) -> Tree: ...
@overload
def each(f: Callable[..., Tensor], tree: View, /, *others: View) -> Tree: ...
def each(f: Callable[..., Tensor], tree: View, /, *others: View) -> Tree:
    """`f` of the leaves of the same name. The first tree names the leaves."""
    return {name: f(leaf, *(other[name] for other in others)) for name, leaf in tree.items()}


def add(a: View, b: View) -> Tree:
    return each(torch.add, a, b)


def sub(a: View, b: View) -> Tree:
    return each(torch.sub, a, b)


def scale(tree: View, factor: float | Tensor) -> Tree:
    return each(lambda leaf: leaf * factor, tree)


def axpy(factor: float | Tensor, x: View, y: View) -> Tree:
    """factor * x + y, named after y."""
    if isinstance(factor, Tensor):
        return each(lambda b, a: b + factor * a, y, x)
    return each(lambda b, a: torch.add(b, a, alpha=factor), y, x)


def zeros(tree: View) -> Tree:
    return each(torch.zeros_like, tree)


def where(condition: Tensor, new: View, old: View) -> Tree:
    return each(lambda a, b: torch.where(condition, a, b), new, old)


def norm(*trees: View) -> Tensor:
    """L2 norm over the concatenation of all leaves of all trees, 0-d leaves included; 0 for no leaves."""
    squares = [leaf.square().sum() for tree in trees for leaf in tree.values()]
    return torch.stack(squares).sum().sqrt() if squares else torch.zeros(())


def size(tree: View) -> int:
    return sum(leaf.numel() for leaf in tree.values())


def pick(tree: View, names: Iterable[str]) -> Tree:
    wanted = set(names)
    return {name: leaf for name, leaf in tree.items() if name in wanted}


def drop(tree: View, names: Iterable[str]) -> Tree:
    unwanted = set(names)
    return {name: leaf for name, leaf in tree.items() if name not in unwanted}


def prefix(label: str, tree: View) -> Tree:
    """Names leaves `label/name`; `strip` takes it back."""
    return {f"{label}/{name}": leaf for name, leaf in tree.items()}


def strip(label: str, tree: View) -> Tree:
    """The leaves below `label/`, without it."""
    return {name[len(label) + 1 :]: leaf for name, leaf in tree.items() if name.startswith(f"{label}/")}


def join(shared: Shared) -> Tree:
    """Both parts as one tree; `split` takes it back."""
    return prefix("model", shared.model) | prefix("extra", shared.extra)


def split(tree: View) -> Shared:
    return Shared(strip("model", tree), strip("extra", tree))


def flatten(tree: View, start: int = 0) -> Tensor:
    """All leaves in one vector, keeping the first `start` dimensions (of clients)."""
    return torch.cat([leaf.flatten(start) if leaf.dim() > start else leaf.unsqueeze(-1) for leaf in tree.values()], -1)


def unflatten(vector: Tensor, template: View) -> Tree:
    """The inverse of `flatten`: leading dimensions of `vector` are kept, leaves have the shapes of `template`."""
    parts = torch.split(vector, [leaf.numel() for leaf in template.values()], -1)
    lead = vector.shape[:-1]
    pairs = zip(template.items(), parts, strict=True)
    return {name: part.reshape((*lead, *leaf.shape)) for (name, leaf), part in pairs}
