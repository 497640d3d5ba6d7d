"""The workloads' networks in JAX: parameters as a list of (weights, bias), a pure function from a batch to logits."""

# pyright: reportMissingImports=false
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import protocol
from jax import lax

Params = Any
Apply = Callable[[Params, jax.Array, jax.Array], jax.Array]
"""(parameters, batch, key of dropout) -> logits."""


def linear(draw: np.random.Generator, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights [..., inputs, outputs] and a bias, as torch draws them."""
    bound = float(np.prod(shape[:-1])) ** -0.5
    weights, bias = (draw.uniform(-bound, bound, size).astype(np.float32) for size in (shape, shape[-1:]))
    return weights, bias


def dense(layer: Params, x: jax.Array) -> jax.Array:
    return x @ layer[0] + layer[1]


def convolve(layer: Params, x: jax.Array) -> jax.Array:
    shapes = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(lax.conv_general_dilated(x, layer[0], (1, 1), "VALID", dimension_numbers=shapes) + layer[1])


def pool(x: jax.Array) -> jax.Array:
    rows, height, width, channels = x.shape
    return x.reshape(rows, height // 2, 2, width // 2, 2, channels).max((2, 4))


def drop(x: jax.Array, key: jax.Array, p: float) -> jax.Array:
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0)


def flat(x: jax.Array) -> jax.Array:
    return x.reshape(len(x), -1)


def mlp(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    return dense(params[1], jax.nn.relu(dense(params[0], flat(x))))


def cnn(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    x = flat(pool(convolve(params[1], pool(convolve(params[0], x)))))
    return dense(params[4], jax.nn.relu(dense(params[3], jax.nn.relu(dense(params[2], x)))))


def writers(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    x = flat(pool(convolve(params[1], convolve(params[0], x))))
    return dense(params[3], jax.nn.relu(dense(params[2], x)))


def cifar(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    first, second = jax.random.split(key)
    x = flat(drop(pool(convolve(params[1], convolve(params[0], x))), first, 0.25))
    return dense(params[3], drop(jax.nn.relu(dense(params[2], x)), second, 0.5))


def normalise(layer: Params, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * lax.rsqrt(jnp.square(centred).mean(-1, keepdims=True) + 1e-5) * layer[0] + layer[1]


def words(params: Params, x: jax.Array, key: jax.Array) -> jax.Array:
    embedding, places, *blocks, norm, head = params
    hidden = embedding[x] + places
    for norm1, project, join, norm2, widen, narrow in blocks:
        rows, length, width = hidden.shape
        parts = dense(project, normalise(norm1, hidden))
        split = parts.reshape(rows, length, 3, protocol.HEADS, width // protocol.HEADS)
        seen = jax.nn.dot_product_attention(*(split[:, :, at] for at in range(3)), is_causal=True)
        hidden += dense(join, seen.reshape(rows, length, width))
        hidden += dense(narrow, jax.nn.gelu(dense(widen, normalise(norm2, hidden)), approximate=False))
    return dense(head, normalise(norm, hidden))


APPLY: dict[str, Apply] = {"mlp": mlp, "cnn": cnn, "writers": writers, "cifar": cifar, "words": words}
LAYERS = {
    "mlp": ((784, 100), (100, 10)),
    "cnn": ((5, 5, 1, 6), (5, 5, 6, 16), (256, 120), (120, 84), (84, 10)),
    "writers": ((3, 3, 1, 32), (3, 3, 32, 64), (9216, 128), (128, 62)),
    "cifar": ((3, 3, 3, 32), (3, 3, 32, 64), (12544, 128), (128, 10)),
}


def start(model: str) -> Params:
    draw = np.random.default_rng(protocol.SEED)
    if model != "words":
        return [linear(draw, *shape) for shape in LAYERS[model]]
    width, between = protocol.WIDTH, protocol.FEED_FORWARD

    def norm() -> tuple[np.ndarray, np.ndarray]:
        return np.ones(width, np.float32), np.zeros(width, np.float32)

    embedding = draw.normal(size=(protocol.WORDS, width)).astype(np.float32)
    places = (0.02 * draw.normal(size=(protocol.SENTENCE, width))).astype(np.float32)
    maps = (width, 3 * width), (width, width), (width, between), (between, width)
    blocks = []
    for _ in range(protocol.LAYERS):
        project, join, widen, narrow = (linear(draw, *shape) for shape in maps)
        blocks.append((norm(), project, join, norm(), widen, narrow))
    return [embedding, places, *blocks, norm(), linear(draw, width, protocol.WORDS)]


def clients(model: str) -> tuple[np.ndarray, np.ndarray]:
    """Random examples [clients, examples, ...], channels last, and labels."""
    draw, how = np.random.default_rng(protocol.SEED), protocol.training(model)
    each = how.clients, how.examples
    if model == "words":
        drawn = draw.integers(protocol.WORDS, size=(*each, protocol.SENTENCE + 1), dtype=np.int32)
        return drawn[..., :-1], drawn[..., 1:]
    shape = (protocol.SIDE, protocol.SIDE, 3) if model == "cifar" else (protocol.IMAGE_SIDE, protocol.IMAGE_SIDE, 1)
    labels = draw.integers(protocol.CLASSES.get(model, 10), size=each, dtype=np.int32)
    return draw.random((*each, *shape), dtype=np.float32), labels


def loss(apply: Apply, params: Params, x: jax.Array, y: jax.Array, key: jax.Array) -> jax.Array:
    likelihoods = jax.nn.log_softmax(apply(params, x, key))
    return -jnp.take_along_axis(likelihoods, y[..., None], -1).mean()
