"""From a checked configuration to the parts of a run."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from tacit import methods, models
from tacit.core.contract import Method
from tacit.data import loaders
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.experiments import options
from tacit.experiments.config import PLANS, TRAINING, AmongTable, Config, EvaluateTable, beside, kinds_at
from tacit.experiments.options import Table, keys_of
from tacit.models.functional import Objective
from tacit.models.input_transform import NAME
from tacit.privacy.accounting.sampling import Sampler
from tacit.privacy.evaluation import Evaluation
from tacit.privacy.levels import Among, Level, read_choices
from tacit.privacy.membership import Change, read_changes
from tacit.privacy.plan import Mechanism
from tacit.rounds.assemble import Performance, Privacy, Training, default_plan
from tacit.rounds.loop import Schedule
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import FixedSize, LimitedParticipation, Poisson


class Parts(NamedTuple):
    federation: FederatedDataset
    model: nn.Module
    method: Method
    privacy: Privacy
    training: Training
    schedule: Schedule
    performance: Performance | None = None
    objective: Objective = Objective()


def build(config: Config, federation: FederatedDataset | None = None) -> Parts:
    """Every part of the run, from the configuration and its seed alone; a `TacitError` where parts do not fit.

    `federation`: what `load_data` gave for this configuration, where many runs share it.
    """
    method, privacy = method_of(config), build_privacy(config)
    training, performance = build_training(config), build_performance(config)
    evaluate = values_of(config.evaluate, every="evaluate_every", deployment="", share="", range="")
    schedule = Schedule(**evaluate, checkpoint_every=config.run.checkpoint_every)
    federation = load_data(config) if federation is None else federation
    model = build_model(config, federation.input_shape, federation.classes)
    return Parts(federation, model, method, privacy, training, schedule, performance, build_objective(config))


def build_model(config: Config, inputs: models.Shapes, classes: int) -> nn.Module:
    """The model of an experiment as it starts, drawn from the experiment's seed alone."""
    table = values_of(config.model)
    name, transform = table.pop("name"), table.pop("transform", None)
    if name == "pretrained" and "source" in table:
        table["source"] = beside(config, table["source"])
    make = functools.partial(models.build, name, inputs, classes, transform=transform, seed=config.seed)
    try:
        with models.seeded(config.seed):
            model = make(**table)
    except TacitError as error:
        raise options.blame(error, lambda alone: make(**alone), table, "model") from None
    return models.initialise(model, config.seed).to(_dtype(config))


def load_data(config: Config) -> FederatedDataset:
    table = {"seed": config.seed, **values_of(config.data, source="")}
    if table.get("client") == "":  # TOML has no word for nothing: a table without a column of clients
        table["client"] = None
    if isinstance(path := table.get("path"), str):
        table["path"] = beside(config, path)
    return loaders.load(config.data.source, **table)


def build_objective(config: Config) -> Objective:
    task = config.task
    return Objective() if task is None else Objective(task.loss, tuple(task.metrics or ()))


def build_training(config: Config) -> Training:
    table = config.devices
    devices = Availability() if table is None else options.build(Availability, values_of(table), "devices")
    said = {key: value for key in TRAINING if (value := getattr(config, key)) is not None}
    make = functools.partial(Training, sampler=_sampler(config), devices=devices, dtype=_dtype(config))
    try:
        return make(**said)
    except TacitError as error:
        raise options.blame(error, lambda alone: make(**alone), said, "") from None


def build_performance(config: Config) -> Performance:
    return options.build(Performance, values_of(config.performance), "performance")


def _dtype(config: Config) -> torch.dtype:
    return {"float32": torch.float32, "float64": torch.float64}[config.run.dtype]


def _sampler(config: Config) -> Sampler:
    if config.cohort is None:
        return Poisson(config.rate or 0.1)
    return FixedSize(config.cohort) if config.times is None else LimitedParticipation(config.cohort, config.times)


def method_of(config: Config) -> Method:
    """The method of an experiment. A transform is personal: kept local, unless each client tunes it afterwards."""
    table = values_of(config.method)
    keep = table.get("keep", [])
    tuned = table["name"] == "local-only" or NAME in table.get("only", ())
    personal = values_of(config.model).get("transform") is not None and not tuned
    return build_method(table | {"keep": [*keep, NAME]} if personal and NAME not in keep else table)


