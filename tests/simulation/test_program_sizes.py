"""Clients of unequal lengths are cut so that little is padded, with few programs."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tacit.sampling.cohorts import Shuffled
from tacit.simulation.chunks import Chunking, Costs, ProgramSizes, Size

FOREVER = 10**9


def log_normal(several: int = 2000, most: int = 1000) -> np.ndarray:
    sizes = np.random.default_rng(0).lognormal(np.log(60), 1.0, several)
    return np.ceil(np.clip(sizes, 10, most) / 10).astype(np.int64)


def chunking(steps: np.ndarray, rounds: int = FOREVER, asked: int = 100, workers: int = 2) -> Chunking:
    return Chunking(Shuffled(10, 1), rounds, steps, 79_510, workers, asked, alike=True, gather=False)


def cohorts(steps: np.ndarray, asked: int = 100) -> list[np.ndarray]:
    draw = np.random.default_rng(1)
    return [draw.choice(len(steps), asked, replace=False) for _ in range(20)]


@pytest.mark.parametrize("most", [1000, 3000], ids=["all recorded", "some too long to be recorded"])
def test_every_client_of_a_cohort_is_in_one_chunk(most: int) -> None:
    steps = log_normal(most=most)
    for cohort in cohorts(steps):
        assert sorted(np.concatenate(list(chunking(steps).split(cohort)))) == sorted(cohort)


def test_nobody_is_no_chunk() -> None:
    assert not list(chunking(log_normal()).split(np.array([], dtype=np.int64)))


def test_every_chunk_fits_into_its_program() -> None:
    steps = log_normal()
    cut = chunking(steps)
    for chunk in (chunk for cohort in cohorts(steps) for chunk in cut.split(cohort)):
        assert len(chunk) <= cut.shape(chunk).clients
        assert steps[chunk].max() <= cut.shape(chunk).steps


def test_a_log_normal_population_is_padded_by_less_than_a_quarter() -> None:
    steps = log_normal()
    cut = chunking(steps)
    shapes = [cut.shape(chunk) for cohort in cohorts(steps) for chunk in cut.split(cohort)]
    assert sum(shape.clients * shape.steps for shape in shapes) <= 1.25 * sum(steps[c].sum() for c in cohorts(steps))


@pytest.mark.parametrize(("rounds", "most"), [(500, 30), (FOREVER, 64)])
def test_a_short_run_records_fewer_programs(rounds: int, most: int) -> None:
    steps = log_normal()
    cut = chunking(steps, rounds)
    shapes = {cut.shape(chunk) for cohort in cohorts(steps) for chunk in cut.split(cohort)}
    assert cut.recorded
    assert len(shapes) <= most
    assert sum(shape.steps for shape in shapes) <= 1200


def test_clients_too_long_to_be_recorded_are_not_padded_with_others() -> None:
    steps = log_normal(most=3000)
    assert steps.max() > 128
    looped, without = chunking(steps), replace(chunking(steps), loops=False)
    for chunk in looped.split(np.arange(len(steps))):
        assert bool(looped.shape(chunk).loop) == bool(steps[chunk].min() > 128)
    for chunk in without.split(np.arange(len(steps))):
        assert without.records(chunk) == bool(steps[chunk].min() <= 128)


def test_what_takes_longest_comes_first() -> None:
    steps = log_normal()
    cut, costs = chunking(steps), Costs(79_510)
    for cohort in cohorts(steps):
        shapes = [cut.shape(chunk) for chunk in cut.split(cohort)]
        each = [costs.of(Size(shape.clients, shape.steps)) for shape in shapes]
        assert all(a >= b for a, b in pairwise(each))


def test_two_threads_have_like_much_to_do() -> None:
    steps = log_normal()
    cut, costs = chunking(steps), Costs(79_510)
    for cohort in cohorts(steps):
        busy = [0.0, 0.0]
        for shape in (cut.shape(chunk) for chunk in cut.split(cohort)):
            busy[int(np.argmin(busy))] += costs.of(Size(shape.clients, shape.steps))
        assert max(busy) <= 1.1 * np.mean(busy)


def test_a_resumed_run_cuts_alike() -> None:
    steps = log_normal()
    for cohort in cohorts(steps)[:3]:
        first, second = (list(chunking(steps).split(cohort)) for _ in range(2))
        assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_no_other_cut_costs_less() -> None:
    menu = ProgramSizes([Size(1, 9), Size(2, 9), Size(3, 4), Size(4, 2), Size(2, 4)], Costs(79_510))
    steps = np.array([9, 8, 4, 3, 3, 2, 1])

    def cost(at: int) -> float:
        if at >= len(steps):
            return 0.0
        fitting = [size for size in menu.sizes if size.steps >= steps[at]]
        return min(menu.costs.of(size) + cost(at + size.clients) for size in fitting)

    assert sum(menu.costs.of(size) for size in menu.used(steps)) == pytest.approx(cost(0))


def test_clients_that_are_nearly_alike_have_two_programs() -> None:
    steps = np.random.default_rng(0).integers(3, 5, 2000)
    cut = chunking(steps, rounds=500)
    shapes = [cut.shape(chunk) for cohort in cohorts(steps) for chunk in cut.split(cohort)]
    assert len({(shape.clients, shape.steps) for shape in shapes}) == 2
