"""Methods by name. Being registered here is all it takes to be tested by the conformance suite."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tacit.core import Method
from tacit.methods.ditto import Ditto
from tacit.methods.fedavg import FedAvg
from tacit.methods.fine_tuned import FineTuned
from tacit.methods.keep_local import KeepLocal
from tacit.methods.local_only import LocalOnly
from tacit.methods.optim import LocalSgd, ServerAdam, ServerSgd
from tacit.methods.pp_sgd import PPSgd
from tacit.methods.scaffold import Scaffold

REGISTRY: Mapping[str, Callable[..., Method]] = MappingProxyType(
    {
        "fedavg": FedAvg,
        "local-only": LocalOnly,
        "fine-tuned": FineTuned,
        "ditto": Ditto,
        "scaffold": Scaffold,
        "keep-local": KeepLocal,
        "pp-sgd": PPSgd,
    }
)

__all__ = [
    "REGISTRY",
    "Ditto",
    "FedAvg",
    "FineTuned",
    "KeepLocal",
    "LocalOnly",
    "LocalSgd",
    "Method",
    "PPSgd",
    "Scaffold",
    "ServerAdam",
    "ServerSgd",
]
