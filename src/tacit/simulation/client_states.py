"""Client states between rounds: in memory, or in a sparse file where an untouched client takes no disk.

Both keep the last committed state of every client until the next commit, so a killed run finds what its checkpoint
says. The file is read and written by position rather than mapped: pages stay out of the process's memory, and a
full disk is an error instead of a fatal signal.
"""

import ctypes
import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import torch
from torch import Tensor

from tacit import c_library
from tacit.core import tree
from tacit.core.contract import Tree
from tacit.core.files import storage
from tacit.errors import StorageError

SOURCE: Final = Path(__file__).with_name("rows.c")
LONG: Final = 4096  # numbers of a row that are copied faster by themselves

MEMORY_LIMIT = 64 * 2**20  # above this a population's states go to disk: checkpoints then need not hold them
UNSAVED_LIMIT = 2**30  # the same for a run that leaves no checkpoints; only what was written takes memory


class Store(Protocol):
    @property
    def touched(self) -> np.ndarray:
        """bool [clients]: who has taken part, or trained alone where a method idles."""
        ...

    def expect(self, clients: np.ndarray) -> None:
        """These will be read soon: a chance to fetch them beside other work."""
        ...

    def read(self, clients: np.ndarray, first: Tree) -> Tree:
        """States, one row a client; `first` for those that have not taken part."""
        ...

    def write(self, clients: np.ndarray, states: Tree) -> None: ...

    def prepare(self) -> Tree:
        """Makes what was written durable and returns what the checkpoint must hold to find it."""
        ...

    def commit(self) -> None:
        """The checkpoint with the last `prepare` is durable: it is what a resumed run will read."""
        ...

    def restore(self, saved: Tree) -> None: ...


def open_store(clients: int, like: Tree, folder: Path | None, limit: int | None = None) -> Store:
    """Memory for small populations, else a sparse file in `folder` (or a temporary one)."""
    if not like:
        return NoStates(clients)
    width = tree.size(like)
    dtype = next(iter(like.values())).dtype
    if limit is None:
        limit = UNSAVED_LIMIT if folder is None else MEMORY_LIMIT
    if clients * width * dtype.itemsize <= limit:
        return MemoryStore(clients, like)
    return FileStore(clients, like, folder)


class NoStates:
    """For methods whose clients keep nothing but the fact that they took part."""

    def __init__(self, clients: int) -> None:
        self.touched = np.zeros(clients, bool)

    def expect(self, clients: np.ndarray) -> None: ...

    def read(self, clients: np.ndarray, first: Tree) -> Tree:
        return {}

    def write(self, clients: np.ndarray, states: Tree) -> None:
        self.touched[clients] = True

    def prepare(self) -> Tree:
        return {"touched": torch.from_numpy(self.touched.copy())}

    def commit(self) -> None: ...

    def restore(self, saved: Tree) -> None:
        self.touched = saved["touched"].numpy().copy()


class MemoryStore(NoStates):
    """All states in one array; a checkpoint holds the touched rows."""

    def __init__(self, clients: int, like: Tree) -> None:
        super().__init__(clients)
        self._like = like
        self._rows = torch.zeros(clients, tree.size(like), dtype=next(iter(like.values())).dtype)

    def read(self, clients: np.ndarray, first: Tree) -> Tree:
        """Row by row: with large states, half the time of fetching all of them and then choosing."""
        rows, start = self._rows.new_empty(len(clients), self._rows.shape[1]), tree.flatten(first)
        start = start.to(rows.dtype)
        whose = np.asarray(clients).tolist()
        copy_rows(rows.unbind(), [self._rows[client] if self.touched[client] else start for client in whose])
        return tree.unflatten(rows, first)

    def write(self, clients: np.ndarray, states: Tree) -> None:
        places, at = np.asarray(clients, np.int64), 0
        for leaf in states.values():
            flat = leaf.reshape(len(clients), -1)
            into = self._rows[:, at : at + flat.shape[1]]
            if flat.shape[1] < LONG:
                into.index_copy_(0, torch.from_numpy(places), flat.to(into.dtype))
            else:
                copy_rows([into[client] for client in places.tolist()], flat.unbind())
            at += flat.shape[1]
        super().write(clients, states)

    def prepare(self) -> Tree:
        return super().prepare() | {"rows": self._rows[self.touched].clone()}

    def restore(self, saved: Tree) -> None:
        super().restore(saved)
        self._rows.zero_()
        self._rows[self.touched] = saved["rows"]


