"""Batch normalisation that keeps its statistics outside the module, as values that go in and come out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Moments = tuple[Tensor, Tensor]
"""Mean and variance of each channel, [channels]."""
Rule = Callable[[str, Tensor], Moments]
"""(name of the layer, its input) -> the moments to normalise with."""


def moments(x: Tensor, mask: Tensor) -> Moments:
    """Of each channel over the real rows, with population variance; (0, 1) when no row is real."""
    channels = x.transpose(0, 1).flatten(2) if x.dim() > 2 else x.T.unsqueeze(-1)  # [channels, rows, places]
    weight = mask.to(x.dtype)[:, None]
    count = weight.sum() * channels.shape[2]
    share = 1 / count.clamp(min=1)
    mean = (channels * weight).sum((1, 2)) * share
    spread = ((channels - mean[:, None, None]).square() * weight).sum((1, 2)) * share
    return mean, torch.where(count > 0, spread, torch.ones_like(spread))


def _of_batch(_: str, x: Tensor) -> Moments:
    places = [0, *range(2, x.dim())]
    mean = x.mean(places)
    return mean, (x - _across(mean, x)).square().mean(places)


def _across(values: Tensor, x: Tensor) -> Tensor:
    """Shaped so that channel `c` of `x` meets `values[c]`."""
    return values.reshape(-1, *[1] * (x.dim() - 2))


class LocalNorm(nn.Module):
    """Stands in for a batch normalisation layer with the same parameters, and without buffers.

    It normalises by the statistics of the batch unless `using` hands it others. A batch of one row is allowed.
    """

    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: _BatchNorm, name: str) -> None:
        super().__init__()
        self.register_parameter("weight", layer.weight)
        self.register_parameter("bias", layer.bias)
        self.eps, self.name = layer.eps, name
        self.rule: Rule = _of_batch

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.rule(self.name, x)
        scale = (variance + self.eps).rsqrt()
        if self.weight is None or self.bias is None:
            return (x - _across(mean, x)) * _across(scale, x)
        return (x - _across(mean, x)) * _across(scale * self.weight, x) + _across(self.bias, x)


def has_batch_statistics(module: nn.Module) -> list[str]:
    """Names of the layers whose output for one row depends on the other rows of the batch (BatchNorm)."""
    return [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm | LocalNorm)]


def localised(module: nn.Module) -> nn.Module:
    """Puts a `LocalNorm` in place of every batch normalisation layer; changes the module that is given."""
    for name in has_batch_statistics(module):
        layer = module.get_submodule(name)
        if isinstance(layer, LocalNorm):
            continue
        if not name:
            return LocalNorm(layer, name)  # pyright: ignore[reportArgumentType]
        parent, _, last = name.rpartition(".")
        setattr(module.get_submodule(parent), last, LocalNorm(layer, name))  # pyright: ignore[reportArgumentType]
    return module


@contextmanager
def using(module: nn.Module, rule: Rule) -> Iterator[None]:
    """Within, every `LocalNorm` of the module takes its moments from `rule`; not for one module in two threads."""
    layers = [layer for layer in module.modules() if isinstance(layer, LocalNorm)]
    try:
        for layer in layers:
            layer.rule = rule
        yield
    finally:
        for layer in layers:
            layer.rule = _of_batch
