"""When a recorded program counts as the plain one: the same numbers for every client and every leaf.

In double precision both agree to 1e-9, which is rounding and nothing else. Single precision has no such number: what is
left of two large numbers' difference may be rounding for the most part, and a rounding that turns a unit of a network
on is not a wrong program. So there the plain program, computed in double precision, says what is right, and a recorded
one may be off by a ten-thousandth, or by a few times what the plain program itself is off in single precision. Where it
is off by more, inputs moved by a few roundings must throw the plain program off, too: then that client stood at a kink,
nothing was learned about it, and it is tried again on other inputs. A client that cannot be tried is a refusal.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Program = Callable[..., Any]
DOUBLE: Final = 1e-9
SINGLE: Final = 1e-4  # a factor of 1.001 is ten times that
_TIMES: Final = 4.0  # the plain program's own error: another order of sums rounds otherwise, not worse
_LEAST: Final = {torch.float64: 1e-12, torch.float32: 1e-7}  # below, a number that should be zero is
_MOVED: Final = 64  # roundings that inputs are moved by, to see who stands at a kink
_OFTEN: Final = 2  # inputs that every client must agree on
_LONGEST: Final = 200  # characters of a reason
_FLIPPED: Final = 0.01  # share of a client's integers that a rounding may turn by one


class Refused(Exception):
    """Why a program is not recorded, in one line."""

    @classmethod
    def because(cls, error: Exception) -> "Refused":
        return cls(" ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST])


class Trial(NamedTuple):
    """Inputs to compare on. `wild` clients have rows that are not finite, or so large that their squares are not.

    A recorded program may give up on a wild client that the plain one gets through: it knows weights by products of
    rows. It must not make sense of one that the plain one gives up on, nor let others suffer. Of those that are `lost`
    the first `uploads` leaves are not compared, of those that are `huge` none: at the end of the floats' range numbers
    are rounding and nothing else. The privacy room keeps uploads to their bound whatever they are.
    """

    name: str
    inputs: tuple[Any, ...]
    wild: Tensor | None = None
    lost: Tensor | None = None
    huge: Tensor | None = None
    uploads: int = 0

    def compares(self, leaf: int, rows: int) -> Tensor:
        """Whose part of this leaf is compared."""
        if self.lost is None or self.huge is None or len(self.huge) != rows:
            return torch.ones(rows, dtype=torch.bool)
        return ~(self.huge | self.lost) if leaf < self.uploads else ~self.huge


class Trials(Protocol):
    """What a program is compared on. `exact`: the same in double precision, where there is such a form of it."""

    @property
    def clients(self) -> int: ...

    @property
    def exact(self) -> Program | None: ...

    def tame(self, number: int) -> Trial: ...

    def wild(self, number: int) -> Trial | None:
        """None where there are no more."""
        ...

    def in_double(self, trial: Trial) -> tuple[Any, ...]: ...


class Pair(NamedTuple):
    plain: Program
    recorded: Program


def accept(pair: Pair, double: Pair | None, trials: Trials) -> None:
    """Raises `Refused` unless every client agrees on two of at most six tame inputs, and on all wild ones.

    `double`: the plain program in double precision, and what the passes make of it.
    """
    agreed = torch.zeros(trials.clients or 1)
    for number in range(3 * _OFTEN):
        agreed += _agreed(pair, double, trials.tame(number), trials)
        if bool((agreed >= _OFTEN).all()):
            break
    else:
        raise Refused(f"no inputs were found on which roundings decide nothing for client {int(agreed.argmin())}")
    number = 0
    while (trial := trials.wild(number)) is not None:
        _agreed(pair, double, trial, trials)
        number += 1


def by_client(leaf: Tensor, clients: int) -> Tensor:
    """A row for each client; one row where a leaf belongs to all of them."""
    rows = clients if leaf.dim() and len(leaf) == clients else 1
    return leaf.reshape(rows, -1) if leaf.numel() else leaf.new_zeros(rows, 0)


def errors(right: Tensor, got: Tensor, clients: int) -> tuple[Tensor, Tensor]:
    """How far a leaf is off for each client, and how long the right one is; infinite where only one is finite."""
    right, got = by_client(right, clients).double(), by_client(got, clients).double()
    both = right.isfinite() & got.isfinite()
    off = torch.where(both, right - got, 0.0).norm(dim=1)
    same = (right.isfinite() == got.isfinite()).all(1)
    return off.masked_fill(~same, torch.inf), torch.where(both, right, 0.0).norm(dim=1)


def _agreed(pair: Pair, double: Pair | None, trial: Trial, trials: Trials) -> Tensor:
    """1 for each client that agrees, 0 for each that stands at a kink; `Refused` for one that differs without."""
    right = None
    if double is not None:
        inputs = trials.in_double(trial)
        right, simplified = (_leaves(program, inputs) for program in double)
        _agree_in_double(right, simplified, trial, trials.clients)
    expected, got = (_leaves(program, trial.inputs) for program in pair)
    if any(leaf.dtype == torch.float32 for leaf in pytree.tree_leaves((trial.inputs, expected))):
        return _agree_in_single(pair.plain, right or expected, expected, got, trial, trials.clients)
    _agree_in_double(expected, got, trial, trials.clients)
    return torch.ones(trials.clients or 1)


def _agree_in_double(expected: list[Tensor], got: list[Tensor], trial: Trial, clients: int) -> None:
    """Raises `Refused` unless both are the same to 1e-9 for every client and leaf."""
    for at, (a, b) in enumerate(_alike(expected, got)):
        if not a.is_floating_point():
            if not torch.equal(a, b):
                raise Refused(f"integers of output {at} differ on {trial.name} inputs")
            continue
        off, size = errors(a, b, clients)
        wrong = (off > DOUBLE * size + _LEAST[torch.float64]) & ~_given_up(b, trial, clients)
        wrong &= trial.compares(at, len(wrong))
        if wrong.any():
            raise Refused(_which(at, wrong, off, size, trial))


def _agree_in_single(
    plain: Program, right: list[Tensor], expected: list[Tensor], got: list[Tensor], trial: Trial, clients: int
) -> Tensor:
    wrong = [_far(r, a, b, trial, clients) for r, (a, b) in zip(right, _alike(expected, got), strict=True)]
    wrong = [each & trial.compares(at, len(each)) for at, each in enumerate(wrong)]
    if not any(bool(each.any()) for each in wrong):
        return torch.ones(clients or 1)
    tipped = _tipped(plain, right, expected, trial, clients)
    for at, each in enumerate(wrong):
        if bool((each & ~tipped[at]).any()):
            off, size = errors(right[at], got[at], clients)
            raise Refused(_which(at, each & ~tipped[at], off, size, trial))
    return 1.0 - torch.stack([each.expand(clients or 1) for each in wrong]).any(0).float()


def _far(right: Tensor, plain: Tensor, got: Tensor, trial: Trial, clients: int) -> Tensor:
    """Whose part of a leaf is off by more than rounding explains. Of wild clients the plain program alone says what is
    right: what overflows in single precision is another number in double."""
    if not plain.is_floating_point():
        apart = (by_client(plain, clients) - by_client(got, clients)).abs()
        return (apart > 1).any(1) | ((apart > 0).double().mean(1) > _FLIPPED)
    (off, size), (rounding, _) = errors(right, got, clients), errors(right, plain, clients)
    far = off > SINGLE * size + _TIMES * rounding + _LEAST[torch.float32]
    off, size = errors(plain, got, clients)
    odd = (off > SINGLE * size + _LEAST[torch.float32]) & ~_given_up(got, trial, clients)
    return torch.where(_wild(trial, len(far)) | rounding.isinf(), odd, far)


def _tipped(plain: Program, right: list[Tensor], expected: list[Tensor], trial: Trial, clients: int) -> list[Tensor]:
    """For which clients a leaf of the plain program is thrown off by roundings of its inputs."""
    tipped = [torch.zeros(len(by_client(leaf, clients)), dtype=torch.bool) for leaf in right]
    for way in (-1, 1):
        moved = _leaves(plain, pytree.tree_map(lambda leaf, way=way: _moved(leaf, way), trial.inputs))
        for at, (r, a, b) in enumerate(zip(right, expected, moved, strict=True)):
            tipped[at] |= _far(r, a, b, trial, clients)
    return tipped


def _moved(leaf: Tensor, way: int) -> Tensor:
    if not leaf.is_floating_point():
        return leaf
    pattern = torch.arange(leaf.numel(), dtype=leaf.dtype).mul(2.399963).cos().reshape(leaf.shape)
    return leaf * (1 + way * _MOVED * torch.finfo(leaf.dtype).eps * pattern)


def _given_up(got: Tensor, trial: Trial, clients: int) -> Tensor:
    """Wild clients of which the recorded leaf is not finite: whatever the plain one is, nothing comes of it."""
    lost = ~by_client(got, clients).isfinite().all(1)
    return lost & _wild(trial, len(lost))


def _wild(trial: Trial, rows: int) -> Tensor:
    if trial.wild is None or len(trial.wild) != rows:
        return torch.zeros(rows, dtype=torch.bool)
    return trial.wild


def _leaves(program: Program, inputs: tuple[Any, ...]) -> list[Tensor]:
    return pytree.tree_leaves(program(*inputs))


def _alike(expected: list[Tensor], got: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    if [(leaf.shape, leaf.dtype) for leaf in expected] != [(leaf.shape, leaf.dtype) for leaf in got]:
        raise Refused("it gives other shapes or types than the plain program")
    return list(zip(expected, got, strict=True))


def _which(at: int, wrong: Tensor, off: Tensor, size: Tensor, trial: Trial) -> str:
    client = int(wrong.nonzero()[0])
    relative = float(off[client] / size[client].clamp_min(1e-30))
    return f"output {at} of client {client} differs by {relative:.1e} of its size on {trial.name} inputs"
