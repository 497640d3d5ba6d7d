"""`help(tacit.NAME)` tells a user what it promises, what it takes and gives, how it fails, and shows a call that runs.

The examples run with the suite as doctests of their modules.
"""

import inspect
from typing import Any, Final

import pytest

import tacit

DOCUMENTED: Final = sorted(name for name in tacit.__all__ if not inspect.ismodule(getattr(tacit, name)))


def parameters_of(value: Any) -> list[str]:
    """What a call takes; errors are raised by Tacit, and protocols are made by nobody."""
    made_by_users = not issubclass_of_error(value) and not getattr(value, "_is_protocol", False)
    return list(inspect.signature(value).parameters) if made_by_users else []


def missing(name: str) -> list[str]:
    """The sections that the documentation of a public name lacks."""
    value: Any = getattr(tacit, name)
    text = inspect.getdoc(value) or ""
    sections = {"Args:": bool(parameters_of(value)), "Returns:": inspect.isfunction(value), ">>> ": True}
    sections["Raises:"] = inspect.isfunction(value) or "__post_init__" in vars(value)
    return [section for section, needed in sections.items() if needed and section not in text]


def issubclass_of_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


@pytest.mark.parametrize("name", DOCUMENTED)
def test_help_on_a_public_name_has_every_section(name: str) -> None:
    assert missing(name) == []


@pytest.mark.parametrize("name", DOCUMENTED)
def test_every_parameter_of_a_public_name_is_explained(name: str) -> None:
    text = inspect.getdoc(getattr(tacit, name)) or ""
    assert [each for each in parameters_of(getattr(tacit, name)) if f"    {each}: " not in text] == []
