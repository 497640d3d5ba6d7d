"""From a checked configuration to the parts of a run."""

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tacit import methods, models
from tacit.core.contract import Method
from tacit.data import loaders
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.experiments.config import Config
from tacit.experiments.config_errors import nearest
from tacit.experiments.schema import AmongTable, Evaluate, MethodTable, Model, MovingClip, PrivacyTable, Table
from tacit.models.input_transform import NAME
from tacit.privacy.accounting.sampling import Sampler
from tacit.privacy.evaluation import Evaluation
from tacit.privacy.levels import Among, Level, read_choices
from tacit.privacy.mechanisms import MECHANISMS
from tacit.privacy.mechanisms.clipping import Clip, Fixed, Quantile
from tacit.privacy.membership import Change, read_changes
from tacit.privacy.plan import Mechanism
from tacit.rounds.assemble import Privacy, Training, default_plan
from tacit.rounds.loop import Schedule
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import FixedSize, LimitedParticipation, Poisson

_FOR_ALL = {"plan", "accountant", "allow_large_delta", "noise"}
_SGD = ("lr", "momentum", "weight_decay", "decay")
_FEEDS = {
    "local": _SGD,
    "personal": (*_SGD, "personal_lr"),
    "tuning": (*_SGD, "personal_lr"),
    "optimizer": ("server",),
    "names": ("keep",),
    "prior": ("prior", "strength", "components", "spread"),
}
"""Which keys of the file feed a field of a method; other fields have the key of their own name."""
_BASES = ("fedavg", "scaffold")


class Parts(NamedTuple):
    federation: FederatedDataset
    model: nn.Module
    method: Method
    privacy: Privacy
    training: Training
    schedule: Schedule


def build(config: Config) -> Parts:
    """Every part of the run, from the configuration and its seed alone; a `TacitError` where parts do not fit."""
    method, privacy = method_of(config), build_privacy(config)
    training = build_training(config)
    schedule = Schedule(**_given(config.evaluate, every="evaluate_every", deployment="", share=""))
    federation = load_data(config)
    model = models.build(config.model.name, federation.input_shape, federation.classes, **model_options(config.model))
    model = models.initialise(model, config.seed).to(training.dtype)
    schedule = dataclasses.replace(schedule, checkpoint_every=config.run.checkpoint_every)
    return Parts(federation, model, method, privacy, training, schedule)


def method_of(config: Config) -> Method:
    """The method of an experiment."""
    return build_method(_keeping(config))


def model_options(table: Model) -> dict[str, Any]:
    options = _given(table, name="")
    return options if table.transform is None else options | {"transform": _given(table.transform)}


def _keeping(config: Config) -> MethodTable:
    """A transform is personal: it is kept local, whatever else is. A method that shares nothing keeps it anyway."""
    table = config.method
    if config.model.transform is None or table.name == "local-only" or NAME in (table.keep or []):
        return table
    return table.model_copy(update={"keep": [*(table.keep or []), NAME]})


def load_data(config: Config) -> FederatedDataset:
    options = {"seed": config.seed, **_given(config.data, source="")}
    if config.data.normalise is not None:
        options["normalise"] = _given(config.data.normalise)
    if options.get("client") == "":  # TOML has no word for nothing: a table without a column of clients
        options["client"] = None
    return loaders.load(config.data.source, **options)


def build_training(config: Config) -> Training:
    return Training(
        rounds=config.rounds,
        sampler=_sampler(config),
        batch=config.batch,
        epochs=config.epochs,
        steps=config.steps,
        seed=config.seed,
        chunk=config.run.chunk,
        engine=config.run.engine,
        device=config.run.device,
        compile=config.run.compile,
        devices=Availability(**(_given(config.devices) if config.devices else {})),
        dtype={"float32": torch.float32, "float64": torch.float64}[config.run.dtype],
    )


