"""What a federation hands out when it has ended: the shared model to the server, to each member its own.

Each side writes its folder by itself, from what it has anyway: no model is sent for it, and no personal one leaves.
"""

import os
import shutil
from pathlib import Path

from torch import nn

from tacit.core import tree
from tacit.core.contract import Shared
from tacit.core.files import storage
from tacit.errors import TacitError
from tacit.experiments.build import build_model, build_privacy
from tacit.experiments.config import Config
from tacit.experiments.trained import ModelConfig, model_card, save_models
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.protocol.terms import Terms
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import statement
from tacit.rounds.assemble import Assembled
from tacit.rounds.predict import module_of, with_leaves


def save_shared(folder: Path, made: Assembled, config: Config, terms: Terms, view: Shared, ledger: Ledger) -> Path:
    """The model that all have trained; what a plan promised holds for it."""
    return _save(folder, made, config, terms, view, ledger, None)


def save_personal(folder: Path, made: Assembled, config: Config, terms: Terms, name: str, store: ClientStore) -> Path:
    """The shared model and this member's own, adapted on its rows. It is for the member alone: it has seen its rows."""
    engine, view = made.engine, tree.split(store.view(terms.run))
    first, rounds = engine.method.join(view, engine.start), engine.plan.setting.rounds
    state = store.state(terms.run, rounds, first)
    network = build_model(config, terms.inputs, terms.classes)
    personal = module_of(engine, view, rounds, state, terms.place(name), network)
    with store.ledger() as ledger:
        return _save(folder, made, config, terms, view, ledger, (name, personal))


def _save(
    folder: Path,
    made: Assembled,
    config: Config,
    terms: Terms,
    view: Shared,
    ledger: Ledger,
    personal: tuple[str, nn.Module] | None,
) -> Path:
    """Whole or not at all: a folder of another name takes its place."""
    if made.engine.method.gather:
        raise TacitError(f"{type(made.engine.method).__name__} trains no shared model: nothing to save")
    network = build_model(config, terms.inputs, terms.classes)
    what = ModelConfig.of(made.engine, network, [] if personal is None else [personal[0]])
    card = model_card(what, f"{config.name}, a federation of {len(terms.roster)} members", _promises(config, ledger))
    fresh = folder.with_name(f"{folder.name}.new")
    with storage(folder):
        shutil.rmtree(fresh, ignore_errors=True)
        save_models(fresh, what, card, with_leaves(network, view.model), [] if personal is None else [personal])
        shutil.rmtree(folder, ignore_errors=True)
        os.replace(fresh, folder)
    return folder


def _promises(config: Config, ledger: Ledger) -> list[str]:
    """A line for each account that this side's ledger has, and one for each level that promises nothing."""
    open_levels = [level for level in build_privacy(config).levels if not level.private]
    spent = [f"{line.scope}: {line.words}" for line in statement(ledger)]
    return spent + [f"level:{level.name}: {level.guarantee}" for level in open_levels]
