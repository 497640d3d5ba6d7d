"""The record-level rounds as one plain JAX program: norms of examples' gradients by ghost products, written by hand.

Clients by `scan`, on each core a share of them. A batch is drawn by Poisson sampling and cut off at 96 rows, as shapes
are fixed; there is no ledger and no state of clients.
"""

# pyright: reportMissingImports=false
import itertools

import jax_threads
import protocol

MOST = 96


def build(name: str) -> protocol.Round:
    import jax
    import jax.numpy as jnp
    import jax_models
    import numpy as np

    cores, draw = jax_threads.cores, np.random.default_rng(protocol.SEED)
    widths = (protocol.IMAGE_SIDE**2, *protocol.RECORD_HIDDEN, protocol.RECORD_CLASSES)
    params = [jax_models.linear(draw, a, b) for a, b in itertools.pairwise(widths)]
    each = (protocol.RECORD_CLIENTS, protocol.RECORD_ROWS)
    x = draw.random((*each, widths[0]), dtype=np.float32)
    y = draw.integers(protocol.RECORD_CLASSES, size=each, dtype=np.int32)

    def losses(probes, params, x, y):
        """The sum of losses, and every layer's inputs; probes are added to the outputs of layers."""
        inputs = []
        for at, (layer, probe) in enumerate(zip(params, probes, strict=True)):
            inputs.append(x)
            x = jax_models.dense(layer, x) + probe
            x = jax.nn.relu(x) if at + 1 < len(params) else x
        likelihoods = jax.nn.log_softmax(x)
        return -jnp.take_along_axis(likelihoods, y[:, None], 1).sum(), inputs

    def step(params, given):
        x, y, key = given
        draws, *noises = jax.random.split(key, 1 + 2 * len(params))
        chosen = jax.random.uniform(draws, (len(x),)) < protocol.RECORD_BATCH / protocol.RECORD_ROWS
        rows = jnp.argsort(~chosen)[:MOST]
        x, y, chosen = x[rows], y[rows], chosen[rows]
        probes = [jnp.zeros((MOST, len(layer[1]))) for layer in params]
        deltas, inputs = jax.grad(losses, has_aux=True)(probes, params, x, y)
        squares = sum((jnp.sum(a**2, 1) + 1) * jnp.sum(d**2, 1) for a, d in zip(inputs, deltas, strict=True))
        factors = chosen * jnp.minimum(1, protocol.CLIP_NORM / jnp.maximum(jnp.sqrt(squares), 1e-12))
        noise = iter(noises)
        scale, deviation = protocol.LOCAL_RATE / protocol.RECORD_BATCH, protocol.NOISE_MULTIPLIER * protocol.CLIP_NORM

        def moved(leaf, gradient):
            return leaf - scale * (gradient + deviation * jax.random.normal(next(noise), leaf.shape))

        weighted = [d * factors[:, None] for d in deltas]
        new = [(moved(w, a.T @ d), moved(b, d.sum(0))) for (w, b), a, d in zip(params, inputs, weighted, strict=True)]
        return new, None

    def share(params, x, y, keys):
        """The sum of some clients' updates."""

        def add(total, given):
            x, y, key = given
            end = params
            for now in jax.random.split(key, protocol.RECORD_ROWS // protocol.RECORD_BATCH):
                end, _ = step(end, (x, y, now))
            return jax.tree.map(lambda t, a, b: t + a - b, total, end, params), None

        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, params), (x, y, keys))[0]

    together = jax.pmap(share, in_axes=(None, 0, 0, 0))
    params, key = jax.tree.map(jnp.asarray, params), jax.random.key(protocol.SEED)
    split = lambda leaf: leaf.reshape(cores, len(leaf) // cores, *leaf.shape[1:])  # noqa: E731
    x, y = (jax.pmap(lambda each: each)(split(jnp.asarray(leaf))) for leaf in (x, y))  # each core has its share

    def one_round() -> None:
        nonlocal params, key
        key, *clients = jax.random.split(key, 1 + protocol.RECORD_CLIENTS)
        totals = together(params, x, y, split(jnp.stack(clients)))
        params = jax.tree.map(lambda leaf, total: leaf + total.sum(0) / protocol.RECORD_CLIENTS, params, totals)
        jax.block_until_ready(params)

    return one_round


if __name__ == "__main__":
    protocol.run("jax", build, jax_threads.set_cores, ("jax", "jaxlib"), ("dnn",))
