"""From the terms of a run, and the rows that one side has, to a checked and calibrated federation.

The experiment in the terms is a server's text. A member takes from it numbers, words that a key lists, and the texts
of `TEXTS`, no more. No key that it takes opens a file, calls a network, starts a process or chooses a device. What it
names is Tacit's own, or code that the member's owner permitted by name. A key of any text that is new to experiments is
refused until somebody has looked at it.

Code beside Tacit's own that a member lets an experiment name: which version of it, by what its files hold.

No code ever comes from a server. What a server names is imported only where the member's owner permitted the name, and
only as long as its source is what it was when the agreement was made: whoever changes it asks the owner anew.
"""

import hashlib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from importlib.util import find_spec
from pathlib import Path
from types import NoneType
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tacit.core.contract import Method
from tacit.core.files import storage
from tacit.core.registry import make_importable
from tacit.data.dataset import LocalView
from tacit.errors import TacitError
from tacit.experiments.build import build_model, build_objective, build_privacy, build_training, method_of
from tacit.experiments.config import SECTIONS, Config, full, parse, schema_of
from tacit.experiments.config_errors import tables_in
from tacit.experiments.toml import dumps
from tacit.federation.protocol.client import Refusal
from tacit.federation.protocol.terms import (
    Participant,
    Rows,
    Terms,
    checked_rows,
    public_view,
    with_own_rows,
)
from tacit.models.losses import LOSSES
from tacit.models.metrics import METRICS
from tacit.rounds.assemble import Assembled, Privacy, Training, assemble
from tacit.sampling.cohorts import LimitedParticipation

PERMITTED: Final = (
    "name", "rounds", "seed", "rate", "cohort", "times", "batch", "epochs", "steps", "precision",
    "model", "method", "task", "privacy", "levels", "evaluate", "run",
)  # fmt: skip
"""Outside of tables. Of tables, every key whose values are numbers or words that the key itself lists."""
TEXTS: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("name",),
    "model": ("name",),
    "method": ("name", "base", "prior", "keep", "only", "loss"),
    "task": ("loss", "metrics"),
    "privacy": ("plan",),
}
"""By table, keys of any text that are permitted: each names what Tacit has, parameters of a model, or the run."""
LEFT_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("purpose", "data", "choices", "federation", "changes", "devices", "performance"),
    "privacy": ("secure_sum", "noise"),
    "evaluate": ("sample", "heterogeneity"),
    "run": ("checkpoint_every", "track", "origin"),
}
"""By table, what concerns simulations or the server alone."""
_NAMED: Final = (("model", "name"), ("method", "name"), ("method", "base"), ("privacy", "plan"))


