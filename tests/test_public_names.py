"""`help(tacit.NAME)` tells a user what it promises, what it takes and gives, how it fails, and shows a call that runs.

The examples run with the suite as doctests of their modules.
"""

import inspect
from typing import Any, Final

import pytest

import tacit

NOT_YET: Final = frozenset(
    name
    for name in tacit.__all__
    if inspect.ismodule(getattr(tacit, name))
    or getattr(tacit, name).__module__.startswith(("tacit.methods", "tacit.core.contract", "tacit.data"))
    or name == "load_model"
)
"""Modules; and methods and data, whose papers and pages say it elsewhere."""
DOCUMENTED: Final = sorted(set(tacit.__all__) - NOT_YET)


def missing(name: str) -> list[str]:
    """The sections that the documentation of a public name lacks."""
    value: Any = getattr(tacit, name)
    text = inspect.getdoc(value) or ""
    parameters = inspect.signature(value).parameters if not issubclass_of_error(value) else {}
    sections = {"Args:": bool(parameters), "Returns:": inspect.isfunction(value), ">>> ": True}
    sections["Raises:"] = inspect.isfunction(value) or "__post_init__" in vars(value)
    return [section for section, needed in sections.items() if needed and section not in text]


def issubclass_of_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_help_on_a_public_name_has_every_section(name: str) -> None:
    assert missing(name) == []


@pytest.mark.parametrize("name", [name for name in DOCUMENTED if not issubclass_of_error(getattr(tacit, name))])
def test_every_parameter_of_a_public_name_is_explained(name: str) -> None:
    text = inspect.getdoc(getattr(tacit, name)) or ""
    unknown = [each for each in inspect.signature(getattr(tacit, name)).parameters if f"    {each}: " not in text]
    assert unknown == []
