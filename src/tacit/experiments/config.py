"""An experiment is one TOML file. Everything in it is checked here, once, with errors of one line.

Which keys a table has follows from what it makes: `[method]` has those of the method that it names, and so on
(`options.py`). Written down here are the tables that make no one thing.

`data_tables` and `section_table` list what there is to choose from, with the keys that each has.
"""

import functools
import hashlib
import inspect
import json
import os
import re
import tomllib
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_type_hints

from pydantic import Field, ValidationError, create_model, model_validator
from rich.table import Table as RichTable

from tacit import methods, models
from tacit.core.registry import Registry, make_importable, nearest
from tacit.data import loaders
from tacit.data.partition import Options
from tacit.errors import StorageError, TacitError
from tacit.experiments.config_errors import Kinds, first_complaint
from tacit.experiments.federation_table import FederationTable
from tacit.experiments.options import PARTS, Keys, Table, keys_of, said_as, table
from tacit.experiments.toml import assign
from tacit.models.input_transform import Transform
from tacit.privacy.accounting.accountant import Accountant
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import MECHANISMS
from tacit.privacy.mechanisms.noise import NoiseKind
from tacit.rounds.assemble import Performance, Training
from tacit.sampling.availability import Availability

Count = Annotated[int, Field(ge=1)]
NotNegative = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]

PLANS: Final[Registry[Any]] = MECHANISMS
NOT_IN_RESULT: Final = (
    ("name",),
    ("purpose",),
    ("performance",),
    ("run", "checkpoint_every"),
    ("run", "track"),
    ("run", "origin"),
    *(("run", key) for key in keys_of(Performance)),  # where files of runs had them before
    ("privacy", "secure_sum"),
    ("privacy", "threshold"),
)
"""Keys that leave the result as it is: the fingerprint does not see them."""
_DIVIDED: Final[Keys] = {
    "clients": Count,
    "classes_each": Count,
    "alpha": Positive,
    "minimum": Count,
    "group": Count,
    "test_fraction": BelowOne,
    "common_fraction": BelowOne,
    "seed": NotNegative,
}
"""Ranges of options by which data are divided: what is wrong is said before any of them is read."""


class NormaliseTable(Table):
    """Inputs by public constants or statistics; see `tacit.data.normalise`."""

    shift: Annotated[float, Field(allow_inf_nan=False)] | None = None
    scale: Positive | None = None
    statistics: str | None = None
    public_rows: Count | None = None
    public: str | None = None
    project: Count | None = None
    whiten: Annotated[float, Field(ge=0, le=1)] | None = None


class DataTable(Table):
    """Keys that are left out take the source's own defaults; see `tacit data`."""

    source: str = "digits"
    normalise: NormaliseTable | None = None


class ModelTable(Table):
    name: str = "mlp"


class MethodTable(Table):
    name: str = "fedavg"


class TaskTable(Table):
    """What is minimised and what is measured; what is left out follows from the targets."""

    loss: str | None = None
    metrics: list[str] | None = None


class PrivacyTable(Table):
    plan: str | None = None
    accountant: Accountant = "pld"
    allow_large_delta: bool = False
    noise: NoiseKind | None = None  # of a simulation: fast if left out; a federation's is exact


class AmongTable(Table):
    """A share of all clients, drawn from those that hold a class."""

    share: Share
    holding: NotNegative


class ChangeTable(Table):
    """After `round` rounds, at the next draw, the clients are at another level."""

    round: Count
    clients: Annotated[list[str], Field(min_length=1)]
    level: str


class EvaluateTable(Table):
    every: Count = 10
    sample: Count | None = None
    heterogeneity: bool | None = None
    deployment: Literal["off", "noisy"] | None = None  # off if left out; see `tacit.privacy.evaluation`
    share: Annotated[float, Field(gt=0, lt=1)] | None = None
    range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None  # public, of what is released


class RunTable(Table):
    checkpoint_every: Count = 10
    dtype: Literal["float32", "float64"] = "float32"
    track: list[str] | None = None  # tools that get every figure; see `tacit.experiments.callbacks`
    origin: str | None = None  # the folder of the experiment's file, written by `load`: relative paths start there


