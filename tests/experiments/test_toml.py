"""What is written as TOML is read back the same."""

import tomllib

import pytest

from tacit.experiments.toml import dumps


@pytest.mark.parametrize(
    "content",
    [
        {"a": 'quo"te\\ \n\t\x7f ünï', "b": [1, 2.0, 1e-7, True], "c": {"d": {"e": [], "f": {}}}},
        {"strange key.": {"x y": 1}, "big": 10**12, "float": 1e300, "small": -0.0},
        {"levels": {"open": {}}},
    ],
)
def test_toml_reads_back_what_was_written(content: dict) -> None:
    assert tomllib.loads(dumps(content)) == content