class FileStore(NoStates):
    """Two slots a client in one sparse file: the committed one is not written to until the next commit."""

    def __init__(self, clients: int, like: Tree, folder: Path | None) -> None:
        super().__init__(clients)
        self._dtype = next(iter(like.values())).dtype
        self._width = tree.size(like)
        self._slot = np.zeros(clients, np.uint8)  # where the committed state lies
        self._dirty = np.zeros(clients, bool)  # written since, in the other slot
        self._file = _Rows(folder, 2 * clients, self._width * self._dtype.itemsize)

    def expect(self, clients: np.ndarray) -> None:
        for client in clients[self.touched[clients]]:
            self._file.expect(self._place(client))

    def read(self, clients: np.ndarray, first: Tree) -> Tree:
        rows = torch.empty(len(clients), self._width, dtype=self._dtype)
        for row, client in zip(rows.numpy(), clients, strict=True):
            if self.touched[client]:
                self._file.read(self._place(client), memoryview(row).cast("B"))
        return _with_first(rows, self.touched[clients], first)

    def write(self, clients: np.ndarray, states: Tree) -> None:
        rows = tree.flatten(states, 1).to(self._dtype).contiguous().numpy()
        self._dirty[clients] = True
        for row, client in zip(rows, clients, strict=True):
            self._file.write(self._place(client), memoryview(row).cast("B"))
        super().write(clients, states)

    def prepare(self) -> Tree:
        self._file.sync()
        return super().prepare() | {"slot": torch.from_numpy(self._slot ^ self._dirty)}

    def commit(self) -> None:
        self._slot ^= self._dirty
        self._dirty[:] = False

    def restore(self, saved: Tree) -> None:
        super().restore(saved)
        self._slot = saved["slot"].numpy().copy()
        self._dirty[:] = False

    def _place(self, client: int) -> int:
        return 2 * int(client) + int(self._slot[client] ^ self._dirty[client])


class _Rows:
    """Rows of equal size in a sparse file, read and written by position. Without a folder it goes with the process."""

    def __init__(self, folder: Path | None, rows: int, size: int) -> None:
        self._path, self._size = (folder or Path(tempfile.gettempdir())) / "states.bin", size
        with storage(self._path):
            if folder is None:
                self._fd, name = tempfile.mkstemp(prefix="tacit-")
                os.unlink(name)
            else:
                self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(self._fd, rows * size)

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)

    def expect(self, place: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._fd, place * self._size, self._size, os.POSIX_FADV_WILLNEED)

    def read(self, place: int, into: memoryview) -> None:
        with storage(self._path):
            got = os.preadv(self._fd, [into], place * self._size)
        if got != self._size:
            raise StorageError(f"{self._path} is cut short: restore it from a backup or start the run anew")

    def write(self, place: int, data: memoryview) -> None:
        with storage(self._path):
            put = os.pwrite(self._fd, data, place * self._size)
        if put != self._size:
            raise StorageError(f"no space left for client states in {self._path}: free some and resume the run")

    def sync(self) -> None:
        with storage(self._path):
            os.fsync(self._fd)


def _with_first(rows: Tensor, touched: np.ndarray, first: Tree) -> Tree:
    """Rows as trees, the untouched ones replaced by `first`."""
    if not touched.all():
        rows[torch.from_numpy(~touched)] = tree.flatten(first).to(rows.dtype)
    return tree.unflatten(rows, first)


@cache
def _library() -> ctypes.CDLL | None:
    return c_library.load([SOURCE])


def copy_rows(into: Sequence[Tensor], rows: Sequence[Tensor]) -> None:
    """Each row, unbroken and of one length, to its place; what is converted on the way is torch's to do."""
    if not rows:
        return
    library = _library()
    kinds = {(each.dtype, each.numel(), each.is_contiguous()) for each in (*into, *rows)}
    if library is None or rows[0].numel() < LONG or len(kinds) > 1 or not rows[0].is_contiguous():
        for place, row in zip(into, rows, strict=True):
            place.copy_(row)
        return
    places, sources = (torch.tensor([each.data_ptr() for each in tensors]) for tensors in (into, rows))
    size = rows[0].numel() * rows[0].element_size()
    c_library.call(library, "copy_rows", (sources, places), len(rows), size)