class Config(Table):
    """One experiment, without the keys that follow from what it names: `parse` adds those of `schema_of`.

    A file without a single key is one, too: FedAvg on digits without privacy.
    """

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = "experiment"
    purpose: Annotated[str, Field(max_length=300)] | None = None  # what it is for, for readers of the report
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    cohort: Count | None = None
    times: Count | None = None  # a client is asked so often at most; with cohort
    data: DataTable
    model: ModelTable
    method: MethodTable
    task: TaskTable | None = None
    privacy: PrivacyTable
    levels: dict[str, Table] = {}
    choices: dict[str, Share | str | AmongTable] | str = {}  # a text is the path of a CSV file: client, level
    changes: list[ChangeTable] | str | None = None  # a text is the path of a CSV file: round, client, level
    devices: Table | None = None
    evaluate: EvaluateTable = EvaluateTable()
    run: RunTable = RunTable()
    performance: Table
    federation: FederationTable | None = None

    @model_validator(mode="after")
    def _one_sampler(self) -> "Config":
        if self.rate is not None and self.cohort is not None:
            raise TacitError(f"rate is {self.rate:g} and cohort is {self.cohort}: give one of the two")
        if self.times is not None and self.cohort is None:
            raise TacitError(f"times is {self.times}, which needs the size of a cohort: add cohort")
        return self


class Section(NamedTuple):
    """A table that names what it makes, by `key`."""

    key: str
    registry: Registry[Any]
    usual: str
    base: type[Table]


SECTIONS: Final[Mapping[str, Section]] = {
    "data": Section("source", loaders.SOURCES, "digits", DataTable),
    "model": Section("name", models.MODELS, "mlp", ModelTable),
    "method": Section("name", methods.REGISTRY, "fedavg", MethodTable),
    "privacy": Section("plan", PLANS, "grouped", PrivacyTable),
}


def section_keys(section: str, name: str, content: Mapping[str, Any] = {}) -> Keys:
    """The keys of a section that names `name`, beside those that it always has."""
    registry = SECTIONS[section].registry
    if ":" not in name and name not in registry:
        raise TacitError(f"{section}.{SECTIONS[section].key} is '{name}': {nearest(name, [*registry])}")
    if section == "method":
        return method_keys(name, content)
    keys = keys_of(registry.find(name), content)
    if section == "data":
        divided = {key: _DIVIDED.get(key, said_as(hint)) for key, hint in get_type_hints(Options).items()}
        return {**divided, **keys}
    if section == "model":
        transform = {key: said for key, said in keys_of(Transform).items() if key != "shape"}
        fitted = {key: said for key, said in keys.items() if key not in models.FITTED}
        return {**fitted, "transform": table("transform", transform)}
    return keys


def method_keys(name: str, content: Mapping[str, Any]) -> Keys:
    """Those of the method, and those of `KeepLocal`, which may stand around any."""
    around = keys_of(methods.KeepLocal)
    names = around["names"]
    around = {"keep": Annotated[names, Field(min_length=1)], "first": around["first"], "pace": around["pace"]}
    if name != "keep-local":
        return {**keys_of(methods.REGISTRY.find(name), content), **around}
    base, inner = content.get("base", "fedavg"), {key: value for key, value in content.items() if key != "base"}
    return {"base": str, **section_keys("method", base, inner)}


def schema_of(content: Mapping[str, Any]) -> type[Config]:
    """The keys that this experiment may have. Raises `TacitError` where it names what is not there."""
    chosen = {section: _inside(content, section) for section in SECTIONS}
    return _schema(*((section, _name(section, inside), _naming(inside)) for section, inside in chosen.items()))


