"""`[federation]` of an experiment: what a row is, said by a server that sees none, and who takes part."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from tacit.data.layout import Layout, Shape
from tacit.data.tables import Column, Encoding
from tacit.errors import TacitError
from tacit.experiments.options import Table

Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class FederationTable(Table):
    """For `tacit serve`: what a row is, how many members there are, how long a round waits for them (seconds)."""

    inputs: list[Count] | dict[str, list[Count]] | None = None  # the shape of a row, or of each input by name
    columns: dict[str, Literal["number"] | list[str]] | None = None  # of members' tables, in place of inputs
    integers: bool | list[str] = False  # inputs that are tokens or other whole numbers: all, or those named
    targets: Literal["classes", "numbers", "labels"] = "classes"
    positions: list[Count] | None = None  # a class at each of them
    classes: Count | list[str] | None = None  # or their names; of numbers and labels, how many a row has
    label: str = "label"
    nodes: Count = 5
    deadline: Positive = 60.0

    @model_validator(mode="after")
    def _fits(self) -> Self:
        names = [*self.inputs] if isinstance(self.inputs, dict) else []
        if isinstance(self.integers, list) and (odd := next((n for n in self.integers if n not in names), None)):
            raise TacitError(f"federation.integers has '{odd}', which inputs does not name: use {names or 'true'}")
        if self.columns is not None:
            self._check_columns(self.columns)
        if self.positions and self.targets != "classes":
            raise TacitError(f"federation.positions is {self.positions}, and targets are {self.targets}: leave it out")
        return self

    def _check_columns(self, columns: Mapping[str, str | Sequence[str]]) -> None:
        if self.inputs is not None or self.integers:
            raise TacitError("federation.columns says what a row is: leave out inputs and integers")
        if self.label in columns:
            raise TacitError(f"federation.columns has '{self.label}', which is the label: leave it out")
        for name, said in columns.items():
            if not isinstance(said, str) and len(set(said)) < max(1, len(said)):
                raise TacitError(f"federation.columns.{name} is {list(said)}: list each category once")
        if not columns:
            raise TacitError("federation.columns is empty: name the columns that a row has")

    @property
    def _encoding(self) -> Encoding:
        columns = (self.columns or {}).items()
        return Encoding(tuple(Column(name, () if isinstance(said, str) else tuple(said)) for name, said in columns))

    @property
    def rows(self) -> tuple[Shape, int, Layout]:
        """The shape of a row, the number of classes, and what inputs and targets are."""
        by_name = self.inputs if isinstance(self.inputs, dict) else {"": self.inputs or [self._encoding.width]}
        whole = self.integers if isinstance(self.integers, list) else [*by_name] * self.integers
        names = tuple(by_name) if isinstance(self.inputs, dict) else ()
        shapes = tuple(tuple(shape) for shape in by_name.values())
        called = tuple(self.classes) if isinstance(self.classes, list) else ()
        count = self.classes if isinstance(self.classes, int) else len(called)
        several = () if count == 1 and self.targets == "numbers" else (count,)
        layout = Layout(
            inputs=tuple("int64" if name in whole else "float" for name in by_name),
            names=names,
            target="int64" if self.targets == "classes" else "float" if self.targets == "numbers" else "bool",
            each=tuple(self.positions or ()) if self.targets == "classes" else several,
            classes=called,
            columns=self._encoding.columns,
        )
        return shapes if names else shapes[0], count, layout
