"""Gradients of a batch: the exact mean, calls that are counted, and the sum of clipped gradients of single examples.

Of that sum, `plain` is what is meant; `ghost` gives the same and stores less.

Of one example, the gradient of W in a layer `a W^T + b` is the outer product of g, the loss's gradient at the layer's
outputs, and a, its inputs. Its norm is |g| |a|, and the clipped sum over a batch is one matrix product: no example's
gradient of a linear layer is ever made (Goodfellow 2015). Of an embedding it is zero but for the rows of the example's
tokens: gradients at places of one token are added up, and these sums are what is measured and what is released. Other
parameters (a transform, norms, convolutions) have their gradients made one by one, as before.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import embedding, linear
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from tacit.core import tree
from tacit.core.contract import Batch, Losses, Minimum, ProximalProblem, Task, Tree
from tacit.core.dropout import Key, drawing
from tacit.core.tensors import split_rows, weighted_sum
from tacit.privacy.mechanisms.clipping import clip, shrinking
from tacit.privacy.mechanisms.lattice import place

_AT_ONCE: Final = 1 << 22  # numbers in the gradients of the examples that are made together
BatchOf = Callable[[int], Batch]
KeyOf = Callable[[int], Key | None]


def no_key(step: int) -> Key | None:
    return None


@dataclass(frozen=True)
class Exact:
    """Mean gradient over the real rows of the batch; zero for an empty batch."""

    task: Task
    batch: BatchOf
    key: KeyOf = no_key  # of dropout in a step; nothing is dropped without one

    def __call__(self, params: Tree, step: int, losses: Losses | None = None) -> Tree:
        x, y, mask = self.batch(step)
        f = losses or self.task.losses

        def mean(p: Tree) -> Tensor:
            with drawing(self.key(step)):
                return torch.where(mask, f(p, x, y), 0.0).sum() / mask.sum().clamp(min=1)

        return grad(mean)(params)


@dataclass(frozen=True)
class Counted:
    """Counts calls by batch. A client program is the same for all clients, so the counts are public."""

    inner: Callable[..., Tree]
    calls: list[int] = field(default_factory=list)

    def __call__(self, params: Tree, step: int, losses: Losses | None = None) -> Tree:
        self.calls.append(step)
        return self.inner(params, step, losses)

    def counting(self, solve: Callable[[ProximalProblem, int], Minimum]) -> Callable[[ProximalProblem, int], Minimum]:
        """Queries of another kind, counted with these: they are of the same batches."""

        def counted(problem: ProximalProblem, step: int) -> Minimum:
            self.calls.append(step)
            return solve(problem, step)

        return counted

    def by_batch(self, steps: int) -> tuple[int, ...]:
        """How often each batch of a program of so many steps was asked. A batch has two names: step 2 of 3 is -1."""
        queries = Counter(step % steps for step in self.calls)
        return tuple(queries[step] for step in range(steps))


def plain(
    losses: Losses, params: Tree, x: Tensor, y: Tensor, mask: Tensor, bound: float, key: Key | None = None
) -> Tree:
    """Each example's gradient, clipped to `bound` over all leaves together, zero where it is not real; their sum."""
    alone = _alone(losses, key)

    def one(xi: Tensor, yi: Tensor, real: Tensor, words: Tensor) -> Tree:
        clipped, _ = clip(grad(alone)(params, xi, yi, words), bound)
        return tree.each(lambda leaf: torch.where(real, leaf, 0.0), clipped)

    return tree.each(lambda leaf: leaf.sum(0), vmap(one)(x, y, mask, _words(key, mask)))


def _words(key: Key | None, mask: Tensor) -> Tensor:
    """Of each example; without a key, anything that has a row for each."""
    return mask if key is None else key.words


def _alone(losses: Losses, key: Key | None) -> Callable[[Tree, Tensor, Tensor, Tensor], Tensor]:
    """The loss of one example; what dropout leaves of it depends on its own words."""

    def loss(params: Tree, xi: Tensor, yi: Tensor, words: Tensor) -> Tensor:
        with drawing(key and key._replace(words=words.unsqueeze(0))):
            return losses(params, xi.unsqueeze(0), yi.unsqueeze(0)).squeeze(0)

    return loss


