"""Runs of small operations that compiled code does for one client after another: torch's numbers, whatever they are."""

from collections.abc import Callable
from functools import reduce

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap
from torch.nn.functional import cross_entropy, linear

from tacit.compile.kernels import compiled
from tacit.compile.passes import lower
from tests.compile.test_compiled_passes import numbers, simplified

pytestmark = pytest.mark.skipif(not compiled(), reason="no C compiler that the kernels can be built with")
aten, ours = torch.ops.aten, torch.ops.tacit
CLIENTS = 3
Op = Callable[[Tensor, "World"], Tensor]


class World:
    """What operations on [clients, rows, wide] take besides: clients' own numbers, shared ones, masks."""

    def __init__(self, rows: int, wide: int, dtype: torch.dtype) -> None:
        self.square = (numbers(CLIENTS, wide, wide) / wide).to(dtype)
        self.between = (numbers(CLIENTS, rows, rows) / rows).to(dtype)
        self.like = numbers(CLIENTS, rows, wide + 1)[..., :wide].to(dtype)  # does not lie unbroken
        self.bias, self.shared = numbers(CLIENTS, 1, wide).to(dtype), numbers(wide).to(dtype)
        self.common = (numbers(wide, wide) / wide).to(dtype)
        self.positive = self.like.square() + 1.0
        self.mask = numbers(CLIENTS, rows, wide) > 0
        self.skipped = torch.tensor([True, False, True]).reshape(CLIENTS, 1, 1)

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return tuple(self.__dict__.values())


NAMES = tuple(World(1, 1, torch.float32).__dict__)
OPERATIONS: dict[str, Op] = {
    "add": lambda x, w: torch.add(x, w.bias, alpha=-0.5),
    "add what lies elsewhere": lambda x, w: x + w.like,
    "subtract": lambda x, w: w.shared - x,
    "multiply": lambda x, w: x * w.like,
    "scale": lambda x, w: x * -0.7,
    "negate": lambda x, w: -x,
    "divide": lambda x, w: x / w.positive,
    "rectify": lambda x, w: x.relu(),
    "gate": lambda x, w: aten.threshold_backward(x, w.like, 0.1),
    "exponential": lambda x, w: (x * 0.1).exp(),
    "add a product": lambda x, w: torch.addcmul(x, w.like, w.shared, value=0.3),
    "fill": lambda x, w: x.masked_fill(w.mask, 0.25),
    "skip": lambda x, w: torch.where(w.skipped, x, w.like),
    "largest": lambda x, w: x - x.amax(-1, keepdim=True),
    "largest of rows": lambda x, w: x - x.amax(1, keepdim=True),
    "total": lambda x, w: x - 0.1 * x.sum(-1, keepdim=True),
    "total of rows": lambda x, w: x - 0.1 * x.sum(1, keepdim=True),
    "total of all": lambda x, w: x - 0.01 * x.sum((1, 2)).reshape(-1, 1, 1),
    "matrix": lambda x, w: torch.bmm(x, w.square),
    "matrix, turned": lambda x, w: torch.bmm(x, w.square.mT),
    "matrix from the left": lambda x, w: torch.bmm(w.between, x),
    "matrix from the left, turned": lambda x, w: torch.bmm(w.between.mT, x),
    "matrix and more": lambda x, w: torch.baddbmm(w.bias, x, w.square, beta=0.5, alpha=-2),
    "itself and a matrix": lambda x, w: torch.baddbmm(x, x, w.square, beta=0.9, alpha=0.1),
    "its own square": lambda x, w: x + 1e-4 * torch.bmm(torch.bmm(x, x.mT), x),
    "what all share": lambda x, w: torch.mm(x.reshape(-1, x.shape[-1]), w.common).reshape(x.shape),
    "turned twice": lambda x, w: (x.mT * 0.5).mT + x,
    "other clients'": lambda x, w: x + 0.1 * x.flip(0),
    "something else": lambda x, w: x.tanh(),
}