def build_method(table: Mapping[str, Any]) -> Method:
    """The method that the table names; `keep` wraps any of them. A key that it would not use is an error."""
    values = dict(table)
    name, kept = values.pop("name"), values.pop("keep", None)
    around = {key: values.pop(key) for key in ("first", "pace") if key in values}
    if name == "keep-local":
        if not kept:
            raise TacitError('keep-local needs the parameters to keep: add method.keep, for example keep = ["norm"]')
        name = values.pop("base", "fedavg")
    if around and not kept:
        key, value = next(iter(around.items()))
        example = 'add method.keep, for example keep = ["head"]'
        raise TacitError(f"method.{key} is {value:g}, and nothing is kept: {example}")
    kind = methods.REGISTRY.find(name)
    _refuse_unused("method", kind, values, {"method": table})
    _refuse_half_used(kind, values)
    method = options.build(kind, values, "method")
    if not callable(getattr(method, "client", None)):
        raise TacitError(f"method.name is '{name}', which makes a {type(method).__name__}: name a method")
    return options.build(methods.KeepLocal, {"names": kept, **around}, "method", base=method) if kept else method


def _refuse_unused(section: str, kind: Any, values: Mapping[str, Any], content: Mapping[str, Any]) -> None:
    known = keys_of(kind, values)
    for key, value in values.items():
        if key not in known:
            kinds = kinds_at([section], content)
            users = [name for name, keys in kinds.keys.items() if key in keys] if kinds else []
            raise TacitError(
                f"{section}.{key} is {value!r}, and {kinds and kinds.here} does not use it: leave it out, or use "
                f"{', '.join(users) or 'another'}"
            )


def _refuse_half_used(kind: Any, values: Mapping[str, Any]) -> None:
    """A key that the usual base would use and the chosen one does not, though another part of the method would."""
    base = options.PARTS[Method].kinds
    if "base" in values and "base" in keys_of(kind):
        lost = keys_of(next(iter(base.values()))).keys() - keys_of(base[values["base"]])
        for key in lost & values.keys():
            raise TacitError(f"method.{key} is {values[key]!r}, and {values['base']} does not use it: leave it out")


def build_privacy(config: Config) -> Privacy:
    """Levels in the order of the file. Private levels under the plan `open` are refused: it would add no noise."""
    levels = tuple(_level(name, values_of(table)) for name, table in config.levels.items()) or (Level("open"),)
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
        plan=_plan(name, values_of(config.privacy, plan="", accountant="", allow_large_delta="", noise="")),
        levels=levels,
        choices=_choices(config),
        accountant=config.privacy.accountant,
        allow_large_delta=config.privacy.allow_large_delta,
        changes=_changes(config),
        evaluation=_evaluation(config.evaluate),
        noise=config.privacy.noise or "fast",
    )


def _level(name: str, values: Mapping[str, Any]) -> Level:
    return options.build(Level, values, f"levels.{name}", name=name)


def _plan(name: str, values: Mapping[str, Any]) -> Mechanism:
    kind = PLANS.find(name)
    _refuse_unused("privacy", kind, values, {"privacy": {"plan": name}})
    return options.build(kind, values, "privacy")


def _evaluation(table: EvaluateTable) -> Evaluation | None:
    """Of the members of a deployment. A simulation looks at everybody, and is calibrated as if it did not."""
    if table.deployment == "noisy":
        return Evaluation(**values_of(table, deployment="", sample="", heterogeneity=""))
    for key, value in (("share", table.share), ("range", table.range)):
        if value is not None:
            raise TacitError(f"evaluate.{key} is {value}, which needs evaluate.deployment = 'noisy': add it")
    return None


def _choices(config: Config) -> Any:
    if isinstance(config.choices, str):
        return read_choices(Path(beside(config, config.choices)))
    return {
        name: Among(wish.share, wish.holding) if isinstance(wish, AmongTable) else wish
        for name, wish in config.choices.items()
    }


def _changes(config: Config) -> tuple[Change, ...]:
    if isinstance(config.changes, str):
        return read_changes(Path(beside(config, config.changes)))
    tables = config.changes or []
    return tuple(Change(table.round, client, table.level) for table in tables for client in table.clients)


def values_of(table: Table, **renamed: str) -> dict[str, Any]:
    """The keys that have a value, under their own name, a new one, or ('') not at all."""
    values = table.model_dump(exclude_none=True)
    return {renamed.get(key, key): value for key, value in values.items() if renamed.get(key, key)}
