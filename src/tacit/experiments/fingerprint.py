"""What makes a run the run it is: a digest of its data, start, method, privacy and training.

It is keyed by a secret of the run's folder (`runs.Folder.key`): a folder's configuration, its page and its ledger show
the digest, and without the key nobody can test with it whether a client's rows are these or those.
"""

from typing import Any

from torch import nn

from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.models.functional import Objective
from tacit.models.losses import contents
from tacit.rounds.assemble import Privacy, Training
from tacit.rounds.loop import Schedule
from tacit.simulation.fingerprint import data_parts, digest, plain

_BYTES = 8


def describe(
    federation: FederatedDataset,
    model: nn.Module,
    method: Method,
    privacy: Privacy,
    training: Training,
    schedule: Schedule,
    *,
    key: bytes,
    objective: Objective = Objective(),
) -> dict[str, Any]:
    """A run that was put together in Python, as the tables of a configuration. Equal for equal runs and keys only."""
    asked = {"loss": objective.loss, "metrics": objective.metrics}
    task = {name: plain(_contents(value)) for name, value in asked.items() if value}
    content = {
        "name": federation.name,
        "data": {
            "name": federation.name,
            "clients": federation.clients,
            "digest": digest(data_parts(federation), key, _BYTES),
        },
        "model": {"class": type(model).__name__, "digest": model_digest(model)},
        "method": {"value": plain(method)},
        "privacy": {"value": _privacy(privacy)},
        "training": {"value": plain(training)},
        "evaluate": {"every": schedule.evaluate_every, "sample": schedule.sample or "all"},
    }
    return content | ({"task": task} if task else {})


def _contents(value: Any) -> Any:
    return tuple(map(contents, value)) if isinstance(value, tuple) else contents(value)


def identity(
    federation: FederatedDataset,
    model: nn.Module,
    method: Method,
    privacy: Privacy,
    training: Training,
    *,
    key: bytes,
    objective: Objective = Objective(),
) -> str:
    """Changes with anything that changes the trained models; not with how the machine is used (`Performance`)."""
    parts = [plain(method), _privacy(privacy), plain(training)]
    parts += [] if objective.loss is None else [plain(contents(objective.loss))]
    return digest([*data_parts(federation), model_digest(model), *parts], key, _BYTES)


def _privacy(privacy: Privacy) -> str:
    evaluation = "" if privacy.evaluation is None else plain(privacy.evaluation)
    return plain(privacy) + evaluation + " exactly" * (privacy.noise == "exact")


def model_digest(model: nn.Module) -> str:
    """Of the public start."""
    named = model.state_dict()
    return digest([type(model).__name__, *named, *named.values()], size=_BYTES)
