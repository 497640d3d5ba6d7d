"""From the terms of a run, and the rows that one side has, to a checked and calibrated federation.

The experiment in the terms is a server's text, and holds what `PERMITTED` lets a server say, no more.

What a server may say to its members in an experiment: every key is named here, and members refuse any other.

No key of `PERMITTED` opens a file, calls a network, starts a process or chooses a device; values are numbers, or names
that Tacit's own registries know. A key that is new to experiments is refused until somebody has looked at it.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import Any, Final

from tacit import models
from tacit.core.contract import Method
from tacit.data.dataset import LocalView
from tacit.errors import TacitError
from tacit.experiments.build import build_privacy, build_training, method_of, model_options
from tacit.experiments.config import Config, full, parse
from tacit.experiments.toml import dumps
from tacit.federation.protocol.terms import (
    Participant,
    Rows,
    Terms,
    checked_rows,
    public_view,
    with_own_rows,
)
from tacit.rounds.assemble import Assembled, Privacy, Training, assemble
from tacit.sampling.cohorts import LimitedParticipation

PERMITTED: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        "name", "rounds", "seed", "rate", "cohort", "times", "batch", "epochs", "steps",
        "model", "method", "privacy", "levels", "evaluate", "run",
    ),
    "model": ("name", "hidden", "norm", "activation", "transform"),
    "model.transform": ("function", "scale", "shift", "alpha", "beta"),
    "method": (
        "name", "lr", "momentum", "weight_decay", "decay", "strength", "personal_lr", "prior", "spread", "psi",
        "psi_lr", "floor", "most", "distil", "distillation", "alpha", "beta", "adaptive", "rate", "inner",
        "inner_steps", "hessian", "components", "keep", "first", "pace", "base", "loss", "covariance", "ridge",
        "start", "xi", "solver", "finish", "intercept", "noisy", "server",
    ),
    "method.server": ("name", "lr", "momentum", "beta1", "beta2", "epsilon"),
    "privacy": (
        "plan", "clip", "ratio", "horizon", "project", "participations", "bound", "extra_bound", "seen", "least",
        "bits", "budget", "threshold", "accountant", "allow_large_delta",
    ),
    "privacy.clip": ("start", "target", "speed", "thrift"),
    "levels.*": ("epsilon", "delta", "noise"),
    "evaluate": ("every", "deployment", "share"),
    "run": ("dtype",),
}  # fmt: skip
"""By table. A level may have any name."""
LEFT_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("data", "choices", "federation", "changes", "devices"),
    "privacy": ("secure_sum", "noise"),
    "evaluate": ("sample", "heterogeneity"),
    "run": ("checkpoint_every", "chunk", "threads", "engine", "device", "compile"),
}
"""By table, what concerns simulations or the server alone."""


def for_members(content: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    """An experiment without what members are not sent."""
    kept = {key: value for key, value in content.items() if key not in LEFT_OUT.get(table, ())}
    return {key: for_members(value, key) if isinstance(value, Mapping) else value for key, value in kept.items()}


def check_keys(content: Mapping[str, Any], table: str = "") -> None:
    """Refuses an experiment with a key that a server may not set for its members."""
    known = PERMITTED.get("levels.*" if table.startswith("levels.") else table, ())
    for key, value in content.items():
        where = f"{table}.{key}" if table else key
        if table != "levels" and key not in known:
            raise TacitError(f"the experiment has '{where[:60]}', which a server may not set for its members")
        if isinstance(value, Mapping):
            check_keys(value, where)


@cache
def experiment_of(text: str) -> Config:
    """The experiment in the terms; refuses every key that a server may not set for its members."""
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TacitError(f"the experiment in the terms is not TOML: {error}") from error
    check_keys(content)
    return parse(content)


def text_of(config: Config) -> str:
    """What members are sent of an experiment; refuses what would mean something else there than in a simulation."""
    for key in ("devices", "changes"):
        if getattr(config, key) is not None:
            raise TacitError(f"'{key}' is for simulations: leave it out of a federation's experiment")
    if config.privacy.noise == "fast":
        raise TacitError("privacy.noise is 'fast', and a federation's noise is exact: leave it out")
    if config.run.device != "cpu":
        raise TacitError(f"run.device is '{config.run.device}', and members compute on their CPUs: leave it out")
    if config.run.engine != "local":
        raise TacitError(f"run.engine is '{config.run.engine}', and members compute by themselves: leave it out")
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
    config = experiment_of(terms.experiment)
    return _assembled(config, terms, public_view(terms, build_training(config).dtype))


@lru_cache(maxsize=4)  # of a session: the terms are the whole key, and nothing of a client's rows or files is in it
def public_side(terms: Terms, name: str) -> Assembled:
    """A client's side of the federation without its rows: whether there is one follows from the terms alone.

    Checked and calibrated once by a process. Terms that are refused are refused again each time.
    """
    config = experiment_of(terms.experiment)
    return _assembled(config, terms, public_view(terms, build_training(config).dtype, terms.place(name)))


def client_side(made: Assembled, terms: Terms, name: str, rows: Rows) -> Assembled:
    """The same with its rows."""
    public = rows_are_public(experiment_of(terms.experiment))
    return with_own_rows(made, terms.place(name), terms, rows, public)


def seat(config: Config, name: str, level: str, rows: int, key: str = "") -> Participant:
    public = rows_are_public(config)
    return Participant(name, level, checked_rows(rows, True) if public else 0, key)


def _assembled(config: Config, terms: Terms, view: LocalView) -> Assembled:
    method, privacy, training = parts(config)
    chosen = {seat.name: seat.level for seat in terms.roster}
    model = models.build(config.model.name, terms.inputs, terms.classes, **model_options(config.model))
    model = models.initialise(model, config.seed).to(training.dtype)
    sizes = terms.sizes(view, rows_are_public(config))
    return assemble(view, model, method, replace(privacy, choices=chosen), training, sizes)


def parts(config: Config) -> tuple[Method, Privacy, Training]:
    return method_of(config), build_privacy(config), build_training(config)
