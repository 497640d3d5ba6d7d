"""From the terms of a run, and the rows that one side has, to a checked and calibrated federation.

The experiment in the terms is a server's text, and holds what `permitted.py` lets a server say, no more.
"""

import tomllib
from dataclasses import replace
from functools import cache

from tacit import models
from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.errors import TacitError
from tacit.experiments.build import build_privacy, build_training, method_of, model_options
from tacit.experiments.config import Config, full, parse
from tacit.experiments.toml import dumps
from tacit.federation.protocol.local_view import Rows, seen_by_anybody, seen_by_server, with_own_rows
from tacit.federation.protocol.terms import Participant, Terms, checked_rows
from tacit.federation.service.permitted import check_keys, for_members
from tacit.privacy.mechanisms.requests import Distributed, Record
from tacit.rounds.assemble import Assembled, Privacy, Training, assemble
from tacit.sampling.limited_participation import LimitedParticipation


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
    return isinstance(build_privacy(config).plan, Record)


def evaluates(config: Config) -> bool:
    """Whether members report how good the models are on their own test rows."""
    return config.evaluate.deployment == "noisy"


def plan_name(config: Config) -> str:
    """The plan, by what a level's epsilon limits under it and which account that is."""
    plan, rota = build_privacy(config).plan, isinstance(build_training(config).sampler, LimitedParticipation)
    limits_readers = isinstance(plan, Distributed) and plan.budget == "released"
    return type(plan).__name__.lower() + "-released" * limits_readers + "-rota" * rota


def server_side(terms: Terms) -> Assembled:
    config = experiment_of(terms.experiment)
    return _assembled(config, terms, seen_by_server(terms, build_training(config).dtype))


def public_side(terms: Terms, name: str) -> Assembled:
    """A client's side of the federation without its rows: whether there is one follows from the terms alone."""
    config = experiment_of(terms.experiment)
    return _assembled(config, terms, seen_by_anybody(terms.place(name), terms, build_training(config).dtype))


def client_side(made: Assembled, terms: Terms, name: str, rows: Rows) -> Assembled:
    """The same with its rows."""
    public = rows_are_public(experiment_of(terms.experiment))
    return with_own_rows(made, terms.place(name), terms, rows, public)


def seat(config: Config, name: str, level: str, rows: int, key: str = "") -> Participant:
    public = rows_are_public(config)
    return Participant(name, level, checked_rows(rows, True) if public else 0, key)


def _assembled(config: Config, terms: Terms, federation: FederatedDataset) -> Assembled:
    method, privacy, training = parts(config)
    for seat in terms.roster:
        checked_rows(seat.rows, rows_are_public(config))
    chosen = {seat.name: seat.level for seat in terms.roster}
    model = models.build(config.model.name, terms.inputs, terms.classes, **model_options(config.model))
    model = models.initialise(model, config.seed).to(training.dtype)
    sizes = terms.sizes if rows_are_public(config) else None  # else each side knows its own
    return assemble(federation, model, method, replace(privacy, choices=chosen), training, sizes)


def parts(config: Config) -> tuple[Method, Privacy, Training]:
    return method_of(config), build_privacy(config), build_training(config)
