"""The same rounds as a plain PyTorch loop: one client after another, `nn.Module` and `torch.optim.SGD`.

Also home of the data and the networks, so that every system trains the same.
"""

import math

import field_models
import protocol
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def make_clients(model: str) -> tuple[Tensor, Tensor]:
    """Random examples [clients, examples, ...] and labels [clients, examples, ...], the same on every call."""
    generator = torch.Generator().manual_seed(protocol.SEED)
    each = protocol.training(model)[:2]
    if model == "words":
        words = torch.randint(protocol.WORDS, (*each, protocol.SENTENCE + 1), generator=generator)
        return words[..., :-1].contiguous(), words[..., 1:].contiguous()
    channels, side = (3, protocol.SIDE) if model in protocol.FIELD else (1, protocol.IMAGE_SIDE)
    images = torch.rand(*each, channels, side, side, generator=generator)
    return images, torch.randint(protocol.CLASSES.get(model, 10), each, generator=generator)


def make_layers(model: str) -> list[nn.Module]:
    """The layers of a network, from examples to logits."""
    torch.manual_seed(protocol.SEED)
    if model in protocol.FIELD:
        return field_models.make_layers(model)
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


def loss(network: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The mean over examples, and over words where each has a label."""
    return cross_entropy(network(x).flatten(0, -2), y.flatten())


def train_locally(network: nn.Module, x: Tensor, y: Tensor, how: protocol.Training) -> None:
    """Plain SGD over one client's data, in place."""
    optimizer = torch.optim.SGD([leaf for leaf in network.parameters() if leaf.requires_grad], lr=how.rate)
    batches = list(zip(x.split(how.batch), y.split(how.batch), strict=True))
    for _ in range(how.epochs):
        for batch_x, batch_y in batches:
            optimizer.zero_grad()
            loss(network, batch_x, batch_y).backward()
            optimizer.step()


def build(model: str) -> protocol.Round:
    how, (x, y) = protocol.training(model), make_clients(model)
    network = nn.Sequential(*make_layers(model))
    parameters = [leaf for leaf in network.parameters() if leaf.requires_grad]
    state = parameters_to_vector(parameters).detach().clone()

    def one_round() -> None:
        total = torch.zeros_like(state)
        for client in torch.randperm(how.clients)[: how.cohort].tolist():
            vector_to_parameters(state.clone(), parameters)
            train_locally(network, x[client], y[client], how)
            update = parameters_to_vector(parameters).detach() - state
            total += update * min(1.0, how.clip / max(float(update.norm()), math.ulp(1.0)))
        total += torch.randn_like(total) * (protocol.NOISE_MULTIPLIER * how.clip)
        state.add_(total, alpha=protocol.SERVER_RATE / how.cohort)

    return one_round


if __name__ == "__main__":
    protocol.run("loop", build, torch.set_num_threads, ("torch",))
