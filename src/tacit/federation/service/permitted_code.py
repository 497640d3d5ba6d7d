"""Code beside Tacit's own that a member lets an experiment name: which version of it, by what its files hold.

No code ever comes from a server. What a server names is imported only where the member's owner permitted the name, and
only as long as its source is what it was when the agreement was made: whoever changes it asks the owner anew.
"""

import hashlib
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from tacit.core.files import storage
from tacit.core.registry import make_importable
from tacit.errors import TacitError
from tacit.experiments.config import SECTIONS
from tacit.federation.protocol.client import Refusal
from tacit.federation.service.experiment import content_of, foreign_names

SOURCES: Final = (".py", ".so", ".pyd", ".c", ".h")


class Code(NamedTuple):
    """`digest`: of all source files of the package, or of the one file, that `name` leads to."""

    name: str
    version: str
    digest: str

    def __str__(self) -> str:
        return f"version {self.version or 'none'}, digest {self.digest[:16]}"


def identify(name: str) -> Code:
    """The code that a name of an experiment leads to, as it is installed here. Nothing of it is imported.

    Args:
        name: an import path, "mymethods:Anchored", or a name that an installed package adds.

    Raises:
        TacitError: if it is not installed, or has no source.
    """
    package = _path(name).partition(":")[0].partition(".")[0]
    make_importable(Path.cwd())
    spec = find_spec(package) if package.isidentifier() else None
    if spec is None or not (spec.origin or spec.submodule_search_locations):
        raise TacitError(f"'{name[:60]}' is not installed here: install its package, or copy its file into this folder")
    roots = [Path(place) for place in spec.submodule_search_locations or ()]
    return Code(name, _version(package), _digest(roots or [Path(str(spec.origin))]))


def check_code(experiment: str, agreed: Iterable[Code]) -> None:
    """Refuses an experiment that names code which is not what was agreed on; before anything of it is imported."""
    known = {code.name: code for code in agreed}
    for name in foreign_names(content_of(experiment)):
        if name not in known:
            raise Refusal("terms", f"'{name[:60]}' was no part of what was agreed on: leave, and join again")
        if (now := identify(name)) != known[name]:
            raise Refusal("terms", f"'{name[:60]}' is {now}, and {known[name]} was agreed on: join again to permit it")


def _path(name: str) -> str:
    for table in SECTIONS.values():
        if (point := table.registry.installed.get(name)) is not None:
            return point.value
    return name


def _digest(roots: Iterable[Path]) -> str:
    total = hashlib.sha256()
    for root in roots:
        files = [root] if root.is_file() else sorted(path for path in root.rglob("*") if path.suffix in SOURCES)
        for path in files:
            with storage(path):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
            total.update(f"{path.name if path == root else path.relative_to(root).as_posix()}\0{content}\n".encode())
    return total.hexdigest()


def _version(package: str) -> str:
    try:
        return version(_distribution(package))
    except PackageNotFoundError:
        return ""


@cache
def _distribution(package: str) -> str:
    return next(iter(packages_distributions().get(package, ())), package)
