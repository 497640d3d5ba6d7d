"""Whole chunks in parallel, one torch thread each: no barrier between cores after every small operation."""

import copy
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from queue import SimpleQueue
from threading import Semaphore
from typing import Generic, TypeVar

import torch

Tool = TypeVar("Tool")
Item = TypeVar("Item")
Result = TypeVar("Result")
_AHEAD = 2  # items that wait for a worker


class Workers(Generic[Tool]):
    """A pool of threads with a tool each: what is not safe to share (a module whose parameters are swapped).

    Results come in the order of the items, whoever made them. One worker is the calling thread itself.
    """

    def __init__(self, tool: Tool, several: int) -> None:
        self.several = max(1, several)
        self._tool = tool
        self._tools: SimpleQueue[Tool] = SimpleQueue()
        self._pool: ThreadPoolExecutor | None = None
        if self.several > 1:
            for _ in range(self.several):
                self._tools.put(copy.deepcopy(tool))
            self._pool = ThreadPoolExecutor(
                self.several, "tacit", initializer=_settle, initargs=(_cores(self.several),)
            )

    def map(self, work: Callable[[Tool, Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        """Items are made in the calling thread, a few ahead of the workers, so that Python runs beside their work."""
        if self._pool is None:
            return (work(self._tool, item) for item in items)
        return self._ahead(self._pool, work, items)

    def _ahead(
        self, pool: ThreadPoolExecutor, work: Callable[[Tool, Item], Result], items: Iterable[Item]
    ) -> Iterator[Result]:
        """The first items, all of them where they are few, are made before any worker starts: one that wakes up often
        does so on the caller's core, or waits for Python's lock, and then both are late."""
        free, waiting = Semaphore(self.several + _AHEAD), deque[Future[Result]]()
        items = iter(items)
        first = list(islice(items, self.several + _AHEAD))
        try:
            for item in chain(first, items):
                free.acquire()
                waiting.append(pool.submit(self._with_tool, work, item))
                waiting[-1].add_done_callback(lambda _: free.release())
                while waiting and waiting[0].done():
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for one in waiting:
                one.cancel()

    @contextmanager
    def undisturbed(self) -> Iterator[None]:
        """While this lasts, operations of the calling thread stay in it.

        The threads that OpenMP shares an operation out to go on spinning for milliseconds after it, each on a core that
        a worker could use: a round of a small network took twice as long for them.
        """
        before = torch.get_num_threads()
        if self._pool is None or before == 1:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)

    def _with_tool(self, work: Callable[[Tool, Item], Result], item: Item) -> Result:
        tool = self._tools.get()
        try:
            return work(tool, item)
        finally:
            self._tools.put(tool)


def _settle(cores: SimpleQueue[int]) -> None:
    """A worker's thread: its operations stay in it, and it stays on its core, if there is one for each worker."""
    torch.get_num_threads()  # a thread's first call takes over what was last set anywhere; no later one does
    torch.set_num_threads(1)
    if not cores.empty():
        os.sched_setaffinity(0, {cores.get()})


def _cores(several: int) -> SimpleQueue[int]:
    """A core for each of so many workers, where they are all that the process may use; else none.

    Left to themselves, workers that have just woken up often share a core for a while although another is free.
    """
    cores = SimpleQueue[int]()
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    for core in usable if len(usable) == several else ():
        cores.put(core)
    return cores