def integer_sum(
    losses: Losses,
    params: Tree,
    x: Tensor,
    y: Tensor,
    mask: Tensor,
    bound: float,
    multiplier: Tensor,
    key: Key | None = None,
) -> Tensor:
    """As `plain`, as one vector of integers: each clipped gradient is put on the lattice of `multiplier` by itself.

    Every example's is made, a few at a time. One example more or less moves the sum by at most the lattice's limit.
    """

    alone = _alone(losses, key)

    def one(xi: Tensor, yi: Tensor, real: Tensor, words: Tensor) -> Tensor:
        clipped, _ = clip(grad(alone)(params, xi, yi, words), bound)
        return torch.where(real, place(tree.flatten(clipped), bound, multiplier), 0)

    chunk = max(1, _AT_ONCE // max(1, tree.size(params)))
    parts = zip(*(split_rows(rows, chunk) for rows in (x, y, mask, _words(key, mask))), strict=True)
    return torch.stack([vmap(one)(*part).sum(0) for part in parts]).sum(0)


def ghost(
    losses: Losses, params: Tree, x: Tensor, y: Tensor, mask: Tensor, bound: float, key: Key | None = None
) -> Tree:
    """As `plain`, up to the rounding of floats."""
    layers, tables = watch(losses, params, x[:1], y[:1])
    if not layers and not tables:
        return plain(losses, params, x, y, mask, bound, key)
    alone = _alone(losses, key)
    stored = tree.drop(params, [name for layer in (*layers, *tables) for name in layer.names])
    taps = {layer.weight: params[layer.weight].new_zeros(layer.width) for layer in layers}
    taps |= {table.weight: params[table.weight].new_zeros(table.outputs) for table in tables}

    def one(xi: Tensor, yi: Tensor, words: Tensor) -> tuple[tuple[Tree, Tree], Tree]:
        def loss(rest: Tree, added: Tree) -> tuple[Tensor, Tree]:
            with _Tapped(params, added) as tapped:
                value = alone(params | rest, xi, yi, words)
            return value, tapped.inputs

        return grad(loss, argnums=(0, 1), has_aux=True)(stored, taps)

    (rest, outer), inner = vmap(one)(x, y, _words(key, mask))
    added_up = {table.weight: table.add_up(inner[table.weight], outer[table.weight]) for table in tables}
    squares = [_square(leaf) for leaf in (*rest.values(), *added_up.values())]
    sizes = [layer.size(_square(inner[layer.weight])) for layer in layers]
    squares += [_square(outer[layer.weight]) * size for layer, size in zip(layers, sizes, strict=True)]
    factor, finite = shrinking(torch.stack(squares).sum(0).sqrt(), bound)
    # inputs of more than 1e9: the square of a small gradient vanishes, and their product is not small
    keep = mask & finite
    for size in sizes:
        keep = keep & (size < torch.finfo(size.dtype).tiny ** -0.5)
    weight = torch.where(keep, factor, 0.0)
    total = tree.each(lambda leaf: weighted_sum(weight, _mask_examples(leaf, keep)), rest)
    for layer in layers:
        g = _mask_examples(outer[layer.weight] * factor.unsqueeze(-1), keep)
        total[layer.weight] = g.T @ _mask_examples(inner[layer.weight], keep)
        if layer.bias is not None:
            total[layer.bias] = g.sum(0)
    for table in tables:
        g = _mask_examples(added_up[table.weight] * factor[:, None, None], keep)
        empty, tokens = torch.zeros_like(params[table.weight]), inner[table.weight].flatten()
        total[table.weight] = empty.index_add(0, tokens, g.flatten(0, 1))
    return {name: total[name] for name in params}


class Layer(NamedTuple):
    """A linear layer, by the names of its parameters."""

    weight: str
    bias: str | None
    width: int

    @property
    def names(self) -> list[str]:
        return [self.weight] if self.bias is None else [self.weight, self.bias]

    def size(self, inputs: Tensor) -> Tensor:
        """Squared norm of what a gradient at the outputs is multiplied with; a bias has an input of 1."""
        return inputs if self.bias is None else inputs + 1


class Table(NamedTuple):
    """An embedding, by the name of its weight."""

    weight: str
    outputs: torch.Size  # of one example, [1, places, width]
    padding: int  # the token that learns nothing, or -1

    @property
    def names(self) -> list[str]:
        return [self.weight]

    def add_up(self, tokens: Tensor, g: Tensor) -> Tensor:
        """[examples, places, width]: at a token's first place its gradients of all places, at the others zero."""
        places = g.flatten(1, -2)
        equal = tokens.unsqueeze(-1) == tokens.unsqueeze(-2)
        first = ~equal.tril(-1).any(-1) & (tokens != self.padding)
        return torch.where(first.unsqueeze(-1), equal.to(g.dtype) @ places, 0.0)


def linear_layers(losses: Losses, params: Tree, x: Tensor, y: Tensor) -> list[Layer]:
    """Those whose parameters are used once, on one row for each example, and in nothing else; found by a trial."""
    return watch(losses, params, x, y)[0]


def watch(losses: Losses, params: Tree, x: Tensor, y: Tensor) -> tuple[list[Layer], list[Table]]:
    """Linear layers and embeddings whose gradients need not be made: used once, and in nothing else."""
    with _Watched(params) as watched:
        losses(params, x, y)
    layers = [layer for layer in watched.layers if all(watched.uses[name] == 1 for name in layer.names)]
    return layers, [table for table in watched.tables if watched.uses[table.weight] == 1]


class _Watched(TorchFunctionMode):
    def __init__(self, params: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(leaf): name for name, leaf in params.items()}
        self.uses: Counter[str] = Counter()
        self.layers: list[Layer] = []
        self.tables: list[Table] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options: dict[str, Any] = kwargs or {}
        leaves = pytree.tree_leaves((args, options))
        self.uses.update(self._names[id(leaf)] for leaf in leaves if id(leaf) in self._names)
        if func is linear:
            x, weight, bias = _arguments(*args, **options)
            if id(weight) in self._names and x.dim() == 2 and x.shape[0] == 1:  # one row: the trial has one example
                self.layers.append(Layer(self._names[id(weight)], self._names.get(id(bias)), weight.shape[0]))
        out = func(*args, **options)
        if func is embedding and id(args[1]) in self._names and out.dim() > 1:
            places = out.numel() // out.shape[-1]
            if places * (places + out.shape[-1]) < args[1].numel():  # else its gradient is the smaller
                padding = options.get("padding_idx")
                padding = -1 if padding is None else padding % args[1].shape[0]
                self.tables.append(Table(self._names[id(args[1])], out.shape, padding))
        return out


class _Tapped(TorchFunctionMode):
    """Adds a tap to the outputs of each layer, to differentiate by, and keeps the inputs."""

    def __init__(self, params: Mapping[str, Tensor], taps: Mapping[str, Tensor]) -> None:
        super().__init__()
        self._names = {id(params[name]): name for name in taps}
        self._taps = taps
        self.inputs: Tree = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options: dict[str, Any] = kwargs or {}
        if func is linear:
            x, weight, bias = _arguments(*args, **options)
            if (name := self._names.get(id(weight))) is not None:
                self.inputs[name] = x.squeeze(0)
                return linear(x, weight, bias) + self._taps[name]
        if func is embedding and (name := self._names.get(id(args[1]))) is not None:
            self.inputs[name] = args[0].flatten()
            return func(*args, **options) + self._taps[name]
        return func(*args, **options)


def _arguments(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    return input, weight, bias


def _square(leaf: Tensor) -> Tensor:
    """Squared norm of each example's."""
    return leaf.flatten(1).square().sum(1) if leaf.dim() > 1 else leaf.square()


def _mask_examples(leaf: Tensor, keep: Tensor) -> Tensor:
    """Zero where an example is left out: not even NaN gets through."""
    return torch.where(keep.reshape(-1, *(1 for _ in leaf.shape[1:])), leaf, 0.0)