LEFT = ("other clients'", "something else", "turned twice")  # reads what is not its own, not known, lies otherwise


def chain(names: list[str]) -> Callable[..., Tensor]:
    def program(x: Tensor, *leaves: Tensor) -> Tensor:
        world = World.__new__(World)
        world.__dict__.update(zip(NAMES, leaves, strict=True))
        return reduce(lambda now, name: OPERATIONS[name](now, world), names, torch.bmm(x, world.square) + x)

    return program


@settings(max_examples=150, deadline=None)
@given(
    names=st.lists(st.sampled_from(list(OPERATIONS)), min_size=6, max_size=14),
    rows=st.sampled_from([1, 2, 5, 7, 10]),
    wide=st.sampled_from([1, 4, 10, 16, 33, 70]),
)
def test_any_chain_of_operations_gives_the_numbers_of_torch(names: list[str], rows: int, wide: int) -> None:
    program = chain(names)
    x = numbers(CLIENTS, rows, wide)
    (got,), _ = simplified(program, x, *World(rows, wide, torch.float32).leaves)
    exact = program(x.double(), *World(rows, wide, torch.float64).leaves)
    torch.testing.assert_close(got.double(), exact, rtol=1e-3, atol=1e-3 * float(exact.abs().max()) + 1e-5)


@pytest.mark.parametrize("name", [n for n in OPERATIONS if n not in LEFT])
def test_every_operation_is_done_by_client(name: str) -> None:
    x = numbers(CLIENTS, 7, 33)
    (got,), calls = simplified(chain([name] * 6), x, *World(7, 33, torch.float32).leaves)
    exact = chain([name] * 6)(x.double(), *World(7, 33, torch.float64).leaves)
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4 * float(exact.abs().max()))
    left = [n for n in calls if isinstance(n, torch._ops.OpOverload) and n in lower._KINDS]
    assert calls[ours.each_client.default] >= 1
    assert not left


def test_what_other_clients_made_is_not_read_before_they_made_it() -> None:
    names = ["add", "matrix", "rectify", "scale", "multiply", "add", "other clients'"] * 2
    x = numbers(CLIENTS, 5, 16)
    (got,), calls = simplified(chain(names), x, *World(5, 16, torch.float32).leaves)
    torch.testing.assert_close(got, chain(names)(x, *World(5, 16, torch.float32).leaves), rtol=1e-4, atol=1e-4)
    assert calls[ours.each_client.default] == 2


def test_few_operations_stay_as_they_are() -> None:
    x = numbers(CLIENTS, 5, 16)
    _, calls = simplified(chain(["rectify"]), x, *World(5, 16, torch.float32).leaves)
    assert not calls[ours.each_client.default]


def test_double_precision_stays_as_it_is() -> None:
    x = numbers(CLIENTS, 5, 16).double()
    _, calls = simplified(chain(["rectify", "add"] * 5), x, *World(5, 16, torch.float64).leaves)
    assert not calls[ours.each_client.default]


@pytest.mark.parametrize("spoiled", [torch.nan, torch.inf, -torch.inf, 1e38, 0.0])
@pytest.mark.parametrize("name", ["rectify", "gate", "exponential", "largest", "fill", "skip", "total", "matrix"])
def test_what_is_not_finite_is_where_torch_has_it(name: str, spoiled: float) -> None:
    names = ["scale", "negate", name, "scale", "negate", "negate", "negate"]
    x = numbers(CLIENTS, 7, 33)
    x[1, 2, 3] = spoiled
    program = chain(names)
    (got,), calls = simplified(lambda x, *w: program(x * 1.0, *w), x, *World(7, 33, torch.float32).leaves)
    expected = program(x, *World(7, 33, torch.float32).leaves)
    assert calls[ours.each_client.default]
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_powers_of_e_are_precise_from_the_smallest_number_to_the_largest() -> None:
    x = torch.cat([torch.linspace(-110, 90, 4001), torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0])])
    x = torch.cat([x, torch.zeros(-len(x) % 3)]).reshape(3, 1, -1)

    def program(x: Tensor, square: Tensor) -> Tensor:
        kept = torch.bmm(square, x)  # tells clients apart
        for _ in range(5):
            kept = kept * 0.5
        return x.exp() + 0.0 * kept.nan_to_num(0.0, 0.0, 0.0)

    (got,), calls = simplified(program, x, torch.ones(3, 1, 1))
    expected = x.double().exp().float()
    normal = expected >= torch.finfo(torch.float32).tiny
    assert calls[ours.each_client.default]
    torch.testing.assert_close(got[normal], expected[normal], rtol=3e-7, atol=0)
    torch.testing.assert_close(got, expected, rtol=0.5, atol=1e-38, equal_nan=True)


