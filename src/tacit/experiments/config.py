"""An experiment is one TOML file. Everything in it is checked here, once, with errors of one line."""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError, model_validator

from tacit.errors import StorageError, TacitError
from tacit.experiments.config_errors import first_complaint
from tacit.experiments.schema import (
    AmongTable,
    ChangeTable,
    Count,
    Data,
    DevicesTable,
    Evaluate,
    FederationTable,
    LevelTable,
    MethodTable,
    Model,
    PrivacyTable,
    RunTable,
    Share,
    Table,
)

NOT_IN_RESULT = (
    ("name",),
    ("purpose",),
    ("run", "threads"),
    ("run", "chunk"),
    ("run", "engine"),
    ("run", "device"),
    ("run", "compile"),
    ("run", "checkpoint_every"),
    ("privacy", "secure_sum"),
    ("privacy", "threshold"),
)
"""Keys that leave the result as it is: the fingerprint does not see them."""


class Config(Table):
    """One experiment. A file without a single key is one, too: FedAvg on digits without privacy."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = "experiment"
    purpose: Annotated[str, Field(max_length=300)] | None = None  # what it is for, for readers of the report
    rounds: Count = 100
    seed: Annotated[int, Field(ge=0)] = 0
    rate: Annotated[float, Field(gt=0, le=1)] | None = None
    cohort: Count | None = None
    times: Count | None = None  # a client is asked so often at most; with cohort
    batch: Count = 10
    epochs: Annotated[int, Field(ge=0)] = 1
    steps: Count | None = None  # instead of epochs, the same for every client
    data: Data = Data()
    model: Model = Model()
    method: MethodTable = MethodTable()
    privacy: PrivacyTable = PrivacyTable()
    levels: dict[str, LevelTable] = {}
    choices: dict[str, Share | str | AmongTable] | str = {}  # a text is the path of a CSV file: client, level
    changes: list[ChangeTable] | str | None = None  # a text is the path of a CSV file: round, client, level
    devices: DevicesTable | None = None
    evaluate: Evaluate = Evaluate()
    run: RunTable = RunTable()
    federation: FederationTable | None = None

    @model_validator(mode="after")
    def _one_sampler(self) -> "Config":
        if self.rate is not None and self.cohort is not None:
            raise TacitError(f"rate is {self.rate:g} and cohort is {self.cohort}: give one of the two")
        if self.times is not None and self.cohort is None:
            raise TacitError(f"times is {self.times}, which needs the size of a cohort: add cohort")
        return self


def parse(content: Mapping[str, Any]) -> Config:
    """The experiment, or a `TacitError` of one line that names the key, its value and the remedy."""
    try:
        return Config.model_validate(dict(content))
    except ValidationError as error:
        raise TacitError(first_complaint(error, content, Config)) from None


def load(path: Path | str) -> Config:
    path = Path(path)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TacitError(f"there is no file {path}: give the path of an experiment, for example digits.toml") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise TacitError(f"{path} is not TOML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise StorageError(f"cannot read {path}: {error.strerror or error}") from None
    return parse(content if "name" in content else {"name": _name_of(path), **content})


def _name_of(path: Path) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).strip("-._") or "experiment"


def with_overrides(config: Config, assignments: Sequence[str]) -> Config:
    """The experiment with `key=value` set, as if the file had said so. Values are TOML; a bare word is text.

    An empty value takes the key away, and of `rate` and `cohort` the one that is set replaces the other.
    """
    content = config.model_dump(exclude_unset=True)
    for assignment in assignments:
        key, mark, text = assignment.partition("=")
        if not mark or not key.strip():
            raise TacitError(f"'{assignment}' sets nothing: write key=value, for example rounds=50")
        _assign(content, key.strip().split("."), text.strip())
    return parse(content)


def _assign(content: dict[str, Any], path: list[str], text: str) -> None:
    *above, last = path
    for part in above:
        inner = content.setdefault(part, {})
        if not isinstance(inner, dict):  # a number gives way to a table: clip=0.1, then clip.start=0.2
            inner = content[part] = {}
        content = inner
    if not text:
        content.pop(last, None)
        return
    if not above and last in ("rate", "cohort"):
        content.pop("cohort" if last == "rate" else "rate", None)
    content[last] = _parsed(".".join(path), text)


def _parsed(key: str, text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        if re.fullmatch(r"-?\.\d+", text):  # .5, which TOML does not know
            return float(text)
        if re.fullmatch(r"[A-Za-z0-9_./-]+", text):
            return text
        raise TacitError(f"the value of {key}={text} is not TOML: quote text, for example {key}='\"text\"'") from None


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
    # the order of keys counts: levels are numbered in the order of the file
    return hashlib.blake2b(json.dumps(content).encode(), digest_size=8).hexdigest()


def first_difference(a: Mapping[str, Any], b: Mapping[str, Any]) -> str | None:
    """The first key whose values differ, with both; None if there is none."""
    one, other = _flat(decisive(a)), _flat(decisive(b))
    for key in [*one, *(key for key in other if key not in one)]:
        if one.get(key) != other.get(key):
            return f"{key} is {one.get(key, 'not given')!r} there and {other.get(key, 'not given')!r} here"
    return None if list(one) == list(other) else "the order of the keys differs"


def _flat(content: Mapping[str, Any], above: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in content.items():
        flat |= _flat(value, f"{above}{key}.") if isinstance(value, Mapping) and value else {f"{above}{key}": value}
    return flat
