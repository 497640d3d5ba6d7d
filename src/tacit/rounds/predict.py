"""What a client's personal model says of new rows."""

from difflib import get_close_matches
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from tacit.data.dataset import as_input
from tacit.errors import TacitError
from tacit.rounds.loop import Run
from tacit.simulation.chunks import Inputs

OWN_ROWS: Final = 256  # training rows that a client's batch statistics are taken from, as in the evaluation


def outputs(run: Run, client: str, x: Any) -> Tensor:
    """Outputs of a client's personal model, [rows, classes]; adapted on its training data, never on `x`."""
    engine, view, round = run.engine, run.progress.server.view, run.progress.round
    rows, who = _rows(x, engine.federation.x), np.array([_position(run, client)])
    held = engine.federation.rows(int(who[0]))
    own, _ = engine.federation.take(torch.arange(held.start, min(held.stop, held.start + OWN_ROWS)))
    task = engine.task.with_rows(own, torch.ones(len(own), dtype=torch.bool))
    first = engine.method.join(view, engine.start)
    inputs = engine.inputs_for(run.store.read(who, first), who, round, "adapt")
    full = inputs.full

    def one(given: Inputs) -> Tensor:
        site, _ = engine.site(engine.task, given, round, full)
        state = engine.method.adapt(view, given.state, site)
        return engine.method.predict(task, view, state, rows)

    return vmap(one)(inputs)[0]


def _position(run: Run, client: str) -> int:
    ids = run.engine.federation.ids
    if client not in ids:
        near = get_close_matches(str(client), ids, 1)
        hint = f"did you mean '{near[0]}'?" if near else f"ids are like '{ids[0]}'"
        raise TacitError(f"there is no client '{client}' among the {len(ids):,}: {hint}")
    return ids.index(client)


def _rows(x: Any, like: Tensor) -> Tensor:
    rows = x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))
    if tuple(rows.shape[1:]) != tuple(like.shape[1:]) or rows.dim() == 0:
        raise TacitError(
            f"rows to predict have shape {tuple(rows.shape)}: give [rows, {', '.join(map(str, like.shape[1:]))}]"
        )
    scaled = as_input(rows)
    return scaled.to(like.dtype) if like.is_floating_point() else scaled