def for_members(content: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    """An experiment without what members are not sent."""
    kept = {key: value for key, value in content.items() if key not in LEFT_OUT.get(table, ())}
    return {key: for_members(value, key) if isinstance(value, Mapping) else value for key, value in kept.items()}


def foreign_names(content: Mapping[str, Any]) -> tuple[str, ...]:
    """What an experiment names that is not Tacit's own: import paths, and what installed packages add."""
    tables = [(content.get(table), key, SECTIONS[table].registry.builtin) for table, key in _NAMED]
    said = [(str(table[key]), known) for table, key, known in tables if isinstance(table, Mapping) and key in table]
    return tuple(name for name, known in [*said, *_named_in_task(content)] if name not in known)


def _named_in_task(content: Mapping[str, Any]) -> list[tuple[str, Collection[str]]]:
    task = content.get("task")
    if not isinstance(task, Mapping):
        return []
    metrics = task.get("metrics", [])
    losses: list[tuple[str, Collection[str]]] = [(str(task["loss"]), {*LOSSES.builtin})] if "loss" in task else []
    names = metrics if isinstance(metrics, list) else [metrics]
    return losses + [(str(name), {*METRICS.builtin, "loss"}) for name in names]


def check_keys(content: Mapping[str, Any], permitted: Collection[str] | None = ()) -> None:
    """Refuses an experiment with a key that a server may not set for its members, or that names code which is neither
    Tacit's own nor `permitted`. Nothing is imported before that. `None`: the experiment is one's own.
    """
    for name in foreign_names(content):
        if permitted is not None and name not in permitted:
            raise TacitError(
                f"the experiment names '{name[:60]}', which is not Tacit's own code: a member runs it only where its "
                "owner permits it (tacit join --permit)"
            )
    _check_table(content, schema_of(content), "")


def _check_table(content: Mapping[str, Any], table: type[BaseModel], place: str) -> None:
    for key, value in content.items():
        where, field = f"{place}.{key}" if place else key, table.model_fields.get(key)
        if field is None or not may_say(place, key, field.annotation):
            raise TacitError(f"the experiment has '{where[:60]}', which a server may not set for its members")
        for inner in tables_in(field.annotation):
            if isinstance(value, Mapping) and key != "levels":
                _check_table(value, inner, where)
        for name, level in value.items() if key == "levels" and isinstance(value, Mapping) else ():
            if isinstance(level, Mapping):
                _check_table(level, next(tables_in(field.annotation)), f"levels.{name}")


def may_say(table: str, key: str, annotation: Any) -> bool:
    """Whether a server may set a key for its members: a number, a word of a list, or a text that was looked at."""
    if key in LEFT_OUT.get(table, ()) or (not table and key not in PERMITTED):
        return False
    return key in TEXTS.get(table, ()) or _is_harmless(annotation)


def _is_harmless(annotation: Any) -> bool:
    """Whether values of this type are numbers, words that it lists, or tables, whose keys are looked at themselves."""
    if annotation in (int, float, bool, NoneType) or get_origin(annotation) is Literal:
        return True
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return True
    inner = [each for each in get_args(annotation) if not isinstance(each, FieldInfo)]
    if get_origin(annotation) is dict:
        inner = inner[1:]
    return bool(inner) and all(map(_is_harmless, inner))


@cache
def experiment_of(text: str, permitted: tuple[str, ...] | None = ()) -> Config:
    """The experiment in the terms; refuses what `check_keys` does."""
    content = content_of(text)
    check_keys(content, permitted)
    return parse(content)


def content_of(text: str) -> dict[str, Any]:
    """The keys of an experiment's text; nothing that it names is imported."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TacitError(f"the experiment in the terms is not TOML: {error}") from error


def text_of(config: Config) -> str:
    """What members are sent of an experiment; refuses what would mean something else there than in a simulation."""
    for key in ("devices", "changes"):
        if getattr(config, key) is not None:
            raise TacitError(f"'{key}' is for simulations: leave it out of a federation's experiment")
    if config.privacy.noise == "fast":
        raise TacitError("privacy.noise is 'fast', and a federation's noise is exact: leave it out")
    if config.performance.get("device") not in (None, "cpu"):
        said = f"performance.device is '{config.performance.device}'"
        raise TacitError(f"{said}, and members compute on their CPUs: leave it out")
    if config.performance.get("engine") not in (None, "local"):
        said = f"performance.engine is '{config.performance.engine}'"
        raise TacitError(f"{said}, and members compute by themselves: leave it out")
    return dumps(for_members(full(config)))


def rows_are_public(config: Config) -> bool:
    """Whether the plan needs everybody to know how many rows each client has. Elsewhere that is data like any other."""
    return build_privacy(config).plan.unit == "record"


def evaluates(config: Config) -> bool:
    """Whether members report how good the models are on their own test rows."""
    return config.evaluate.deployment == "noisy"


def plan_name(config: Config) -> str:
    """The plan, by what a level's epsilon limits under it and which account that is."""
    rota = isinstance(build_training(config).sampler, LimitedParticipation)
    return build_privacy(config).plan.plan_name + "-rota" * rota


def server_side(terms: Terms) -> Assembled:
    config = experiment_of(terms.experiment, None)
    return _assembled(config, terms, public_view(terms, build_training(config).dtype))


@lru_cache(maxsize=4)  # of a session: the terms are the whole key, and nothing of a client's rows or files is in it
def public_side(terms: Terms, name: str, permitted: tuple[str, ...] | None = ()) -> Assembled:
    """A client's side of the federation without its rows: whether there is one follows from the terms alone.

    Checked and calibrated once by a process. Terms that are refused are refused again each time.
    """
    config = experiment_of(terms.experiment, permitted)
    return _assembled(config, terms, public_view(terms, build_training(config).dtype, terms.place(name)))


def client_side(
    assembled: Assembled, terms: Terms, name: str, rows: Rows, permitted: tuple[str, ...] | None = ()
) -> Assembled:
    """The same with its rows."""
    public = rows_are_public(experiment_of(terms.experiment, permitted))
    return with_own_rows(assembled, terms.place(name), terms, rows, public)


def seat(config: Config, name: str, level: str, rows: int, key: str = "") -> Participant:
    public = rows_are_public(config)
    return Participant(name, level, checked_rows(rows, True) if public else 0, key)


def _assembled(config: Config, terms: Terms, view: LocalView) -> Assembled:
    method, privacy, training = parts(config)
    chosen = {seat.name: seat.level for seat in terms.roster}
    model = build_model(config, terms.inputs, terms.classes)
    sizes = terms.sizes(view, rows_are_public(config))
    chosen_privacy, objective = replace(privacy, choices=chosen), build_objective(config)
    return assemble(view, model, method, chosen_privacy, training, sizes, objective=objective)


def parts(config: Config) -> tuple[Method, Privacy, Training]:
    return method_of(config), build_privacy(config), build_training(config)


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
