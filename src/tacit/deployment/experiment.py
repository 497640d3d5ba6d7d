"""From the terms of a run, and the rows that one side has, to a checked and calibrated federation."""

import tomllib
from dataclasses import replace
from functools import cache

from tacit import models
from tacit.core import Method
from tacit.engine.assemble import Assembled, Privacy, Training, assemble
from tacit.engine.flower.own import Rows, seen_by, seen_by_server
from tacit.engine.flower.terms import Seat, Terms
from tacit.errors import TacitError
from tacit.experiments.build import build_privacy, build_training, method_of, model_options
from tacit.experiments.config import Config, full, parse
from tacit.experiments.toml import dumps
from tacit.federation.data import Federation
from tacit.federation.rota import Rota
from tacit.privacy.requests import Distributed, Record


@cache
def experiment_of(text: str) -> Config:
    """The experiment in the terms; refuses what has a meaning in simulation only."""
    try:
        config = parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise TacitError(f"the experiment in the terms is not TOML: {error}") from error
    for key in ("devices", "changes"):
        if getattr(config, key) is not None:
            raise TacitError(f"'{key}' is for simulations: leave it out of a federation's experiment")
    if config.privacy.noise == "fast":
        raise TacitError("privacy.noise is 'fast', and a federation's noise is exact: leave it out")
    if config.run.device != "cpu":
        raise TacitError(f"run.device is '{config.run.device}', and members compute on their CPUs: leave it out")
    return config


def text_of(config: Config) -> str:
    return dumps(full(config))


def rows_are_public(config: Config) -> bool:
    """Whether the plan needs everybody to know how many rows each client has. Elsewhere that is data like any other."""
    return isinstance(build_privacy(config).plan, Record)


def evaluates(config: Config) -> bool:
    """Whether members report how good the models are on their own test rows."""
    return config.evaluate.deployment == "noisy"


def plan_name(config: Config) -> str:
    """The plan, by what a level's epsilon limits under it and which account that is."""
    plan, rota = build_privacy(config).plan, isinstance(build_training(config).sampler, Rota)
    limits_readers = isinstance(plan, Distributed) and plan.budget == "released"
    return type(plan).__name__.lower() + "-released" * limits_readers + "-rota" * rota


def server_side(terms: Terms) -> Assembled:
    config = experiment_of(terms.experiment)
    return _assembled(config, terms, seen_by_server(terms, build_training(config).dtype))


def client_side(terms: Terms, name: str, rows: Rows) -> Assembled:
    return _assembled(experiment_of(terms.experiment), terms, seen_by(terms.place(name), terms, rows))


def seat(config: Config, name: str, level: str, rows: int, key: str = "") -> Seat:
    return Seat(name, level, rows if rows_are_public(config) else 0, key)


def _assembled(config: Config, terms: Terms, federation: Federation) -> Assembled:
    method, privacy, training = parts(config)
    chosen = {seat.name: seat.level for seat in terms.roster}
    model = models.build(config.model.name, terms.inputs, terms.classes, **model_options(config.model))
    model = models.initialise(model, config.seed).to(training.dtype)
    sizes = terms.sizes if rows_are_public(config) else None  # else each side knows its own
    return assemble(federation, model, method, replace(privacy, choices=chosen), training, sizes)


def parts(config: Config) -> tuple[Method, Privacy, Training]:
    return method_of(config), build_privacy(config), build_training(config)
