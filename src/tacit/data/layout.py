"""What a row is, beside its shape: known to all parties of a federation, of which none has the others' rows.

Shapes and the number of classes are those of `FederatedDataset` (`input_shape`, `classes`); a `Layout` has the rest:
types and names of the inputs, and what a target is.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Literal, get_args

import torch
from torch import Tensor

from tacit.core.columns import Columns, Rows, leaves
from tacit.data.dataset import FederatedDataset
from tacit.data.tables import Column, Encoding
from tacit.errors import TacitError

Shape = tuple[int, ...] | tuple[tuple[int, ...], ...]
"""Of a row's input, or of each of several."""
Number = Literal["float", "int64", "bool"]
MOST: Final = 2**31
_TYPES: Final = {"int64": torch.int64, "bool": torch.bool}


@dataclass(frozen=True)
class Layout:
    """By default a row is one array of numbers, and its target a class.

    `each`: the shape of a row's target: positions of a sequence, outputs of a regression, yes/no labels.

    >>> Layout(inputs=("int64",), each=(16,)).rows((16,), 2, torch.float32)[0].dtype
    torch.int64
    """

    inputs: tuple[Number, ...] = ("float",)  # "float" also for images
    names: tuple[str, ...] = ()  # by which the model takes several inputs; without them, in order
    target: Number = "int64"
    each: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()  # what classes are called
    columns: tuple[Column, ...] = ()  # of a table, where some have names in them: how they become numbers

    @classmethod
    def of(cls, data: FederatedDataset) -> "Layout":
        names = (data.x.names or ()) if isinstance(data.x, Columns) else ()
        kinds: tuple[Number, ...] = tuple(_kind(leaf) for leaf in leaves(data.x))
        called = data.encoding
        return cls(kinds, tuple(names), _kind(data.y), tuple(data.y.shape[1:]), called.classes, called.columns)

    @property
    def encoding(self) -> Encoding:
        """Of tables and class names: public, and the same for all members."""
        return Encoding(self.columns, self.classes)

    @property
    def several(self) -> bool:
        return len(self.inputs) > 1 or bool(self.names)

    def rows(self, shape: Shape, rows: int, dtype: torch.dtype) -> tuple[Rows, Tensor]:
        """Rows to try a model on before anybody's own are looked at: numbers and targets are zeros.

        Whole numbers are 1, 0, 1, 0, ...: two tokens that every vocabulary has, and a mask that leaves something over,
        whichever of the two is to be left out.
        """
        parts = [_stand_ins(rows, each, _TYPES.get(kind, dtype))
                 for kind, each in zip(self.inputs, self.shapes(shape), strict=True)]  # fmt: skip
        x: Any = Columns(self.names or None, parts) if self.several else parts[0]
        return x, torch.zeros(rows, *self.each, dtype=_TYPES.get(self.target, dtype))

    def shapes(self, shape: Shape) -> list[tuple[int, ...]]:
        """The shape of each input."""
        return [tuple(each) for each in shape] if self.several else [tuple(shape)]  # type: ignore[arg-type]

    def misfit(self, x: Rows, y: Tensor) -> str:
        """Why rows are not of this layout; "" if they are. Whole numbers serve where floats are wanted."""
        if isinstance(x, Columns) != self.several or len(leaves(x)) != len(self.inputs):
            return f"{len(leaves(x))} inputs, and the federation's rows have {len(self.inputs)}"
        names = (x.names or ()) if isinstance(x, Columns) else ()
        if tuple(names) != self.names:
            return f"inputs {list(names)}, and the federation's are {list(self.names)}"
        for at, (leaf, kind) in enumerate(zip(leaves(x), self.inputs, strict=True)):
            if kind != "float" and _kind(leaf) != kind:
                return f"{_kind(leaf)} for input {self.names[at] if self.names else at}, and the federation's is {kind}"
        if _kind(y) != self.target or tuple(y.shape[1:]) != self.each:
            return (
                f"{_kind(y)} targets of shape {tuple(y.shape[1:])}, and the federation's are {self.target} {self.each}"
            )
        return ""

    def content(self) -> dict[str, Any]:
        return asdict(self)


NUMBERS: Final = Layout()


def read_layout(content: Any) -> Layout:
    """What `Layout.content` gave, from somebody else: a `TacitError` if it is anything else."""
    try:
        kinds: tuple[Number, ...] = tuple(_word(each) for each in content["inputs"])
        layout = Layout(
            inputs=kinds,
            names=tuple(map(_name, content["names"])),
            target=_word(content["target"]),
            each=read_shape(content["each"]),
            classes=tuple(map(_name, content["classes"])),
            columns=tuple(Column(_name(name), tuple(map(_name, each))) for name, each in content["columns"]),
        )
        fits = layout.inputs and len(layout.names) in (0, len(layout.inputs)) and len(content) == len(asdict(layout))
        once = layout.names, [column.name for column in layout.columns], *(each.categories for each in layout.columns)
        if not fits or any(len(set(names)) < len(names) for names in once):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise TacitError(f"{str(content)[:80]!r} does not say what a row is: both sides need the same Tacit") from None
    return layout


def read_shape(content: Any) -> tuple[int, ...]:
    """Numbers from 1 to 2^31, or a `TypeError`."""
    if isinstance(content, str) or not isinstance(content, Sequence) or not all(map(_counts, content)):
        raise TypeError(f"{str(content)[:40]!r} where numbers from 1 to 2^31 should stand")
    return tuple(content)


def read_shapes(content: Any, layout: Layout) -> Shape:
    """The shape of a row as a layout has it, or a `TypeError`."""
    if not layout.several:
        return read_shape(content)
    if len(content) != len(layout.inputs):
        raise TypeError(f"{len(content)} shapes for {len(layout.inputs)} inputs")
    return tuple(read_shape(each) for each in content)


def _counts(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def _word(value: object) -> Number:
    word = next((word for word in get_args(Number) if word == value), None)
    if word is None:
        raise TypeError(f"{str(value)[:40]!r} is no type of numbers")
    return word


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        raise TypeError(f"{str(value)[:40]!r} is no name")
    return value


def _stand_ins(rows: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    if dtype.is_floating_point:
        return torch.zeros(rows, *shape, dtype=dtype)
    return (torch.arange(1, shape[-1] + 1) % 2).to(dtype).expand(rows, *shape).clone()


def _kind(leaf: Tensor) -> Number:
    return "int64" if leaf.dtype == torch.int64 else "bool" if leaf.dtype == torch.bool else "float"
