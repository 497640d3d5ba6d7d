"""Who may import whom. The rooms are drawn in docs/architecture.md."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "tacit"
FREE = {"core", "tree", "rng", "errors", "c_library"}
MAY_KNOW = {
    "core": set(),
    "errors": set(),
    "rng": set(),
    "c_library": set(),
    "tree": {"core"},
    "methods": {"core", "tree", "errors"},
    "privacy": FREE,
    "federation": FREE | {"privacy"},
    "models": FREE | {"federation"},
    "engine": FREE | {"privacy", "federation", "models", "secagg"},
    "multitask": FREE | {"privacy", "federation", "models", "methods", "engine", "experiments"},
    "secagg": {"errors"},  # a protocol: it knows neither privacy nor transport
    "estimation": FREE | {"privacy", "experiments"},  # the house style of pictures
    "theory": FREE | {"privacy", "methods", "experiments"},
}


def room(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return parts[0]


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("tacit.")}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_follow_the_arrows(path: Path) -> None:
    allowed = MAY_KNOW.get(room(path))
    if allowed is not None:
        assert imported_rooms(path) <= allowed | {room(path)}


def test_the_engine_knows_no_method_by_name() -> None:
    assert all("methods" not in imported_rooms(path) for path in (SOURCE / "engine").rglob("*.py"))


def test_importing_tacit_costs_little_beyond_torch() -> None:
    """Nothing heavy is imported before it is used."""
    heavy = ("dp_accounting", "plotly", "matplotlib", "pandas", "sklearn")
    code = f"import sys, tacit; print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
