"""An experiment is one TOML file. Everything in it is checked here, once, with errors of one line."""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tacit.errors import StorageError, TacitError
from tacit.experiments.complaints import first_complaint

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]

NOT_IN_RESULT = (
    ("name",),
    ("run", "threads"),
    ("run", "chunk"),
    ("run", "engine"),
    ("run", "device"),
    ("run", "checkpoint_every"),
    ("privacy", "secure_sum"),
)
"""Keys that leave the result as it is: the fingerprint does not see them."""


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NormaliseTable(Table):
    """Inputs by public constants or statistics; see `tacit.federation.normalise`."""

    shift: Finite | None = None
    scale: Positive | None = None
    statistics: str | None = None
    public_rows: Count | None = None


class Data(Table):
    """Keys that are left out take the source's own defaults; see `tacit data`."""

    source: str = "digits"
    clients: Count | None = None
    partition: str | None = None
    classes_each: Count | None = None
    alpha: Positive | None = None
    minimum: Count | None = None
    group: Count | None = None
    test: str | None = None
    test_fraction: BelowOne | None = None
    common_fraction: BelowOne | None = None
    seed: Annotated[int, Field(ge=0)] | None = None  # the run's own seed if left out
    path: str | None = None
    label: str | None = None
    client: str | None = None
    columns: list[str] | None = None
    config: str | None = None
    train_split: str | None = None
    test_split: str | None = None
    cache: str | None = None
    revision: str | None = None
    normalise: NormaliseTable | None = None


class TransformTable(Table):
    """A personal transform of the inputs, kept on the client; see `tacit.models.transform`."""

    function: Literal["linear", "sigmoid", "tanh", "relu", "square", "conv"] | None = None
    scale: Literal["none", "one", "channel", "pixel", "each"] | None = None
    shift: Literal["none", "one", "channel", "pixel", "each"] | None = None
    alpha: Finite | None = None
    beta: Finite | None = None


class Model(Table):
    name: str = "mlp"
    hidden: list[Count] | None = None
    norm: Literal["batch", "group"] | None = None
    activation: Literal["relu", "tanh"] | None = None
    transform: TransformTable | None = None


class ServerStep(Table):
    name: Literal["sgd", "adam"] = "sgd"
    lr: Positive | None = None
    momentum: BelowOne | None = None
    beta1: BelowOne | None = None
    beta2: BelowOne | None = None
    epsilon: Positive | None = None


class MethodTable(Table):
    """Which keys a method takes is checked when it is built; see `tacit methods`."""

    name: str = "fedavg"
    lr: Positive | None = None
    momentum: BelowOne | None = None
    weight_decay: NotNegative | None = None
    decay: Positive | None = None
    strength: NotNegative | list[NotNegative] | None = None
    personal_lr: Positive | None = None
    prior: Literal["l2", "l1", "kl", "mixture"] | None = None
    spread: Positive | None = None
    psi: Positive | None = None
    psi_lr: NotNegative | None = None
    floor: NotNegative | None = None
    most: Count | None = None
    distil: Share | None = None
    distillation: Literal["mutual", "as-published"] | None = None
    alpha: Share | None = None
    beta: NotNegative | None = None
    adaptive: bool | None = None
    rate: Positive | None = None
    inner: Count | NotNegative | None = None
    inner_steps: Count | None = None
    hessian: Literal["first-order", "hessian-free"] | None = None
    components: Count | None = None
    keep: Annotated[list[str], Field(min_length=1)] | None = None
    first: BelowOne | None = None
    base: str | None = None
    loss: str | None = None
    covariance: str | list[list[float]] | None = None
    ridge: Positive | None = None
    start: str | None = None
    xi: Positive | None = None
    solver: str | None = None
    finish: bool | None = None
    intercept: Positive | None = None
    noisy: bool | None = None
    server: ServerStep | None = None


class MovingClip(Table):
    start: Positive | None = None
    target: Annotated[float, Field(gt=0, lt=1)] | None = None
    speed: Positive | None = None
    thrift: Annotated[float, Field(gt=1)] | None = None


class PrivacyTable(Table):
    plan: Literal["open", "central", "grouped", "local", "record", "stepwise", "distributed"] | None = None
    clip: Positive | MovingClip | None = None
    ratio: Share | Literal["optimal"] | None = None
    horizon: Positive | None = None
    project: bool | None = None
    participations: Count | None = None
    bound: Positive | None = None
    extra_bound: Positive | None = None
    seen: Literal["messages", "sum"] | None = None
    least: Count | None = None
    bits: Count | None = None
    budget: Literal["server", "released"] | None = None
    secure_sum: bool | None = None
    accountant: Literal["pld", "rdp"] = "pld"
    allow_large_delta: bool = False


class LevelTable(Table):
    epsilon: Positive | None = None
    delta: Annotated[float, Field(gt=0, lt=1)] | None = None
    noise: Positive | None = None


class AmongTable(Table):
    """A share of all clients, drawn from those that hold a class."""

    share: Share
    holding: Annotated[int, Field(ge=0)]


class ChangeTable(Table):
    """After `round` rounds, at the next draw, the clients are at another level."""

    round: Count
    clients: Annotated[list[str], Field(min_length=1)]
    level: str


class Evaluate(Table):
    every: Count = 10
    sample: Count | None = None
    heterogeneity: bool | None = None
    deployment: Literal["off", "noisy"] | None = None  # off if left out; see `tacit.privacy.evaluation`
    share: Annotated[float, Field(gt=0, lt=1)] | None = None


class DevicesTable(Table):
    """Devices that drop out (`drop`) or do less (`variability`); drawn by seed for each device and round."""

    drop: BelowOne | None = None
    variability: Share | None = None
    even_work: bool | None = None


class RunTable(Table):
    checkpoint_every: Count = 10
    chunk: Count | None = None
    threads: Count | None = None
    engine: Literal["local", "ray"] = "local"
    device: str = "cpu"
    dtype: Literal["float32", "float64"] = "float32"


class FederationTable(Table):
    """For `tacit serve`: what a row is, how many members there are, how long a round waits for them (seconds)."""

    inputs: list[Count] | None = None
    classes: Count | None = None
    label: str = "label"
    nodes: Count = 5
    deadline: Positive = 60.0


class Config(Table):
    """One experiment. A file without a single key is one, too: FedAvg on digits without privacy."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)] = "experiment"
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
