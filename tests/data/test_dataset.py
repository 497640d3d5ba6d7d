"""A federation is checked once, when it is built; what is wrong is named with its client and its remedy."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset

from tacit.core import columns
from tacit.data.dataset import FederatedDataset, as_input, hold_out
from tacit.data.from_rows import from_clients, from_csv, from_dataset
from tacit.errors import TacitError
from tacit.models.functional import fit_inputs


def three() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Clients of 10, 5 and 1 rows; every feature of a row is its number."""
    rows = np.repeat(np.arange(16.0), 2).reshape(16, 2)
    parts = np.split(rows, [10, 15])
    return {who: (x, x[:, 0].astype(int) % 3) for who, x in zip("abc", parts, strict=True)}


def test_clients_keep_their_own_rows_and_hold_out_a_fifth_for_their_own_test() -> None:
    federation = from_clients(three())
    assert federation.ids == ("a", "b", "c")
    assert federation.clients == 3
    assert federation.sizes.tolist() == [8, 4, 1]
    assert federation.input_shape == (2,)
    assert federation.classes == 3
    for client, (x, _) in enumerate(three().values()):
        train, test = federation.x[federation.rows(client), 0], federation.test_x[federation.test_rows(client), 0]
        assert sorted([*train.tolist(), *test.tolist()]) == x[:, 0].tolist()
        assert torch.equal(federation.y[federation.rows(client)], train.long() % 3)
        assert torch.equal(federation.test_y[federation.test_rows(client)], test.long() % 3)


def test_a_client_of_one_example_keeps_it_for_training_and_has_no_test_rows() -> None:
    rows = from_clients(three()).test_rows(2)
    assert rows.stop - rows.start == 0


