"""A recorded program: the same numbers as the plain one, or no recorded program at all."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from tacit.compile.acceptance import Refused
from tacit.methods import AdaPeD, Ditto, FedAvg
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.stepwise import Stepwise
from tacit.rounds.assemble import Privacy
from tests.compile.trials import record_scaled
from tests.worlds import GROUPED, RECORD, largest_difference, run, states


def check(program: Callable[..., Tensor], *inputs: Tensor) -> None:
    replay = record_scaled(program, *inputs)
    kept = [leaf.clone() for leaf in inputs]
    for scale in (1.0, -0.5, 3.0):
        scaled = [leaf * scale for leaf in inputs]
        assert torch.allclose(replay(*scaled), program(*scaled), atol=1e-10)
    assert all(torch.equal(a, b) for a, b in zip(inputs, kept, strict=True))


def numbers(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).normal(size=shape))


def test_parameters_that_are_read_after_an_update_are_not_updated_in_place() -> None:
    def program(w: Tensor, x: Tensor) -> Tensor:
        first = w + 0.0
        second = first - 0.1 * torch.bmm(x, x.transpose(1, 2))
        third = torch.add(second, torch.bmm(x, x.transpose(1, 2)), alpha=-0.1)
        return third.sum() + second.square().sum() + first.sum()

    check(program, numbers(3, 4, 4), numbers(3, 4, 5))


def test_a_view_that_is_read_after_an_update_keeps_what_it_showed() -> None:
    def program(w: Tensor, x: Tensor) -> Tensor:
        first = w * 2.0
        turned = first.transpose(1, 2)
        second = torch.add(first, torch.bmm(x, x.transpose(1, 2)), alpha=0.5)
        return second @ turned

    check(program, numbers(3, 4, 4), numbers(3, 4, 5))


def test_a_product_of_what_is_updated_is_not_taken_from_half_new_values() -> None:
    def program(w: Tensor) -> Tensor:
        first = w * 2.0
        return torch.add(first, torch.bmm(first, first.transpose(1, 2)), alpha=-0.3)

    check(program, numbers(3, 4, 4))


def test_a_part_that_is_read_after_an_update_keeps_what_it_showed() -> None:
    def program(w: Tensor, x: Tensor) -> Tensor:
        first = w * 2.0
        left, _ = first.split(2, -1)
        second = torch.add(first, torch.bmm(x, x.transpose(1, 2)), alpha=0.5)
        return second @ left

    check(program, numbers(3, 4, 4), numbers(3, 4, 5))


def test_inputs_are_never_written_to() -> None:
    check(lambda w, x: torch.add(w, torch.bmm(x, x), alpha=-1.0), numbers(2, 3, 3), numbers(2, 3, 3))


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 3), st.floats(-1, 1), st.booleans())
def test_gradient_descent_under_vmap_is_recorded_faithfully(
    clients: int, rows: int, steps: int, decay: float, biased: bool
) -> None:
    def one(w: Tensor, x: Tensor) -> Tensor:
        def loss(p: Tensor) -> Tensor:
            return (x @ p + (p[0] if biased else 0)).tanh().square().mean()

        for _ in range(steps):
            g = torch.add(torch.func.grad(loss)(w), w, alpha=decay)
            w = torch.add(w, g, alpha=-0.1)
        return w

    check(vmap(one), numbers(clients, 3, 2), numbers(clients, rows, 3))


def test_noise_is_drawn_anew_in_every_replay() -> None:
    def program(keys: Tensor) -> Tensor:
        return vmap(lambda key: Seeded(key).normal(5, torch.float64))(keys)

    keys = torch.arange(6).reshape(3, 2)
    replay = record_scaled(program, keys)
    assert torch.equal(replay(keys), program(keys))
    assert torch.equal(replay(keys + 100), program(keys + 100))
    assert not torch.equal(replay(keys), replay(keys + 100))


def test_a_program_that_asks_for_a_value_is_not_recorded() -> None:
    with pytest.raises(Refused, match="a value decides"):
        record_scaled(lambda x: x * 2 if float(x.sum()) > 0 else x, numbers(3))


def test_what_is_changed_in_place_becomes_a_new_value_and_other_names_of_the_memory_are_refused() -> None:
    def program(x: Tensor, again: bool = False) -> Tensor:
        doubled = x * 2
        first = doubled[:1]
        doubled.add_(x)
        return doubled.sum() + first if again else doubled

    check(program, numbers(3))
    with pytest.raises(Refused, match="read under another name"):
        record_scaled(lambda x: program(x, again=True), numbers(3))


def test_a_constant_that_is_changed_is_refused() -> None:
    total = numbers(3)
    with pytest.raises(Refused, match="a constant is changed in place"):
        record_scaled(lambda x: total.add_(x), numbers(3))


def test_a_program_that_hides_a_value_is_found_out() -> None:
    with pytest.raises(Refused, match="differs by"):
        record_scaled(lambda x: x + torch.from_numpy(x.detach().numpy().copy()), numbers(3))


def test_clients_of_unequal_size_are_filled_up_without_a_trace() -> None:
    plain, recorded = (run(Ditto(), GROUPED, rounds=3, chunk=6) for _ in range(2))
    recorded.engine = replace(recorded.engine, compile="require", programs={})
    for result in (plain, recorded):
        result.go()
    assert len(recorded.engine.programs) > 1
    assert all(recorded.engine.programs.values())
    assert largest_difference(plain.progress.server.view.model, recorded.progress.server.view.model) < 1e-9
    assert largest_difference(states(plain), states(recorded)) < 1e-9


def test_a_long_run_is_recorded_and_a_short_one_is_not() -> None:
    assert run(FedAvg(), rounds=100).engine.recorded
    assert not run(FedAvg(), rounds=5).engine.recorded
    assert not run(FedAvg(), RECORD, rounds=100).engine.recorded


def test_noise_in_every_step_is_recorded_like_the_rest() -> None:
    """Its constants stand under several names, which torch's tracer refuses."""
    private = Privacy(Stepwise(0.5, 0.1), (Level("private", epsilon=8.0, delta=1e-3),))
    plain, recorded = (run(AdaPeD(), private, rounds=3, chunk=6, steps=4) for _ in range(2))
    recorded.engine = replace(recorded.engine, compile="require", programs={})
    for result in (plain, recorded):
        result.go()
    assert all(recorded.engine.programs.values())
    assert largest_difference(states(plain), states(recorded)) < 1e-9
