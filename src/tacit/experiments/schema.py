"""The tables of an experiment's file: their keys, and what each may be."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
BelowOne = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class NormaliseTable(Table):
    """Inputs by public constants or statistics; see `tacit.data.normalise`."""

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
    """A personal transform of the inputs, kept on the client; see `tacit.models.input_transform`."""

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
    pace: NotNegative | None = None
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
    noise: Literal["fast", "exact"] | None = None  # of a simulation: fast if left out; a federation's is exact
    threshold: Annotated[float, Field(ge=0.5, le=1)] | None = None
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
    compile: Literal["auto", "off", "require"] = "auto"
    dtype: Literal["float32", "float64"] = "float32"


class FederationTable(Table):
    """For `tacit serve`: what a row is, how many members there are, how long a round waits for them (seconds)."""

    inputs: list[Count] | None = None
    classes: Count | None = None
    label: str = "label"
    nodes: Count = 5
    deadline: Positive = 60.0
