"""The rounds in pfl-research, set up as its own image classification benchmark is.

Every user is a `Dataset` of tensors in memory, which its guide "Fast distributed simulations" calls the fastest. To
share a round between processes, as the same guide advises for small models, start this script once for each process
with `PFL_WORKER_ADDRESSES` and `PFL_WORKER_RANK` set; nothing here changes.
"""

import os

os.environ.setdefault("PFL_PYTORCH_DEVICE", "cpu")

import numpy as np
import protocol
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByUser
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism
from torch import Tensor, nn
from torch_loop import loss, make_clients, make_layers

NO_EVALUATION = 10**9


class Network(nn.Sequential):
    """A network with the two methods that pfl asks for."""

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return loss(self, x, y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        with torch.no_grad():
            return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


def make_users(model: str) -> FederatedDataset:
    users = list(zip(*make_clients(model), strict=True))
    return FederatedDataset.from_slices(users, get_user_sampler("random", range(len(users))))


def make_model(model: str) -> PyTorchModel:
    network = Network(*make_layers(model))
    central_optimizer = torch.optim.SGD(network.parameters(), lr=protocol.SERVER_RATE)
    return PyTorchModel(network, local_optimizer_create=torch.optim.SGD, central_optimizer=central_optimizer)


def make_backend(model: str) -> SimulatedBackend:
    users = make_users(model)
    mechanism = GaussianMechanism(protocol.training(model).clip, relative_noise_stddev=protocol.NOISE_MULTIPLIER)
    return SimulatedBackend(
        training_data=users,
        val_data=users,
        postprocessors=[WeightByUser(), CentrallyAppliedPrivacyMechanism(mechanism)],
    )


def build(model: str) -> protocol.Round:
    np.random.seed(protocol.SEED)  # noqa: NPY002 - pfl draws users and noise from here, alike in every process
    backend, how = make_backend(model), protocol.training(model)
    trained = make_model(model)
    algorithm = FederatedAveraging()
    training = NNTrainHyperParams(
        local_batch_size=how.batch,
        local_num_epochs=how.epochs,
        local_learning_rate=how.rate,
    )
    rounds = 0

    def one_round() -> None:
        """`run` goes on from where it stopped: ask it for one round more than it has done."""
        nonlocal rounds
        rounds += 1
        plan = NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=NO_EVALUATION,
            train_cohort_size=how.cohort,
            val_cohort_size=None,
        )
        algorithm.run(plan, backend, trained, training, send_metrics_to_platform=False)

    return one_round


if __name__ == "__main__":
    protocol.run("pfl", build, torch.set_num_threads, ("pfl", "torch", "numpy"))
