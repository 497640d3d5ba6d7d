"""Methods by name. Being registered here is all it takes to be tested by the conformance suite."""

from collections.abc import Callable

from tacit.core.contract import Method
from tacit.core.registry import Registry
from tacit.methods.adaped import AdaPeD, AdaPeDAlone
from tacit.methods.apfl import APFL
from tacit.methods.ditto import Ditto
from tacit.methods.fedavg import FedAvg
from tacit.methods.feddyn import FedDyn
from tacit.methods.fedem import FedEM
from tacit.methods.fedprox import FedProx
from tacit.methods.fine_tuned import FineTuned
from tacit.methods.ifca import IFCA
from tacit.methods.keep_local import KeepLocal
from tacit.methods.local_only import LocalOnly
from tacit.methods.multitask.method import Multitask
from tacit.methods.mutual import MutualLearning
from tacit.methods.optimizers import LocalSgd, ServerAdam, ServerSgd
from tacit.methods.per_fedavg import PerFedAvg
from tacit.methods.personal import KL, L1, L2, PRIORS, Mixture, Personal, Prior
from tacit.methods.pfedme import PFedMe
from tacit.methods.pp_sgd import PPSgd
from tacit.methods.prototypes import Prototypes
from tacit.methods.quped import QuPeD
from tacit.methods.scaffold import Scaffold

REGISTRY: Registry[Callable[..., Method]] = Registry(
    "method",
    "tacit.methods",
    {
        "fedavg": FedAvg,
        "fedprox": FedProx,
        "feddyn": FedDyn,
        "local-only": LocalOnly,
        "fine-tuned": FineTuned,
        "ditto": Ditto,
        "scaffold": Scaffold,
        "keep-local": KeepLocal,
        "multitask": Multitask,
        "adaped": AdaPeD,
        "adaped-alone": AdaPeDAlone,
        "pfedme": PFedMe,
        "per-fedavg": PerFedAvg,
        "quped": QuPeD,
        "mutual-learning": MutualLearning,
        "fedem": FedEM,
        "ifca": IFCA,
        "apfl": APFL,
        "personal": Personal,
        "pp-sgd": PPSgd,
        "prototypes": Prototypes,
    },
)

__all__ = [
    "APFL",
    "IFCA",
    "KL",
    "L1",
    "L2",
    "PRIORS",
    "REGISTRY",
    "AdaPeD",
    "AdaPeDAlone",
    "Ditto",
    "FedAvg",
    "FedDyn",
    "FedEM",
    "FedProx",
    "FineTuned",
    "KeepLocal",
    "LocalOnly",
    "LocalSgd",
    "Method",
    "Mixture",
    "Multitask",
    "MutualLearning",
    "PFedMe",
    "PPSgd",
    "PerFedAvg",
    "Personal",
    "Prior",
    "Prototypes",
    "QuPeD",
    "Scaffold",
    "ServerAdam",
    "ServerSgd",
]