ROWS, INPUTS, HIDDEN, CLASSES, STEPS, BATCH = 12, 48, 20, 7, 6, 5


def trained(
    weights: tuple[Tensor, Tensor, Tensor], x: Tensor, y: Tensor, picks: Tensor, pull: float
) -> tuple[Tensor, ...]:
    """Steps of descent of every client on rows of its own, drawn to where it started."""

    def one(first: Tensor, bias: Tensor, second: Tensor, x: Tensor, y: Tensor, picks: Tensor) -> tuple[Tensor, ...]:
        def loss(now: tuple[Tensor, ...], at: Tensor) -> Tensor:
            return cross_entropy(linear(linear(x[at], now[0], now[1]).relu(), now[2]), y[at])

        start = now = (first, bias, second)
        for step in range(STEPS):
            slopes = grad(loss)(now, picks[step])
            if pull:
                slopes = [torch.add(g, a - b, alpha=pull) for g, a, b in zip(slopes, now, start, strict=True)]
            now = tuple(torch.add(a, g, alpha=-0.3) for a, g in zip(now, slopes, strict=True))
        return now

    return vmap(one)(*weights, x, y, picks)


@pytest.mark.parametrize("pull", [0.0, 0.4])
def test_steps_of_a_small_network_are_one_call(pull: float) -> None:
    weights = numbers(CLIENTS, HIDDEN, INPUTS) / 7, numbers(CLIENTS, HIDDEN), numbers(CLIENTS, CLASSES, HIDDEN) / 5
    x, y = numbers(CLIENTS, ROWS, INPUTS), torch.arange(CLIENTS * ROWS).reshape(CLIENTS, ROWS) % CLASSES
    picks = torch.stack([torch.stack([torch.randperm(ROWS)[:BATCH] for _ in range(STEPS)]) for _ in range(CLIENTS)])
    got, calls = simplified(lambda a, b, c, x, y, p: trained((a, b, c), x, y, p, pull), *weights, x, y, picks)
    first, bias, second = (each.double() for each in weights)
    exact = trained((first, bias, second), x.double(), y, picks, pull)
    for mine, expected in zip(got, exact, strict=True):
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-5)
    assert calls[ours.each_client.default] == 1
    assert not calls[ours.take_rows.default] + calls[ours.add_rows.default]


def test_take_rows_and_add_rows_are_what_their_names_say() -> None:
    of, picks = numbers(2, 4, 3), torch.tensor([[3, 0], [1, 1]])
    rows = ours.take_rows(of, picks)
    torch.testing.assert_close(rows, torch.stack([of[0][picks[0]], of[1][picks[1]]]))
    put = ours.add_rows(of, picks, rows, 4, 0.5, 2.0)
    torch.testing.assert_close(put[0, 3], 0.5 * of[0, 3] + 2 * rows[0, 0])
    torch.testing.assert_close(put[1, 1], 0.5 * of[1, 1] + 2 * (rows[1, 0] + rows[1, 1]))
    torch.testing.assert_close(ours.add_rows(None, picks, rows, 4, 0.5, 2.0)[0, 1], torch.zeros(3))


