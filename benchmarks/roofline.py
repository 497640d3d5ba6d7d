"""The least time a workload could take on this machine: its operations at the rate of a matrix product, its bytes at
the speed of memory, whichever takes longer.

Operations are those of the plain algorithm: two for each weight of a layer and each place it is used at, in the forward
pass, for the gradient of the weights, and for the gradient of the inputs except in the first layer. Additions of
element-wise work, clipping and noise are not counted, nor what Tacit saves by another order of arithmetic.

Bytes are what must come from memory whatever is kept in cache: each example once, and each client's model once in (its
state, or what it uploads) and once out.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from benchmarks.peers import protocol

SIDE = protocol.IMAGE_SIDE**2


@dataclass(frozen=True)
class Rates:
    """Of this machine with all its cores: what a large matrix product and a large copy reach."""

    operations: float  # a second
    bytes: float  # a second, read and written


@dataclass(frozen=True)
class Layer:
    weights: int  # without biases
    places: int = 1

    @property
    def multiplications(self) -> int:
        return self.weights * self.places


def _block(width: int, between: int, places: int) -> Layer:
    """A transformer's: four projections, attention (every place with every place, twice), two maps."""
    return Layer(4 * width**2 + 2 * width * between + 2 * places * width, places)


LAYERS = {
    "mlp": (Layer(SIDE * 100), Layer(1000)),
    "cnn": (Layer(150, 576), Layer(2400, 64), Layer(256 * 120), Layer(120 * 84), Layer(840)),
    "writers": (Layer(288, 676), Layer(32 * 9 * 64, 576), Layer(9216 * 128), Layer(128 * 62)),
    "dnn": (Layer(SIDE * 600), Layer(60_000), Layer(1000)),
    "cifar": (Layer(864, 30**2), Layer(32 * 9 * 64, 28**2), Layer(12544 * 128), Layer(1280)),
    "words": (
        Layer(0),  # a word is looked up
        *[_block(protocol.WIDTH, protocol.FEED_FORWARD, protocol.SENTENCE)] * protocol.LAYERS,
        Layer(protocol.WIDTH * protocol.WORDS, protocol.SENTENCE),
    ),
}
INPUTS = {"cifar": 3 * protocol.SIDE**2, "words": 2 * protocol.SENTENCE}
"""Numbers of an example, where they are not those of an image of 28 x 28."""


@dataclass(frozen=True)
class Work:
    operations: float
    bytes: float

    def seconds(self, rates: Rates) -> float:
        return max(self.operations / rates.operations, self.bytes / rates.bytes)


def training(network: str, clients: int, examples: int, steps: int, models: int = 1) -> Work:
    """`examples` of a client, seen once a pass; `steps` is how many it sees in all; Ditto trains two models."""
    first, *rest = LAYERS[network]
    each = 2 * (2 * first.multiplications + 3 * sum(layer.multiplications for layer in rest))
    size, inputs = sum(layer.weights for layer in LAYERS[network]), INPUTS.get(network, SIDE)
    return Work(float(models * clients * steps * each), 4.0 * clients * (examples * inputs + 2 * models * size))


def frozen_training(how: protocol.Training) -> Work:
    """ViT-tiny's forward pass and the gradient of its inputs; that of adapters is small beside them."""
    places = 1 + (protocol.SIDE // protocol.PATCH) ** 2
    block = _block(protocol.VIT_WIDTH, 4 * protocol.VIT_WIDTH, places)
    images = how.cohort * how.examples * how.epochs
    return Work(4.0 * images * protocol.VIT_LAYERS * block.multiplications, 4.0 * images * 3 * protocol.SIDE**2)


def evaluation(network: str, clients: int, examples: int) -> Work:
    """Everybody's own model and the shared one, on everybody's examples."""
    each, size = (2 * sum(layer.multiplications for layer in LAYERS[network]), sum(x.weights for x in LAYERS[network]))
    return Work(2.0 * clients * examples * each, 4.0 * clients * (examples * SIDE + size))


def measure() -> Rates:
    a, b = torch.rand(1536, 1536), torch.rand(1536, 1536)
    source, target = torch.rand(2**25), torch.empty(2**25)
    out = torch.empty(1536, 1536)
    return Rates(
        operations=2 * 1536**3 / _best(lambda: torch.mm(a, b, out=out)),
        bytes=2 * 4 * 2**25 / _best(lambda: target.copy_(source)),
    )


def together(rates: list[Rates]) -> Rates:
    return Rates(*(statistics.median(getattr(each, name) for each in rates) for name in ("operations", "bytes")))


def _best(work: Callable[[], object], repeats: int = 7) -> float:
    def once() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return min(once() for _ in range(repeats))