def test_given_test_rows_are_kept_and_other_seeds_split_otherwise() -> None:
    x, y = np.ones((4, 2)), np.zeros(4, int)
    federation = from_clients({"a": (x, y, x[:3], y[:3])})
    assert (len(federation.x), len(federation.test_x)) == (4, 3)
    first, again, other = (from_clients(three(), seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.test_x, again.test_x)
    assert not torch.equal(first.test_x, other.test_x)


def test_class_counts_count_the_training_rows() -> None:
    federation = from_clients({"a": ([[0.0]] * 3, [0, 2, 2]), 7: ([[1.0]], [1])}, test_fraction=0)
    assert federation.class_counts().tolist() == [[1, 0, 2], [0, 1, 0]]
    assert federation.ids == ("a", "7")


def test_bytes_stay_bytes_and_are_scaled_when_gathered() -> None:
    pixels = np.array([[0, 255], [51, 102]], np.uint8)
    federation = from_clients({"a": (pixels, [0, 1])}, test_fraction=0, images=True)
    assert federation.x.dtype == torch.uint8
    x, y = federation.take(torch.tensor([[1, 0]]))
    torch.testing.assert_close(x, torch.tensor([[[0.2, 0.4], [0.0, 1.0]]]))
    assert y.tolist() == [[1, 0]]
    assert torch.equal(as_input(x), x)


def test_astype_gives_the_same_inputs_in_double_precision() -> None:
    pixels = np.array([[0, 255], [51, 102]], np.uint8)
    small = from_clients({"a": (pixels, [0, 1])}, common=(pixels, [0, 1]), test_fraction=0, images=True)
    large = small.astype(torch.float64)
    assert large.x.dtype == large.test_x.dtype == torch.float64
    assert large.common_x is not None
    assert large.common_x[1, 0] == 0.2
    torch.testing.assert_close(large.x.float(), as_input(small.x))
    with pytest.raises(TacitError, match=r"torch\.int64"):
        small.astype(torch.int64)


def test_double_precision_is_kept_when_asked_for() -> None:
    exact = np.array([[1 + 2**-40]])
    assert from_clients({"a": (exact, [0])}, dtype=torch.float64).x.item() == exact.item()


def ones(n: int = 3) -> np.ndarray:
    return np.ones((n, 2))


WRONG: list[tuple[Callable[[], Any], str]] = [
    (lambda: {"a": (ones(), [0, 1, 2]), "b": (np.array([[1, np.nan]]), [0])}, "'b' has NaN or infinity in its tr"),
    (lambda: {"a": (ones() * 1e300, [0, 1, 2])}, "'a' has NaN or infinity"),
    (lambda: {"a": (ones(), [0, 1, 2], ones() * np.inf, [0, 0, 0])}, "'a' has NaN or infinity in its test data"),
    (lambda: {"a": (ones(), [0, 1, -1])}, r"'a' has label -1 in its \w+ data, outside 0..1"),
    (lambda: {"a": (ones(), [0, 1, 2]), "b": (ones(0), np.zeros(0, int))}, "'b' has no training example"),
    (lambda: {1: (ones(), [0, 1, 2]), "1": (ones(), [0, 1, 2])}, "id '1' is used twice"),
    (lambda: {"a": (ones(), [0, 1])}, "'a' has 3 rows and 2 labels"),
    (lambda: {"a": (ones(), [0.5, 1, np.nan])}, "'a' has NaN or infinity among its targets"),
    (lambda: {"a": (ones(), [[0.5, 1]] * 3), "b": (ones(), [[0.5]] * 3)}, r"'b' has .* of shape \(1,\)"),
    (lambda: {"a": (ones(), ["x", "y", "z"]), "b": (ones(), [0, 1, 2])}, "'a' has labels of type <U1"),
    (lambda: {"a": (ones(), [[0], [1], [2]])}, r"labels of shape \(3, 1\)"),
    (lambda: {"a": (ones().astype(object), [0, 1, 2])}, "'a' has features of type object"),
    (lambda: {"a": (np.array([["x"]] * 3), [0, 1, 2])}, "'a' has features of type <U1"),
    (lambda: {"a": (ones() * 1j, [0, 1, 2])}, "'a' has features of type complex128"),
    (lambda: {"a": ([[1.0], [1.0, 2.0]], [0, 1])}, "unequal lengths"),
    (lambda: {"a": (ones(), [0, 1, 2]), "b": (np.ones((1, 3)), [0])}, r"'b' has .* rows of shape \(3,\)"),
    (lambda: {"a": (np.full((3, 2), 9, np.uint8), [0, 1, 2])}, "'a' has bytes .* say images=True if they are pixels"),
    (lambda: {"a": ({"ids": ones(), "mask": ones(2)}, [0, 1, 2])}, "inputs have 3 and 2 rows"),
    (lambda: {"a": ({"ids": ones()}, [0, 1, 2]), "b": (ones(), [0, 1, 2])}, "'b' has .* give all clients the same"),
    (lambda: {"a": (ones(),)}, "'a' has 1 arrays"),
    (lambda: {"a": (ones(), [0, 1, 2], np.ones((1, 3)), [0])}, r"shape \(3,\)"),
    (dict, "no clients"),
]  # fmt: skip


@pytest.mark.parametrize(("clients", "message"), WRONG)
def test_what_is_wrong_with_a_client_is_said_in_one_line(clients: Callable[[], Any], message: str) -> None:
    with pytest.raises(TacitError, match=message) as caught:
        from_clients(clients())
    assert "\n" not in str(caught.value)
    assert ": " in str(caught.value)


def test_labels_beyond_the_given_number_of_classes_are_refused() -> None:
    with pytest.raises(TacitError, match=r"label 2 in its training data, outside 0..1"):
        from_clients({"a": (ones(), [0, 1, 2])}, classes=2, test_fraction=0)


def test_the_common_test_set_is_checked_too() -> None:
    with pytest.raises(TacitError, match="common test set"):
        from_clients(three(), common=(np.full((1, 2), np.nan), [0]))
    with pytest.raises(TacitError, match="common test set"):
        from_clients(three(), common=(np.ones((1, 3)), [0]))
    assert from_clients(three(), common=(ones(1), [5])).classes == 6


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_a_test_fraction_outside_its_range_is_refused(fraction: float) -> None:
    with pytest.raises(TacitError, match="test_fraction"):
        from_clients(three(), test_fraction=fraction)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: {"offsets": f.offsets[:-1]}, "offsets"),
        (lambda f: {"offsets": f.offsets + 1}, "offsets"),
        (lambda f: {"test_offsets": f.test_offsets.astype(float)}, "offsets"),
        (lambda f: {"y": f.y[:-1]}, "13 rows and 12 labels"),
        (lambda f: {"y": f.y.float()}, "float32"),
        (lambda f: {"x": f.x.half()}, "float16"),
        (lambda f: {"test_x": f.test_x.double()}, "float64"),
        (lambda f: {"common_x": f.x}, "only one of x and y"),
        (lambda f: {"classes": 0}, "number of classes"),
        (lambda f: {"ids": ("a", "b", "a")}, "'a' is used twice"),
    ],
)
def test_a_federation_put_together_by_hand_is_checked(
    change: Callable[[FederatedDataset], dict[str, Any]], message: str
) -> None:
    federation = from_clients(three())
    with pytest.raises(TacitError, match=message):
        replace(federation, **change(federation))


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 60), fraction=st.floats(0, 0.99), seed=st.integers(0, 5), width=st.integers(1, 20))
def test_holding_out_divides_the_rows_and_never_a_unit(rows: int, fraction: float, seed: int, width: int) -> None:
    units = np.arange(rows) // width
    for whole in (None, units):
        train, test = hold_out(rows, fraction, seed, 3, whole)
        assert sorted([*train, *test]) == list(range(rows))
        assert len(train) >= 1
        assert len(test) <= round(rows * fraction)
    assert not set(units[train]) & set(units[test])