def padded(weights: tuple[Tensor, Tensor, Tensor], x: Tensor, y: Tensor, live: Tensor) -> tuple[Tensor, ...]:
    """The same on a batch of its own in every step, where steps that are not live leave all as it is."""

    def one(first: Tensor, bias: Tensor, second: Tensor, x: Tensor, y: Tensor, live: Tensor) -> tuple[Tensor, ...]:
        def loss(now: tuple[Tensor, ...], at: int) -> Tensor:
            return cross_entropy(linear(linear(x[at], now[0], now[1]).relu(), now[2]), y[at])

        start = now = (first, bias, second)
        for step in range(STEPS):
            slopes = grad(loss)(now, step)
            new = (torch.add(a, g, alpha=-0.3) for a, g in zip(now, slopes, strict=True))
            now = tuple(torch.where(live[step], a, b) for a, b in zip(new, now, strict=True))
        return tuple(a - b for a, b in zip(now, start, strict=True))

    return vmap(one)(*weights, x, y, live)


def padded_world() -> tuple[Tensor, ...]:
    weights = numbers(CLIENTS, HIDDEN, INPUTS) / 7, numbers(CLIENTS, HIDDEN), numbers(CLIENTS, CLASSES, HIDDEN) / 5
    x, y = numbers(CLIENTS, STEPS, BATCH, INPUTS), torch.arange(CLIENTS * STEPS * BATCH) % CLASSES
    return *weights, x, y.reshape(CLIENTS, STEPS, BATCH)


@pytest.mark.parametrize("live", [[6, 6, 6], [1, 3, 6], [0, 5, 1]])
def test_clients_pass_over_steps_that_only_pad_them(live: list[int]) -> None:
    a, b, c, x, y = padded_world()
    taken = torch.arange(STEPS) < torch.tensor(live).unsqueeze(1)
    got, calls = simplified(lambda a, b, c, x, y, live: padded((a, b, c), x, y, live), a, b, c, x, y, taken)
    exact = padded((a.double(), b.double(), c.double()), x.double(), y, taken)
    for mine, expected in zip(got, exact, strict=True):
        torch.testing.assert_close(mine.double(), expected, rtol=1e-4, atol=1e-5)
    assert calls[ours.each_client.default] == 1


def test_what_is_not_a_number_in_a_step_that_is_passed_over_is_never_met() -> None:
    a, b, c, x, y = padded_world()
    taken = torch.arange(STEPS) < torch.tensor([1, 3, 6]).unsqueeze(1)
    graph = lambda *given: simplified(lambda a, b, c, x, y, live: padded((a, b, c), x, y, live), *given)  # noqa: E731
    clean, _ = graph(a, b, c, x, y, taken)
    x = x.clone()
    x[0, 3:], x[1, 4:] = torch.nan, torch.inf
    spoiled, _ = graph(a, b, c, x, y, taken)
    for one, other in zip(clean, spoiled, strict=True):
        assert torch.equal(one, other)


def test_sums_and_maxima_of_everything_stay_as_they_are() -> None:
    def program(x: Tensor, square: Tensor) -> Tensor:
        for _ in range(7):
            x = torch.bmm(x, square).relu()
        return x / x.amax() + x.sum()

    given = numbers(CLIENTS, 5, 16).abs(), numbers(CLIENTS, 16, 16).abs() / 16
    (got,), _ = simplified(program, *given)
    torch.testing.assert_close(got, program(*given), rtol=1e-4, atol=1e-4)


def test_a_list_refuses_numbers_of_other_types() -> None:
    numbers_, factors = torch.zeros(1, 35, dtype=torch.int64), torch.ones(1, 2)
    with pytest.raises(RuntimeError, match="other types"):
        ours.each_client([torch.ones(2, 3, dtype=torch.bool)], [], [4], numbers_, factors, [3], 2, 0)