def _sampler(config: Config) -> Sampler:
    if config.cohort is None:
        return Poisson(config.rate or 0.1)
    return FixedSize(config.cohort) if config.times is None else LimitedParticipation(config.cohort, config.times)


def build_method(table: MethodTable) -> Method:
    """The method of that name; `keep` wraps any of them. A key that it would not use is an error."""
    given = _given(table, name="")
    if table.name == "keep-local":
        method = build_method(table.model_copy(update={"name": table.base or "fedavg", "base": None}))
        if "keep" not in given:
            raise TacitError('keep-local needs the parameters to keep: add method.keep, for example keep = ["norm"]')
        return method
    kept, schedule = given.pop("keep", None), {name: given.pop(name) for name in ("first", "pace") if name in given}
    if schedule and not kept:
        name, value = next(iter(schedule.items()))
        raise TacitError(
            f'method.{name} is {value:g}, and nothing is kept: add method.keep, for example keep = ["head"]'
        )
    accepted = accepts(table.name)
    for key, value in given.items():
        if key not in accepted:
            raise TacitError(
                f"method.{key} is {value!r}, and '{table.name}' does not use it: leave it out, or use {_users(key)}"
            )
    method = _method(table.name, table)
    return methods.KeepLocal(tuple(kept), method, **schedule) if kept else method


def accepts(name: str) -> list[str]:
    """The keys of [method] that a method uses, beside `keep` and `first`."""
    if name not in methods.REGISTRY:
        raise TacitError(f"method.name is '{name}': {nearest(name, list(methods.REGISTRY))}")
    keys: list[str] = []
    for field in _fields(name):
        keys += _FEEDS.get(field, (field,))
        keys += accepts(_BASES[0]) if field == "base" else []
    return [key for key in dict.fromkeys(keys) if key in MethodTable.model_fields]


def _fields(name: str) -> list[str]:
    made: Any = methods.REGISTRY[name]
    return [field.name for field in dataclasses.fields(made)]


def _users(key: str) -> str:
    return ", ".join(name for name in methods.REGISTRY if key in accepts(name)) or "another method"


def _method(name: str, table: MethodTable) -> Method:
    sgd = {key: getattr(table, key) for key in _SGD if getattr(table, key) is not None}
    own = sgd if table.personal_lr is None else sgd | {"lr": table.personal_lr}
    made = {
        "local": lambda: methods.LocalSgd(**sgd),
        "personal": lambda: methods.LocalSgd(**own),
        "tuning": lambda: methods.LocalSgd(**own),
        "optimizer": lambda: _server(table),
        "base": lambda: _base(table),
        "prior": lambda: _prior(table),
    }
    values = {field: made[field]() for field in _fields(name) if field in made}
    plain = {field: _plain(getattr(table, field, None)) for field in _fields(name) if field not in made}
    return methods.REGISTRY[name](**values, **{field: value for field, value in plain.items() if value is not None})


def _prior(table: MethodTable) -> methods.Prior:
    name = table.prior or "l2"
    kind: Any = methods.PRIORS[name]
    known = [field.name for field in dataclasses.fields(kind)]
    given = {key: getattr(table, key) for key in _FEEDS["prior"][1:] if getattr(table, key) is not None}
    for key, value in given.items():
        if key not in known:
            raise TacitError(f"method.{key} is {value!r}, and the prior '{name}' does not use it: leave it out")
    return kind(**given)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _base(table: MethodTable) -> Method:
    name = table.base or _BASES[0]
    if name not in _BASES:
        raise TacitError(f"method.base is '{name}': {nearest(name, list(_BASES))}")
    for key in ("momentum", "weight_decay", "decay"):
        if name == "scaffold" and getattr(table, key) is not None:
            raise TacitError(f"method.{key} is {getattr(table, key)!r}, and scaffold does not use it: leave it out")
    return _method(name, table)