def test_a_torch_dataset_is_divided_by_its_client_ids() -> None:
    x, y = torch.arange(12.0).reshape(6, 2), torch.tensor([0, 1, 0, 1, 0, 1])
    federation = from_dataset(TensorDataset(x, y), ["b", "a", "b", "a", "b", "c"], test_fraction=0, name="mine")
    assert federation.ids == ("a", "b", "c")
    assert federation.sizes.tolist() == [2, 3, 1]
    assert torch.equal(federation.x[:2], x[[1, 3]])
    assert federation.name == "mine"


def test_a_dataset_of_plain_pairs_works_and_ids_must_match_it() -> None:
    pairs = [([1.0, 2.0], 0), ([3.0, 4.0], 1)]
    assert from_dataset(pairs, [10, 9], test_fraction=0).x.tolist() == [[3, 4], [1, 2]]
    with pytest.raises(TacitError, match="2 rows and there are 1 client ids"):
        from_dataset(pairs, [1])
    with pytest.raises(TacitError, match="unequal"):
        from_dataset([(torch.ones(2), 0), (torch.ones(3), 0)], [0, 0])


TABLE = "client,f1,f2,label\nx,1,2.5,0\ny,3,4.5,1\nx,5,6.5,1\n"


def test_a_table_is_read_with_its_columns(tmp_path: Path) -> None:
    path = tmp_path / "visits.csv"
    path.write_text(TABLE.replace("client", "who").replace("label", "kind"))
    federation = from_csv(path, client="who", label="kind", test_fraction=0)
    assert federation.name == "visits"
    assert federation.ids == ("x", "y")
    assert federation.x.tolist() == [[1, 2.5], [5, 6.5], [3, 4.5]]
    assert federation.y.tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.replace("client", "clients"), "unknown column 'client': did you mean 'clients'"),
        (TABLE.replace("label", "kind"), "unknown column 'label'"),
        (TABLE.replace("4.5", "many"), "'f2' is not numeric"),
        (TABLE.replace("4.5", ""), "'f2' is empty in row 2"),
        (TABLE.replace("y,3", ",3"), "'client' is empty in row 2"),
        (TABLE.replace("2.5,0", "2.5,cat"), "label column 'label' holds 'cat'"),
        (TABLE.replace("6.5,1", "6.5,cat"), "label column 'label' holds 'cat'"),
        (TABLE.replace("2.5,0", "2.5,0.5"), "label column 'label' holds 0.5"),
        ("client,label\nx,0\n", "no feature columns"),
        ("client,f1,label\n", "no rows"),
        ("", "not a comma-separated table"),
        ("a,b\n1,2\n1,2,3\n", "not a comma-separated table"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_column(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(TacitError, match=message):
        from_csv(path)


def test_classes_may_be_written_with_a_decimal_point(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text(TABLE.replace("2.5,0", "2.5,0.0"))
    assert from_csv(path).y.tolist() == [0, 1, 1]


def test_a_missing_table_is_named() -> None:
    with pytest.raises(TacitError, match=r"there is no file nowhere\.csv"):
        from_csv("nowhere.csv")


# other inputs and targets


class Table(torch.nn.Module):
    """Looks integers up: floats would be an error."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(9, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.table(x).sum(1)


def test_integers_reach_a_model_as_integers_if_it_takes_them_and_else_as_numbers() -> None:
    data = from_clients({"a": (np.arange(8).reshape(4, 2), [0, 1, 0, 1])}, test_fraction=0)
    assert data.x.dtype == torch.int64
    kept = fit_inputs(Table(), data.astype(torch.float32), torch.float32)
    numbers = fit_inputs(torch.nn.Linear(2, 2), data.astype(torch.float32), torch.float32)
    assert kept.x.dtype == torch.int64
    assert torch.equal(numbers.x, data.x.float())


def test_large_ids_stay_apart() -> None:
    ids = np.array([[2**24], [2**24 + 1]])
    assert from_clients({"a": (ids, [0, 1])}, test_fraction=0).x.flatten().tolist() == ids.flatten().tolist()


def test_bytes_that_are_numbers_are_not_scaled() -> None:
    bits, tokens = np.array([[0, 1], [1, 0]], np.uint8), np.array([[0, 7], [200, 0]], np.uint8)
    assert from_clients({"a": (bits, [0, 1])}, test_fraction=0).take(torch.arange(2))[0].tolist() == bits.tolist()
    plain = from_clients({"a": (tokens, [0, 1])}, test_fraction=0, images=False)
    assert plain.take(torch.arange(2))[0].tolist() == tokens.tolist()


def test_several_inputs_are_held_out_together() -> None:
    ids = np.arange(20).reshape(10, 2)
    named = {"ids": ids, "twice": 2.0 * ids}
    for x in (named, tuple(named.values())):
        data = from_clients({"a": (x, np.arange(10) % 2), "b": (x, np.arange(10) % 2)})
        for part in (data.x, data.test_x):
            first, second = columns.leaves(part)
            assert torch.equal(2.0 * first, second)
            assert first.dtype == torch.int64
        assert len(data.x) == 16
        assert data.input_shape == ((2,), (2,))


def test_targets_are_classes_numbers_labels_or_tokens_by_their_type_and_shape() -> None:
    x = np.ones((4, 2))
    kinds = {
        "classes": ([0, 1, 1, 0], torch.int64, 2),
        "numbers": ([0.5, 1, 2, 3], torch.float32, 1),
        "outputs": (np.ones((4, 3)), torch.float32, 3),
        "labels": (np.eye(4, 3) > 0, torch.bool, 3),
        "tokens": ([[0, 4], [1, -100], [2, 2], [3, 0]], torch.int64, 5),
    }
    for y, dtype, classes in kinds.values():
        data = from_clients({"a": (x, y)}, test_fraction=0)
        assert (data.y.dtype, data.classes) == (dtype, classes)
    tokens = from_clients({"a": (x, kinds["tokens"][0])}, test_fraction=0)
    assert tokens.class_counts().tolist() == [[2, 1, 2, 1, 1]]
    assert from_clients({"a": (x, kinds["labels"][0])}, test_fraction=0).class_counts().tolist() == [[1, 1, 1]]
