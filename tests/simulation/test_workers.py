"""Chunks in parallel threads: results in order, items made a few ahead and no more, one torch thread each."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
import torch

from tacit.simulation.workers import _AHEAD, Workers


@pytest.fixture(params=[1, 3])
def workers(request: pytest.FixtureRequest) -> Workers[list[int]]:
    return Workers([], request.param)


def test_results_come_in_the_order_of_the_items(workers: Workers[list[int]]) -> None:
    def work(tool: list[int], item: int) -> int:
        time.sleep(0.002 * (item % 3))
        return item * item

    assert list(workers.map(work, range(20))) == [n * n for n in range(20)]


def test_nobody_shares_a_tool_with_another(workers: Workers[list[int]]) -> None:
    def work(tool: list[int], item: int) -> bool:
        tool.append(item)
        time.sleep(0.001)
        return tool.pop() == item

    assert all(workers.map(work, range(30)))


def test_items_are_made_in_the_calling_thread_and_only_a_few_ahead() -> None:
    workers, done, made, ahead = Workers(None, 2), [0], [0], []

    def items() -> Iterator[int]:
        for item in range(30):
            assert threading.current_thread() is threading.main_thread()
            made[0] += 1
            ahead.append(made[0] - done[0])
            yield item

    def work(tool: None, item: int) -> None:
        time.sleep(0.001)
        done[0] += 1

    list(workers.map(work, items()))
    assert max(ahead) <= workers.several + _AHEAD + 2  # one that waits to be handed out, one not counted yet


def test_an_error_reaches_the_caller_and_ends_the_work(workers: Workers[list[int]]) -> None:
    begun: list[int] = []

    def work(tool: list[int], item: int) -> int:
        begun.append(item)
        if item == 3:
            raise ValueError("three")
        time.sleep(0.001)
        return item

    with pytest.raises(ValueError, match="three"):
        list(workers.map(work, range(1000)))
    assert len(begun) < 50
    assert list(workers.map(work, [5, 6])) == [5, 6]


def test_the_caller_is_alone_while_it_is_undisturbed_and_as_before_afterwards() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with suppress(ValueError), Workers(None, 2).undisturbed():
            assert torch.get_num_threads() == 1
            raise ValueError
        assert torch.get_num_threads() == 2
        with Workers(None, 1).undisturbed():  # nobody to be in the way of
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_operations_of_a_worker_stay_in_its_thread_whatever_the_caller_sets() -> None:
    before, workers = torch.get_num_threads(), Workers(None, 2)
    try:
        list(workers.map(lambda tool, item: time.sleep(0.01), range(4)))  # nothing of torch yet
        torch.set_num_threads(2)
        assert set(workers.map(lambda tool, item: torch.get_num_threads(), range(8))) == {1}
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell which cores may be used")
def test_workers_keep_to_a_core_each_if_they_are_as_many_as_there_are_cores() -> None:
    usable = os.sched_getaffinity(0)

    def where(tool: None, item: int) -> frozenset[int]:
        time.sleep(0.02)
        return frozenset(os.sched_getaffinity(0))

    for several in {len(usable), len(usable) + 1} - {1}:
        kept = set(Workers(None, several).map(where, range(4 * several)))
        assert all(len(cores) == 1 for cores in kept) if several == len(usable) else kept == {frozenset(usable)}
    assert os.sched_getaffinity(0) == usable
