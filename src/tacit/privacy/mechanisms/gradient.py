"""The two ways to look at a client's data: exactly, or one clipped and noisy query at a time."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.func import grad

from tacit.core import tree
from tacit.core.contract import Batch, Losses, Task, Tree
from tacit.core.dropout import Key, drawing
from tacit.privacy.mechanisms import lattice
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.per_example import ghost, integer_sum

BatchOf = Callable[[int], Batch]
KeyOf = Callable[[int], Key | None]


def _no_key(step: int) -> Key | None:
    return None


@dataclass(frozen=True)
class Exact:
    """Mean gradient over the real rows of the batch; zero for an empty batch."""

    task: Task
    batch: BatchOf
    key: KeyOf = _no_key  # of dropout in a step; nothing is dropped without one

    def __call__(self, params: Tree, step: int, losses: Losses | None = None) -> Tree:
        x, y, mask = self.batch(step)
        f = losses or self.task.losses

        def mean(p: Tree) -> Tensor:
            with drawing(self.key(step)):
                return torch.where(mask, f(p, x, y), 0.0).sum() / mask.sum().clamp(min=1)

        return grad(mean)(params)


@dataclass(frozen=True)
class Private:
    """Each example's gradient clipped to `bound`, summed, noise of `z * bound` added, divided by a public number.

    For every data set, adding or removing one row moves the sum by at most `bound`. The divisor is the expected
    batch size, never the realised one, and an empty batch still gets its noise. What dropout leaves of an example
    depends on the example's key alone: given the masks of all rows, the bound is the same.
    """

    task: Task
    batch: BatchOf
    bound: float
    z: Tensor  # noise multiplier of this client, 0-d
    expected: Tensor  # expected batch size of this client, 0-d, public
    noise: noises.Noise
    exact: bool = False  # examples' gradients are summed as integers, and the noise is discrete
    key: KeyOf = _no_key

    def __call__(self, params: Tree, step: int, losses: Losses | None = None) -> Tree:
        query = self._exact if self.exact else self._fast
        noisy = query(losses or self.task.losses, params, self.batch(step), self.key(step))
        return tree.each(lambda leaf: leaf / self.expected.to(leaf.dtype), noisy)

    def _fast(self, losses: Losses, params: Tree, batch: Batch, key: Key | None) -> Tree:
        return noises.add(ghost(losses, params, *batch, self.bound, key), self.z * self.bound, self.noise)

    def _exact(self, losses: Losses, params: Tree, batch: Batch, key: Key | None) -> Tree:
        """Every example's gradient is on the lattice before anything is added: no rounding of a sum to bound."""
        total = integer_sum(losses, params, *batch, self.bound, self.z, key)
        noisy = total + self.noise.discrete(tree.size(params), self.z)
        size = lattice.step(self.bound, self.z)
        return tree.each(lambda leaf, like: (leaf * size).to(like.dtype), tree.unflatten(noisy, params), params)


@dataclass(frozen=True)
class Counted:
    """Counts calls by batch. A client program is the same for all clients, so the counts are public."""

    inner: Callable[..., Tree]
    calls: list[int] = field(default_factory=list)

    def __call__(self, params: Tree, step: int, losses: Losses | None = None) -> Tree:
        self.calls.append(step)
        return self.inner(params, step, losses)

    def by_batch(self, steps: int) -> tuple[int, ...]:
        """How often each batch of a program of so many steps was asked. A batch has two names: step 2 of 3 is -1."""
        asked = Counter(step % steps for step in self.calls)
        return tuple(asked[step] for step in range(steps))