def _server(table: MethodTable) -> methods.ServerSgd | methods.ServerAdam:
    if table.server is None:
        return methods.ServerSgd()
    kind = {"sgd": methods.ServerSgd, "adam": methods.ServerAdam}[table.server.name]
    if "scaffold" in (table.name, table.base) and kind is methods.ServerAdam:
        raise TacitError("method.server.name is 'adam', and scaffold steps by 'sgd': use that")
    known = [field.name for field in dataclasses.fields(kind)]
    given = _given(table.server, name="")
    for key in given:
        if key not in known:
            raise TacitError(f"method.server.{key} is not for '{table.server.name}': use {', '.join(known)}")
    return kind(**given)


def build_privacy(config: Config) -> Privacy:
    """Levels in the order of the file. Private levels under the plan `open` are refused: it would add no noise."""
    levels = tuple(Level(name, **_given(table)) for name, table in config.levels.items()) or (Level("open"),)
    private = [level.name for level in levels if level.private]
    default = default_plan(levels)
    name = config.privacy.plan or default.name
    if name == "open" and private and config.method.name != "local-only":
        raise TacitError(
            f"privacy.plan is 'open', which adds no noise, so level '{private[0]}' would have no guarantee: "
            "use plan 'grouped', or leave out its epsilon"
        )
    if name != "open" and not private:
        raise TacitError(
            f"privacy.plan is '{name}', but no level has an epsilon or a noise, so nobody would be protected: "
            "add [levels] private = { epsilon = 3.6, delta = 1e-4 }, or use plan 'open'"
        )
    return Privacy(
        plan=_plan(name, config.privacy),
        levels=levels,
        choices=_choices(config),
        accountant=config.privacy.accountant,
        allow_large_delta=config.privacy.allow_large_delta,
        changes=_changes(config),
        evaluation=_evaluation(config.evaluate),
        noise=config.privacy.noise or "fast",
    )


def _evaluation(table: Evaluate) -> Evaluation | None:
    """Of the members of a deployment. A simulation looks at everybody, and is calibrated as if it did not."""
    if table.deployment == "noisy":
        return Evaluation(**_given(table, deployment="", sample="", heterogeneity=""))
    if table.share is not None:
        raise TacitError(f"evaluate.share is {table.share:g}, which needs evaluate.deployment = 'noisy': add it")
    return None


def _choices(config: Config) -> Any:
    if isinstance(config.choices, str):
        return read_choices(Path(config.choices))
    return {
        name: Among(wish.share, wish.holding) if isinstance(wish, AmongTable) else wish
        for name, wish in config.choices.items()
    }


def _changes(config: Config) -> tuple[Change, ...]:
    if isinstance(config.changes, str):
        return read_changes(Path(config.changes))
    tables = config.changes or []
    return tuple(Change(table.round, client, table.level) for table in tables for client in table.clients)


def _plan(name: str, table: PrivacyTable) -> Mechanism:
    request = MECHANISMS[name]
    known = [field.name for field in dataclasses.fields(request)]
    given = {key: value for key, value in _given(table).items() if key not in _FOR_ALL}
    for key in given:
        if key not in known:
            others = ", ".join(other for other, kind in MECHANISMS.items() if key in kind.__dataclass_fields__)
            raise TacitError(
                f"privacy.{key} is {given[key]!r}, and plan '{name}' does not use it: leave it out, or use {others}"
            )
    if table.clip is not None:
        given["clip"] = _clip(table.clip)
    return request(**given)


def _clip(value: float | MovingClip) -> Clip:
    return Quantile(**_given(value, start="bound")) if isinstance(value, MovingClip) else Fixed(value)


def _given(table: Table, **renamed: str) -> dict[str, Any]:
    """The keys that have a value, under their own name, a new one, or ('') not at all."""
    values = {key: value for key, value in table.model_dump().items() if value is not None}
    return {renamed.get(key, key): value for key, value in values.items() if renamed.get(key, key)}
