"""Who may import whom. The rooms are drawn in docs/architecture.md."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "tacit"
BASE = {"core", "errors"}
MAY_IMPORT = {
    "errors": set(),
    "c_library": set(),  # C compiled on first use: for kernels of the compiler, the simulation and the privacy room
    "core": {"errors"},
    "compile": {"errors", "c_library"},  # an accelerator that can be taken out
    "secagg": {"errors"},  # a protocol: it knows neither privacy nor transport
    "methods": BASE,  # a method cannot name a mechanism
    "privacy": BASE
    | {"c_library"},  # a mechanism cannot see a method, and nothing that it does goes through the compiler
    "data": BASE,
    "sampling": BASE | {"data", "privacy"},
    "models": BASE | {"data"},
    "simulation": BASE | {"privacy", "data", "sampling", "models", "secagg", "compile", "c_library"},
    "rounds": BASE | {"privacy", "data", "sampling", "models", "simulation"},
    "report": BASE | {"privacy", "sampling", "rounds"},
    "experiments": BASE | {"privacy", "data", "sampling", "models", "methods", "simulation", "rounds", "report"},
    "federation": BASE
    | {"privacy", "data", "sampling", "models", "secagg", "simulation", "rounds", "report", "experiments", "evidence"},
    "estimation": BASE | {"privacy", "data", "sampling", "models", "methods", "rounds", "report"},
    "evidence": BASE
    | {"privacy", "data", "sampling", "models", "methods", "simulation", "rounds", "report", "experiments", "secagg"},
    "cli": BASE | {"data", "privacy", "report", "experiments", "estimation", "federation", "evidence", "tacit"},
    "tacit": BASE | {"privacy", "data", "sampling", "models", "methods", "rounds", "report", "experiments"},
}
EVERYTHING = set(MAY_IMPORT) | {"papers"}
"""The papers' code stands outside of the package and may use all of it; nothing in the package may use it."""


def modules() -> list[Path]:
    return sorted([*SOURCE.rglob("*.py"), *(ROOT / "papers").rglob("*.py")])


def room_of_module(name: str) -> str | None:
    """`tacit` stands for what users import from the package itself."""
    parts = name.split(".")
    if parts[0] == "papers":
        return "papers"
    if parts[0] != "tacit":
        return None
    return (
        parts[1]
        if len(parts) > 1 and ((SOURCE / parts[1]).is_dir() or parts[1] in ("errors", "c_library"))
        else "tacit"
    )


def room_of_file(path: Path) -> str:
    base = SOURCE.parent if path.is_relative_to(SOURCE) else ROOT
    found = room_of_module(".".join(path.relative_to(base).with_suffix("").parts))
    assert found is not None
    return found


