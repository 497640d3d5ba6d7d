"""Whole chunks in parallel, one torch thread each: no barrier between cores after every small operation."""

import copy
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, TypeVar

import torch

Tool = TypeVar("Tool")
Item = TypeVar("Item")
Result = TypeVar("Result")


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
            self._pool = ThreadPoolExecutor(self.several, "tacit", initializer=torch.set_num_threads, initargs=(1,))

    def map(self, work: Callable[[Tool, Item], Result], items: Iterable[Item]) -> Iterator[Result]:
        if self._pool is None:
            return (work(self._tool, item) for item in items)
        return self._pool.map(lambda item: self._with_tool(work, item), items)

    def _with_tool(self, work: Callable[[Tool, Item], Result], item: Item) -> Result:
        tool = self._tools.get()
        try:
            return work(tool, item)
        finally:
            self._tools.put(tool)
