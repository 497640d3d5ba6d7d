"""The record-level rounds with Opacus, one client after another: DP-SGD by its own modules and optimizers.

`dnn` stores every example's gradient, as `PrivacyEngine` does unless told otherwise; `dnn-ghost` is its ghost clipping.
The module is wrapped once, which spares Opacus the engine's set-up for each client.
"""

# pyright: reportMissingImports=false
import protocol
import torch
from opacus.grad_sample import GradSampleModule
from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer
from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters


def make_network() -> nn.Module:
    torch.manual_seed(protocol.SEED)
    widths = (protocol.IMAGE_SIDE**2, *protocol.RECORD_HIDDEN, protocol.RECORD_CLASSES)
    layers = [layer for a, b in zip(widths, widths[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]  # noqa: B905, RUF007
    return nn.Sequential(nn.Flatten(), *layers[:-1])


def make_clients() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(protocol.SEED)
    each = (protocol.RECORD_CLIENTS, protocol.RECORD_ROWS)
    images = torch.rand(*each, protocol.IMAGE_SIDE, protocol.IMAGE_SIDE, generator=draw)
    return images, torch.randint(protocol.RECORD_CLASSES, each, generator=draw)


def build(model: str) -> protocol.Round:
    images, labels = make_clients()
    ghost = model == "dnn-ghost"
    network = make_network()
    wrapped = (
        GradSampleModuleFastGradientClipping(network, max_grad_norm=protocol.CLIP_NORM)
        if ghost
        else GradSampleModule(network)
    )
    parameters = list(wrapped.parameters())
    kind = DPOptimizerFastGradientClipping if ghost else DPOptimizer
    optimizer = kind(
        torch.optim.SGD(parameters, lr=protocol.LOCAL_RATE),
        noise_multiplier=protocol.NOISE_MULTIPLIER,
        max_grad_norm=protocol.CLIP_NORM,
        expected_batch_size=protocol.RECORD_BATCH,
    )
    loss = nn.CrossEntropyLoss()
    if ghost:
        loss = DPLossFastGradientClipping(wrapped, optimizer, loss)
    state = parameters_to_vector(parameters).detach().clone()

    several = protocol.RECORD_CLIENTS // protocol.OPACUS_SHARE

    def one_round() -> float:
        """A share of the clients: they train one after the other, so that all of them take as many times as long."""
        total = torch.zeros_like(state)
        for x, y in zip(images[:several], labels[:several]):  # noqa: B905
            vector_to_parameters(state.clone(), parameters)
            for _ in range(protocol.RECORD_ROWS // protocol.RECORD_BATCH):
                drawn = torch.rand(len(y)) < protocol.RECORD_BATCH / len(y)
                optimizer.zero_grad()
                loss(wrapped(x[drawn]), y[drawn]).backward()
                optimizer.step()
            total += parameters_to_vector(parameters).detach() - state
        state.add_(total, alpha=1 / several)
        return several / protocol.RECORD_CLIENTS

    return one_round


if __name__ == "__main__":
    protocol.run("opacus", build, torch.set_num_threads, ("opacus", "torch"), ("dnn", "dnn-ghost"))
