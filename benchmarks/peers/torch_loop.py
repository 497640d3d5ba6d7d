"""The same rounds as a plain PyTorch loop: one client after another, `nn.Module` and `torch.optim.SGD`.

Also home of the data and the networks, so that every system trains the same.
"""

import math

import protocol
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def make_clients(model: str) -> tuple[Tensor, Tensor]:
    """Random images [clients, images, 1, 28, 28] and labels [clients, images], the same on every call."""
    generator = torch.Generator().manual_seed(protocol.SEED)
    each = (protocol.CLIENTS, protocol.IMAGES_PER_CLIENT)
    images = torch.rand(*each, 1, protocol.IMAGE_SIDE, protocol.IMAGE_SIDE, generator=generator)
    labels = torch.randint(protocol.CLASSES[model], each, generator=generator)
    return images, labels


def make_layers(model: str) -> list[nn.Module]:
    """The layers of a network, from images to logits."""
    torch.manual_seed(protocol.SEED)
    if model == "mlp":
        return [nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, protocol.CLASSES[model])]
    if model == "writers":
        convolutions = [nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)]
        return [*convolutions, nn.Flatten(), nn.Linear(64 * 12 * 12, 128), nn.ReLU(), nn.Linear(128, 62)]
    convolutions = [
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
    ]
    dense = [nn.Linear(256, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, protocol.CLASSES[model])]
    return [*convolutions, nn.Flatten(), *dense]


def train_locally(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Plain SGD over one client's data, in place."""
    optimizer = torch.optim.SGD(network.parameters(), lr=protocol.LOCAL_RATE)
    batches = list(zip(images.split(protocol.BATCH), labels.split(protocol.BATCH), strict=True))
    for _ in range(protocol.LOCAL_EPOCHS):
        for batch_images, batch_labels in batches:
            optimizer.zero_grad()
            cross_entropy(network(batch_images), batch_labels).backward()
            optimizer.step()


def build(model: str) -> protocol.Round:
    images, labels = make_clients(model)
    network = nn.Sequential(*make_layers(model))
    parameters = list(network.parameters())
    state = parameters_to_vector(parameters).detach().clone()

    def one_round() -> None:
        total = torch.zeros_like(state)
        for client in torch.randperm(protocol.CLIENTS)[: protocol.COHORT[model]].tolist():
            vector_to_parameters(state.clone(), parameters)
            train_locally(network, images[client], labels[client])
            update = parameters_to_vector(parameters).detach() - state
            total += update * min(1.0, protocol.CLIP_NORM / max(float(update.norm()), math.ulp(1.0)))
        total += torch.randn_like(total) * (protocol.NOISE_MULTIPLIER * protocol.CLIP_NORM)
        state.add_(total, alpha=protocol.SERVER_RATE / protocol.COHORT[model])

    return one_round


if __name__ == "__main__":
    protocol.run("loop", build, torch.set_num_threads, ("torch",))
