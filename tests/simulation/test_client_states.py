"""Client states: memory and file agree, the committed state survives, untouched clients take no disk."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from tacit.core.contract import Tree
from tacit.errors import StorageError, TacitError
from tacit.rounds import checkpoint
from tacit.simulation.client_states import FileStore, MemoryStore, NoStates, Store, copy_rows, open_store

LIKE = {"w": torch.zeros(3, 2), "b": torch.zeros(())}
FIRST = {"w": torch.full((3, 2), 7.0), "b": torch.tensor(7.0)}


def rows(value: float, several: int) -> Tree:
    return {"w": torch.full((several, 3, 2), value), "b": torch.full((several,), value)}


@pytest.fixture(params=["memory", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return MemoryStore(10, LIKE) if request.param == "memory" else FileStore(10, LIKE, tmp_path)


def values(store: Store, *clients: int) -> list[float]:
    got = store.read(np.array(clients), FIRST)
    assert torch.equal(got["w"][:, 0, 0], got["b"])
    return got["b"].tolist()


def test_a_client_that_never_took_part_has_the_first_state(store: Store) -> None:
    store.write(np.array([2, 5]), rows(1.0, 2))
    assert values(store, 1, 2, 5) == [7.0, 1.0, 1.0]
    assert store.touched.tolist() == [k in (2, 5) for k in range(10)]


def test_what_was_written_after_the_last_commit_is_forgotten_by_a_resumed_run(store: Store, tmp_path: Path) -> None:
    store.write(np.array([2]), rows(1.0, 1))
    saved = store.prepare()
    store.commit()
    for value in (2.0, 3.0):
        store.write(np.array([2, 4]), rows(value, 2))
    assert values(store, 2, 4) == [3.0, 3.0]
    again = MemoryStore(10, LIKE) if isinstance(store, MemoryStore) else FileStore(10, LIKE, tmp_path)
    again.restore(saved)
    assert values(again, 2, 4) == [1.0, 7.0]


def test_a_kill_between_prepare_and_commit_leaves_both_checkpoints_readable(tmp_path: Path) -> None:
    store = FileStore(10, LIKE, tmp_path)
    store.write(np.array([2]), rows(1.0, 1))
    old = store.prepare()
    store.commit()
    store.write(np.array([2]), rows(2.0, 1))
    new = store.prepare()  # killed here: either checkpoint may be the one on disk
    for saved, value in ((old, 1.0), (new, 2.0)):
        again = FileStore(10, LIKE, tmp_path)
        again.restore(saved)
        assert values(again, 2) == [value]


def test_untouched_clients_take_no_disk(tmp_path: Path) -> None:
    wide = {"w": torch.zeros(100_000)}
    store = FileStore(10_000, wide, tmp_path)
    store.write(np.array([9_999]), {"w": torch.ones(1, 100_000)})
    file = (tmp_path / "states.bin").stat()
    assert file.st_size == 2 * 10_000 * 400_000
    assert file.st_blocks * 512 < 2_000_000


def test_the_size_of_the_population_decides_where_states_live(tmp_path: Path) -> None:
    assert isinstance(open_store(10, LIKE, tmp_path), MemoryStore)
    assert isinstance(open_store(10, LIKE, tmp_path, limit=10), FileStore)
    assert isinstance(open_store(10, LIKE, None, limit=10), FileStore)
    assert isinstance(open_store(10, {}, tmp_path), NoStates)


def test_a_full_disk_is_one_line_and_keeps_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.bin"
    checkpoint.save(path, {"round": 1})

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="no space left"):
        checkpoint.save(path, {"round": 2})
    assert checkpoint.load(path) == {"round": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint.bin"]
    store = FileStore(10, LIKE, tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(StorageError, match="free some"):
        store.write(np.array([1]), rows(1.0, 1))


@pytest.mark.parametrize("damage", [lambda d: d[:-1], lambda d: d[:50] + b"x" + d[51:], lambda d: b"", lambda d: b"PK"])
def test_a_damaged_checkpoint_says_so(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "checkpoint.bin"
    checkpoint.save(path, {"w": torch.ones(100)})
    path.write_bytes(damage(path.read_bytes()))  # pyright: ignore[reportCallIssue]
    with pytest.raises(TacitError, match="damaged"):
        checkpoint.load(path)


def test_expecting_clients_changes_nothing(store: Store) -> None:
    store.write(np.array([1, 3]), rows(1.0, 2))
    store.expect(np.arange(4))
    assert values(store, 0, 1, 2, 3) == [7.0, 1.0, 7.0, 1.0]


def test_leaves_of_another_precision_are_kept_in_the_stores_own(store: Store) -> None:
    double = {"w": rows(1.0, 2)["w"], "b": rows(1.0, 2)["b"].double()}
    first = {"w": FIRST["w"], "b": FIRST["b"].double()}
    store.write(np.array([2, 5]), double)
    got = store.read(np.array([1, 2, 5]), first)
    assert {leaf.dtype for leaf in got.values()} == {torch.float32}
    assert got["b"].tolist() == [7.0, 1.0, 1.0]


@pytest.mark.parametrize("numbers", [5, 4096, 5003])
def test_rows_are_copied_whole_wherever_they_lie(numbers: int) -> None:
    source, target = torch.randn(7, numbers + 3), torch.zeros(9, numbers + 5)
    copy_rows([target[at, 2 : numbers + 2] for at in (8, 0, 3)], [source[at, 1 : numbers + 1] for at in (2, 6, 2)])
    for to, of in ((8, 2), (0, 6), (3, 2)):
        assert torch.equal(target[to, 2 : numbers + 2], source[of, 1 : numbers + 1])
    assert not target[:, :2].any()
    assert not target[:, numbers + 2 :].any()
    assert not target[[1, 2, 4, 5, 6, 7]].any()


def test_rows_of_another_type_are_converted() -> None:
    source, target = torch.randn(2, 5000, dtype=torch.float64), torch.zeros(2, 5000)
    copy_rows(target.unbind(), source.unbind())
    assert torch.equal(target, source.float())
    copy_rows([], [])
