"""Every tutorial and how-to as a notebook: `make notebooks` converts the Markdown and executes it.

The Markdown is the one source. Notebooks are not kept in the repository: they would be a second copy that grows stale,
and their outputs would make every change unreadable. What cannot be executed here is converted and says why.
"""

import argparse
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = (*sorted((ROOT / "docs").glob("tutorial*.md")), *sorted((ROOT / "docs" / "how-to").glob("*.md")))
NEEDS_DATA: Final = ("personal-sensing",)
NEEDS: Final = {"foundation-models": "a model of the Hugging Face hub, which is fetched"}
TIMEOUT: Final = 240  # seconds a cell


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

    # other languages would become cells, too: as fences of four marks they stay text
    text = re.sub(r"^```(?!python)(\w*)\n(.*?)^```$", r"````\1\n\2````", page.read_text(), flags=re.S | re.M)
    notebook = jupytext.reads(text, fmt="md")
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return notebook


def execute(notebook: Any) -> None:
    """Runs every cell in a folder of its own. Raises at the first that fails."""
    from nbclient import NotebookClient  # pyright: ignore[reportMissingImports]

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "digits.toml").write_text(_EXPERIMENT)  # what pages call "an experiment of yours"
        NotebookClient(notebook, timeout=TIMEOUT, resources={"metadata": {"path": folder}}).execute()


_EXPERIMENT: Final = """name = "digits"
rounds = 5
data = { clients = 20 }
model = { name = "softmax" }
"""


def make(out: Path, only: str = "") -> Iterator[str]:
    """Writes all notebooks; yields a line for each."""
    import nbformat  # pyright: ignore[reportMissingImports]

    for page in PAGES:
        if only not in page.stem:
            continue
        notebook, began = convert(page), time.perf_counter()
        why = reason_to_skip(page)
        if why is None:
            execute(notebook)
        nbformat.write(notebook, out / f"{page.stem}.ipynb")
        yield f"{page.stem}: " + (f"not executed, {why}" if why else f"{time.perf_counter() - began:.0f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "notebooks")
    parser.add_argument("--only", default="", help="pages whose name contains this")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    for line in make(options.out, options.only):
        print(line, flush=True)
    print(f"all in {time.perf_counter() - began:.0f} s: {options.out}", file=sys.stderr)


if __name__ == "__main__":
    main()
