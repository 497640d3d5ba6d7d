"""Programs cut into a loop: any number of windows gives what the plain program gives; what is no loop is refused."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from tacit.compile.acceptance import Refused
from tacit.compile.handover import NOTHING
from tacit.compile.loop import Windows, loop_of

CLIENTS, SIZE = 3, 4
Step = Callable[[Tensor, Tensor, int, int], Tensor]


def cut(inputs: tuple[Tensor, Tensor], first: int, several: int) -> tuple[Tensor, Tensor]:
    return inputs[0], inputs[1][:, first : first + several].contiguous()


WINDOWS = Windows(SIZE, lambda inputs: inputs[1].shape[1], cut)


def loss(w: Tensor, x: Tensor) -> Tensor:
    return (w * x).sum().sigmoid()


def descent(w: Tensor, x: Tensor, step: int, steps: int) -> Tensor:
    return w - 0.5 * grad(loss)(w, x)


def slower(w: Tensor, x: Tensor, step: int, steps: int) -> Tensor:
    return w - 0.5 / (1 + step) * grad(loss)(w, x)


def by_turns(w: Tensor, x: Tensor, step: int, steps: int) -> Tensor:
    return w.roll(1) if step % 2 else descent(w, x, step, steps)


def program(rule: Step, w: Tensor, xs: Tensor) -> Tensor:
    """All clients start from one w, and have rows of their own: [clients, steps, numbers]."""

    def one(xs: Tensor) -> Tensor:
        now, mean = w, torch.zeros_like(w)
        for step in range(len(xs)):
            now = rule(now, xs[step], step, len(xs))
            mean = 0.9 * mean + 0.1 * now
        return now - w + mean

    return vmap(one)(xs)


def given(loops: int) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(loops)
    shape = CLIENTS, loops * SIZE + 2, 5
    return torch.randn(5, generator=draw, dtype=torch.float64), torch.randn(shape, generator=draw, dtype=torch.float64)


def test_a_loop_recorded_on_one_window_serves_any_number_of_them() -> None:
    loop = loop_of(WINDOWS, partial(program, descent), given(2), NOTHING)
    for loops in (1, 2, 7):
        torch.testing.assert_close(loop(*given(loops)), program(descent, *given(loops)))


@pytest.mark.parametrize("rule", [slower, by_turns])
def test_steps_that_do_not_do_the_same_are_no_loop(rule: Step) -> None:
    with pytest.raises(Refused, match="its steps"):
        loop_of(WINDOWS, partial(program, rule), given(2), NOTHING)


def test_a_program_with_a_broken_number_of_windows_is_an_error() -> None:
    loop = loop_of(WINDOWS, partial(program, descent), given(2), NOTHING)
    w, xs = given(2)
    with pytest.raises(ValueError, match="steps a loop"):
        loop(w, xs[:, :-1])