def _inside(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    inside = content.get(key)
    return inside if isinstance(inside, Mapping) else {}


def _name(section: str, inside: Mapping[str, Any]) -> str:
    name = inside.get(SECTIONS[section].key)
    return name if isinstance(name, str) else SECTIONS[section].usual


def _naming(inside: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """The values that name kinds of parts, with a nested table's name in place of it."""
    said = {part.key: _inside(inside, part.key).get("name") if part.nested else inside.get(part.key)
            for part in PARTS.values() if part.key}  # fmt: skip
    return tuple((key, name) for key, name in said.items() if isinstance(name, str))


@functools.cache
def _schema(*chosen: tuple[str, str, tuple[tuple[str, str], ...]]) -> type[Config]:
    nested = {part.key for part in PARTS.values() if part.nested}
    tables: dict[str, type[Table]] = {}
    for section, name, naming in chosen:
        content = {key: {"name": kind} if key in nested else kind for key, kind in naming}
        tables[section] = table(section, section_keys(section, name, content), SECTIONS[section].base)
    tables["performance"] = table("performance", keys_of(Performance))
    usual = {name: each.default for name, each in inspect.signature(Training).parameters.items()}
    level = {key: said for key, said in keys_of(Level).items() if key != "name"}
    fields: dict[str, Any] = {key: (said, usual[key]) for key, said in TRAINING.items()}
    fields |= {name: (kind, kind()) for name, kind in tables.items()}
    fields["levels"] = dict[str, table("level", level)], {}
    fields["devices"] = table("devices", keys_of(Availability)) | None, None
    return create_model("Config", __base__=Config, **fields)


TRAINING: Final[Keys] = {key: said for key, said in keys_of(Training).items() if key not in keys_of(Availability)}
"""The keys of a run that stand in no table."""


def kinds_at(path: Sequence[str], content: Mapping[str, Any]) -> Kinds | None:
    """What a table of the file is of, in words, and the keys of each kind that it could be of."""
    if len(path) == 1 and path[0] in SECTIONS:
        name = _name(path[0], _inside(content, path[0]))
        said = f"plan '{name}'" if path[0] == "privacy" else f"'{name}'"
        return Kinds(said, {each: section_keys(path[0], each) for each in SECTIONS[path[0]].registry})
    for part in PARTS.values():
        if part.nested and [*path] == ["method", part.key]:
            name = _inside(_inside(content, "method"), path[1]).get("name", next(iter(part.kinds)))
            return Kinds(f"'{name}'", {each: keys_of(kind) for each, kind in part.kinds.items()})
    return None


def parse(content: Mapping[str, Any]) -> Config:
    """The experiment, or a `TacitError` of one line that names the key, its value and the remedy."""
    content = _renamed(content)
    schema = schema_of(content)
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise TacitError(first_complaint(error, content, schema, lambda path: kinds_at(path, content))) from None


def _renamed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Keys that had another place until lately; for one release they are taken, with a warning."""
    run, performance = dict(_inside(content, "run")), dict(_inside(content, "performance"))
    moved = {key: run.pop(key) for key in keys_of(Performance) if key in run}
    for key, value in moved.items():
        if key in performance:
            raise TacitError(f"run.{key} is {value!r}, and performance.{key} is given, too: leave out the first")
        warnings.warn(f"run.{key} is now performance.{key}: move it there", DeprecationWarning, stacklevel=4)
    return dict(content) if not moved else {**content, "run": run, "performance": performance | moved}


def load(path: Path | str) -> Config:
    """The experiment in a file. Modules and paths beside the file can be named in it, wherever it is run from."""
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TacitError(f"there is no file {path}: give the path of an experiment, for example digits.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TacitError(f"{path} is not TOML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from None
    make_importable(path.parent)
    config = parse(content if "name" in content else {"name": _name_of(path), **content})
    run = {"origin": str(path.parent.resolve()), **config.run.model_dump(exclude_unset=True)}
    return config.model_copy(update={"run": RunTable(**run)})


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "experiment"


def beside(config: Config, path: str) -> str:
    """A path of an experiment: below the folder of its file if there is something, else as it is."""
    found = Path(config.run.origin or "", path)
    return str(found) if found.exists() else path


def with_overrides(config: Config, assignments: Sequence[str]) -> Config:
    """The experiment with `key=value` set, as if the file had said so. Values are TOML; a bare word is text.

    An empty value takes the key away, and of `rate` and `cohort` the one that is set replaces the other.
    """
    content = config.model_dump(exclude_unset=True)
    for assignment in assignments:
        key, mark, text = assignment.partition("=")
        if not mark or not key.strip():
            raise TacitError(f"'{assignment}' sets nothing: write key=value, for example rounds=50")
        if text.strip() and key.strip() in ("rate", "cohort"):
            content.pop("cohort" if key.strip() == "rate" else "rate", None)
        assign(content, key.strip().split("."), text.strip())
    return parse(content)


def full(config: Config) -> dict[str, Any]:
    """Everything that was decided, defaults included; keys that stay undecided are left out.

    Values come before tables, as they do in the file of a run.
    """
    decided = {key: value for key, value in config.model_dump(exclude_none=True).items() if value != {}}
    return dict(sorted(decided.items(), key=lambda item: isinstance(item[1], Mapping)))


def decisive(content: Mapping[str, Any]) -> dict[str, Any]:
    """`content` without the keys that leave the result as it is."""
    kept = {key: dict(value) if isinstance(value, Mapping) else value for key, value in content.items()}
    for *above, last in NOT_IN_RESULT:
        place = kept.get(above[0], {}) if above else kept
        place.pop(last, None)
    return kept


def fingerprint(config: Config) -> str:
    """The same for two experiments exactly if their results are; 16 hexadecimal digits."""
    return digest(decisive(full(config)))


def digest(content: Mapping[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(_ordered(content)).encode(), digest_size=8).hexdigest()


def _ordered(content: Mapping[str, Any]) -> list[Any]:
    """In one order, but for levels: they are numbered in the order of the file."""
    return [sorted(_flat(content).items()), list(content.get("levels", {}))]


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """The first key whose values differ, with both; None if there is none."""
    one, other = _flat(decisive(a)), _flat(decisive(b))
    for key in [*one, *(key for key in other if key not in one)]:
        if one.get(key) != other.get(key):
            return f"{key} is {one.get(key, 'not given')!r} there and {other.get(key, 'not given')!r} here"
    return None if list(a.get("levels", {})) == list(b.get("levels", {})) else "the order of the levels differs"


def _flat(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) and value else {f"{above}{key}": value}
    return flat


PARTITIONS = {
    "iid": "rows dealt at random, equally many to each client",
    "one-class": "each client holds rows of one class",
    "classes": "each client holds `classes_each` classes (2)",
    "dirichlet": "class shares drawn with `alpha` (0.5); every client gets at least `minimum` rows (1)",
    "writer, subject, ...": "one client a person, where the source knows who made a row; joins `group` of them (1)",
}
_ANYWHERE = "package.module:Name names one of your own, in a module beside the file or in an installed package"


def data_tables() -> list[RichTable]:
    """Sources, with whether a file that they need is there, and partitions."""
    sources = RichTable(title="sources: [data] source = ...", title_justify="left", caption=_ANYWHERE)
    for name in ("source", "what", "where from"):
        sources.add_column(name)
    for name, read in loaders.SOURCES.items():
        sources.add_row(name, *_source(name, read))
    dealt = RichTable(title="partitions: [data] partition = ...", title_justify="left")
    dealt.add_column("partition", no_wrap=True)
    dealt.add_column("who holds what")
    for name, text in PARTITIONS.items():
        dealt.add_row(name, text)
    return [sources, dealt]


def _source(name: str, read: Callable[..., Any]) -> tuple[str, str]:
    if name in loaders.FILES:
        path, about, _ = loaders.FILES[name]
        folder = os.environ.get(loaders.FOLDER)
        there = folder is not None and (Path(folder) / path).is_file()
        return about, f"{path} in ${loaders.FOLDER} ({'found' if there else 'not found'})"
    where = "a file of yours: path = ..." if "path" in inspect.signature(read).parameters else "needs no file"
    return first_line(read.__doc__), where


def section_table(section: str) -> RichTable:
    """What `[section]` may name, with the keys that each has."""
    key, registry, *_ = SECTIONS[section]
    table = RichTable(title=f"{section}: [{section}] {key} = ...", title_justify="left", caption_justify="left")
    table.add_column(key, no_wrap=True)
    table.add_column("what")
    table.add_column("keys")
    hidden = ("keep", "first", "pace")
    for name, kind in registry.items():
        keys = [each for each in section_keys(section, name) if each not in hidden]
        table.add_row(name, _about(section, kind), ", ".join(keys))
    table.caption = _ANYWHERE + _KEEP * (section == "method")
    return table


_KEEP = (
    '. keep = ["norm"] keeps parameters with that in their name on the client, under any method; '
    "first = 0.5 trains them alone in the first half of a round's steps (FedRep)"
)


def _about(section: str, kind: Any) -> str:
    """A method's file says what it is; a class says what it does."""
    module = inspect.getdoc(inspect.getmodule(kind)) if section == "method" else None
    return first_line(module or inspect.getdoc(kind))


def first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0].rstrip(".")
