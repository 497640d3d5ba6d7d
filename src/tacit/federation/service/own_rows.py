"""A member's own file as rows of the federation that it joins: a table, or an archive of arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tacit.core import columns
from tacit.core.columns import Columns
from tacit.core.columns import Rows as Inputs
from tacit.data.dataset import as_input, features, hold_out, labels, local_view
from tacit.data.layout import Number
from tacit.data.loaders import read_arrays, read_frame
from tacit.data.tables import encode_table
from tacit.errors import TacitError
from tacit.experiments.build import build_model
from tacit.federation.protocol.terms import Rows
from tacit.federation.service.client_dir import Offer


def read_rows(data: Path, offer: Offer) -> Rows:
    """The owner's file as rows of the federation's layout, a fifth of them held out.

    Whatever is wrong with it is said now, to its owner: later, a refusal for it would tell the server something.
    """
    x, y = _arrays(data, offer) if data.suffix == ".npz" else _table(data, offer)
    rows = len(y)
    if tuple(x.shape[1:]) != offer.inputs:
        raise TacitError(f"{data} has rows of shape {tuple(x.shape[1:])}, and the federation's have {offer.inputs}")
    if misfit := offer.layout.misfit(x, y):
        raise TacitError(f"{data} has {misfit}")
    train, test = hold_out(rows, 0.2, 0, 0)
    if not len(train):
        raise TacitError(f"{data} has {rows} rows, none of them to train on: give more")
    kept = Rows(x[train], y[train], x[test], y[test])
    _try(data, offer, kept)
    return kept


def _table(data: Path, offer: Offer) -> tuple[Inputs, Tensor]:
    """A row of a table is one input; its columns fill the input's shape."""
    layout, (shape, *more) = offer.layout, offer.layout.shapes(offer.inputs)
    if more or layout.names or layout.each:
        raise TacitError(f"{data} is a table, and the federation's rows have several inputs or targets: give an .npz "
                         "file with an array for each")  # fmt: skip
    numbers = "numbers" if layout.target == "float" else None
    table = encode_table(read_frame(data), client=None, label=offer.label, where=str(data), targets=numbers,
                         classes=layout.classes or None, columns=layout.columns)  # fmt: skip
    if table.encoding.columns and not layout.columns:
        named = next(column.name for column in table.encoding.columns if column.categories)
        raise TacitError(f"{data}: column '{named}' has names, and the federation's rows are numbers: its server has to"
                         " list the categories ([federation] columns)")  # fmt: skip
    if table.x.shape[1] != int(np.prod(shape)):
        raise TacitError(f"{data} has {table.x.shape[1]} feature columns, and the federation's rows have {shape}")
    if not np.isfinite(table.x).all():
        raise TacitError(f"{data} has NaN or infinity: drop or impute these values")
    y = table.y.astype(np.float32 if numbers else np.int64)
    return _inputs(table.x, layout.inputs[0], str(data)).reshape(-1, *shape), torch.from_numpy(y)


def _arrays(data: Path, offer: Offer) -> tuple[Inputs, Tensor]:
    """An array for each input, by its name ("x" if there is one without a name), and one of targets."""
    layout = offer.layout
    names = layout.names or (tuple(f"x{at}" for at in range(len(layout.inputs))) if layout.several else ("x",))
    found = read_arrays(data, (*names, offer.label))
    parts = [_inputs(found[name], kind, str(data)) for name, kind in zip(names, layout.inputs, strict=True)]
    given = found[offer.label]
    y = labels(layout.encoding.class_numbers(given) if given.dtype.kind in "US" else given, str(data))
    if layout.target == "bool" and set(np.unique(y)) <= {0, 1}:
        y = y.bool()
    x: Any = Columns(layout.names or None, parts) if layout.several else parts[0]
    return x, y


def _inputs(array: np.ndarray, kind: Number, where: str) -> Tensor:
    """Numbers as the federation's are: whole ones where it has whole ones."""
    if kind == "float":
        return features(array.astype(np.float32), where)
    if (odd := array != np.round(array)).any():
        raise TacitError(f"{where} has {array[odd][0]:g} among its inputs, and the federation's are whole: mend it")
    return torch.from_numpy(array.astype(bool if kind == "bool" else np.int64))


def _try(data: Path, offer: Offer, rows: Rows) -> None:
    """The model of the offer takes these rows, all of them: a token beyond its vocabulary would fail in a round."""
    try:
        pairs = (rows.x, rows.y), (rows.test_x, rows.test_y)
        local_view(("you",), offer.classes, 0, *pairs)
    except TacitError as error:
        raise TacitError(str(error).replace("client 'you'", str(data))) from None
    model = build_model(offer.config, offer.inputs, offer.classes).eval()
    with torch.no_grad():
        for x in (rows.x, rows.test_x):
            for part in x.split(64):
                try:
                    columns.call(model, as_input(part))
                except IndexError as error:
                    raise TacitError(f"{data} has numbers that the model does not take ({error}): number tokens as the "
                                     "federation does") from None  # fmt: skip
                except (RuntimeError, ValueError, TypeError):
                    return  # integers that become numbers, or a model for which rows are prepared: no matter of values