def imported_rooms(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {room for name in names if (room := room_of_module(name)) is not None}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_follow_the_arrows(path: Path) -> None:
    room = room_of_file(path)
    allowed = EVERYTHING if room == "papers" else MAY_IMPORT[room]
    assert imported_rooms(path) <= allowed | {room}


def test_every_room_is_in_the_table() -> None:
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= set(MAY_IMPORT)


def test_no_two_rooms_import_each_other_not_even_through_others() -> None:
    def reachable(room: str, seen: frozenset[str] = frozenset()) -> set[str]:
        further = MAY_IMPORT[room] - seen
        return further.union(*(reachable(other, seen | further) for other in further))

    assert not [room for room in MAY_IMPORT if room in reachable(room)]


def test_only_the_simulation_imports_the_compiler() -> None:
    assert {room for room, allowed in MAY_IMPORT.items() if "compile" in allowed} == {"simulation"}


def test_importing_tacit_costs_little_beyond_torch_and_an_event_is_read_whoever_makes_it() -> None:
    """Nothing heavy is imported before it is used; a ledger's event brings in what it needs."""
    heavy = ("dp_accounting", "matplotlib", "pandas", "sklearn")
    event = '{"event": "Skellam", "l1": 1.0, "l2": 1.0, "variance": 4.0}'
    code = f"import sys, tacit; print([m for m in {heavy} if m in sys.modules])\n"
    code += f"from tacit.privacy.accounting.events import from_json; print(from_json({event!r}).variance)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split("\n")[:2] == ["[]", "4.0"]


def asked_types(path: Path) -> set[str]:
    """Names of the types that a file asks for with `isinstance`, `issubclass`, or a pattern."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            names |= {part.id for part in ast.walk(node.args[1]) if isinstance(part, ast.Name)}
            names |= {part.attr for part in ast.walk(node.args[1]) if isinstance(part, ast.Attribute)}
        elif isinstance(node, ast.MatchClass):
            names |= {part.id for part in ast.walk(node.cls) if isinstance(part, ast.Name)}
    return names


def classes_with_bases(folder: Path, bases: set[str]) -> set[str]:
    found = (node for file in folder.glob("*.py") for node in ast.parse(file.read_text()).body)
    kinds = (node for node in found if isinstance(node, ast.ClassDef))
    return {kind.name for kind in kinds if bases & {base.id for base in kind.bases if isinstance(base, ast.Name)}}


def test_nothing_outside_asks_which_mechanism_it_has() -> None:
    """A mechanism says itself what others must know, so that a new one is one file."""
    folder = SOURCE / "privacy" / "mechanisms"
    kinds = classes_with_bases(folder, {"Mechanism", "Release", "ClippedRelease"})
    assert {"Grouped", "GroupedRelease", "Distributed", "DistributedRelease"} <= kinds
    kinds |= {"Mechanism", "Release", "Plan"}
    outside = [path for path in modules() if path.is_relative_to(SOURCE) and path.parent != folder]
    assert {str(path.relative_to(SOURCE)): asked for path in outside if (asked := asked_types(path) & kinds)} == {}


REPLAYS = {
    "report/spending.py",
    "federation/protocol/client_store.py",
    "evidence/certificate.py",  # the curve behind the statement's epsilon
    "evidence/run_audit.py",
    "evidence/repeated_audit.py",  # the claim that it attacks, from the ledger of the attacked run
}
"""Who turns charges into epsilons: reports, evidence, and a member that asks what it can still afford."""
PLANS_AHEAD = {
    "report/budget.py",
    "report/budget_shares.py",
    "report/rates.py",
    "estimation/messages.py",  # noise of a message from its epsilon, before anything is sent
    "rounds/assemble.py",
    "experiments/config.py",
    "evidence/tuning.py",
}
"""Who asks what noise would cost, or only names an accountant; nothing of it is called spent."""


@pytest.fixture(scope="module")
def code() -> dict[str, list[ast.AST]]:
    """By the name of the file: all that stands in it."""
    files = SOURCE.rglob("*.py")
    return {path.relative_to(SOURCE).as_posix(): [*ast.walk(ast.parse(path.read_text()))] for path in files}


def test_nobody_else_asks_an_accountant_what_was_spent(code: dict[str, list[ast.AST]]) -> None:
    accountants = {
        "tacit.privacy.accounting.accountant",
        "tacit.privacy.accounting.pld",
        "tacit.privacy.accounting.rdp",
        "tacit.privacy.accounting.gaussian",
    }
    found = {
        name
        for name, nodes in code.items()
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module in accountants and not name.startswith("privacy/")
    }
    assert found <= REPLAYS | PLANS_AHEAD


OPENS_LEDGERS = {
    "report/integrity.py",
    "report/verify.py",
    "evidence/verify.py",
    "federation/protocol/client_store.py",
}
"""Who reads a ledger without knowing that it is as it was: those who find out, and one that tells no epsilon."""


def test_nobody_else_reads_a_ledger_that_was_not_checked(code: dict[str, list[ast.AST]]) -> None:
    assert {
        name
        for name, nodes in code.items()
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr == "read" and ast.unparse(node.value) == "Ledger"
    } == OPENS_LEDGERS
