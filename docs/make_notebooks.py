"""Every tutorial and how-to as a notebook: `make notebooks` converts the Markdown and executes it.

The Markdown is the one source. Notebooks are not kept in the repository: they would be a second copy that grows stale,
and their outputs would make every change unreadable. What cannot be executed here is converted and says why.
"""

import argparse
import os
import re
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = (*sorted((ROOT / "docs").glob("tutorial*.md")), *sorted((ROOT / "docs" / "how-to").glob("*.md")))
NEEDS_DATA: Final = ("personal-sensing",)
NEEDS: Final = {"foundation-models": "a model of the Hugging Face hub, which is fetched"}
TIMEOUT: Final = 240  # seconds a cell
FAILED: Final = "FAILED"


def has_code(page: Path) -> bool:
    return "\n```python\n" in page.read_text()


def needs_data(page: Path) -> bool:
    return page.stem in NEEDS_DATA or "os.environ[" in page.read_text()


def reason_to_skip(page: Path) -> str | None:
    """Why the page's code cannot be executed here; None if it can."""
    if not has_code(page):
        return "it has no Python"
    if needs_data(page) and not os.environ.get("TACIT_DATA"):
        return "it needs real data: set TACIT_DATA"
    return NEEDS.get(page.stem)


def convert(page: Path) -> Any:
    """The page as a notebook: its Python blocks are cells, all else is text."""
    import jupytext  # pyright: ignore[reportMissingImports]

    # jupytext would make cells of shell commands, too: blocks of other languages are put back when it is done
    others: list[str] = []

    def hide(block: re.Match[str]) -> str:
        if block[1] == "python":
            return block[0]
        others.append(block[0])
        return f"@@{len(others) - 1}@@"

    hidden = re.sub(r"^```(\w*)\n.*?^```$", hide, page.read_text(), flags=re.S | re.M)
    notebook = jupytext.reads(hidden, fmt="md")
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = re.sub(r"@@(\d+)@@", lambda found: others[int(found[1])], cell.source)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def execute(notebook: Any) -> None:
    """Runs every cell in a folder of its own. Raises at the first that fails."""
    from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "docs").symlink_to(ROOT / "docs")  # pages are read in a checkout
        (Path(folder) / "digits.toml").write_text(_EXPERIMENT)  # what pages call "an experiment of yours"
        NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}}).execute()


_EXPERIMENT: Final = """name = "digits"
rounds = 5
data = { clients = 20 }
model = { name = "softmax" }
"""


def make(out: Path, only: str = "", jobs: int = 1) -> Iterator[str]:
    """Writes all notebooks, `jobs` at a time; yields a line for each."""
    with ThreadPoolExecutor(jobs) as pool:  # a kernel is a process of its own: threads only wait for it
        yield from pool.map(lambda page: make_one(page, out), [page for page in PAGES if only in page.stem])


def reason_of(error: Exception) -> str:
    """The last line that says something, without colours."""
    lines = [line for line in re.sub(r"\x1b\[[\d;]*m", "", str(error)).splitlines() if line.strip("- ")]
    return lines[-1] if lines else type(error).__name__


def make_one(page: Path, out: Path) -> str:
    """What failed is written, too, up to where it failed; the line says so."""
    import nbformat  # pyright: ignore[reportMissingImports]
    from nbclient.exceptions import CellExecutionError, CellTimeoutError  # pyright: ignore[reportMissingImports]

    notebook, began, why = convert(page), time.perf_counter(), reason_to_skip(page)
    line = f"not executed, {why}"
    if why is None:
        try:
            execute(notebook)
            line = f"{time.perf_counter() - began:.0f} s"
        except (CellExecutionError, CellTimeoutError) as error:
            line = f"{FAILED} after {time.perf_counter() - began:.0f} s: {reason_of(error)}"
    nbformat.write(notebook, out / f"{page.stem}.ipynb")
    return f"{page.stem}: {line}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "notebooks")
    parser.add_argument("--only", default="", help="pages whose name contains this")
    parser.add_argument("-j", "--jobs", type=int, default=min(2, os.cpu_count() or 1), help="pages at a time")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began, lines = time.perf_counter(), list[str]()
    for line in make(options.out, options.only, options.jobs):
        print(line, flush=True)
        lines.append(line)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    worked = used.ru_utime + used.ru_stime
    print(
        f"all in {time.perf_counter() - began:.0f} s, {worked:.0f} s of processor time: {options.out}", file=sys.stderr
    )
    return int(any(f": {FAILED} after " in line for line in lines))


if __name__ == "__main__":
    sys.exit(main())
