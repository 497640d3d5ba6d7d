"""The rounds as one plain JAX program: clients by `scan` (each core has a share) or by `vmap`, steps by `scan`."""

# pyright: reportMissingImports=false
import jax_threads
import protocol

MODELS = tuple(f"{model}-{way}" for model in (*protocol.MODELS, "cifar", "words") for way in ("scan", "vmap"))


def build(name: str) -> protocol.Round:
    import jax
    import jax.numpy as jnp
    import jax_models

    model, way = name.split("-")
    how, apply = protocol.training(model), jax_models.APPLY[model]
    cores = jax_threads.cores if way == "scan" else 1
    gradient = jax.grad(lambda params, x, y, key: jax_models.loss(apply, params, x, y, key))
    steps = how.examples // how.batch
    norm = lambda update: jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(update)))  # noqa: E731

    def client(start, x, y, key):
        """The clipped update."""

        def step(params, number):
            at = number % steps * how.batch
            batch = [jax.lax.dynamic_slice_in_dim(each, at, how.batch) for each in (x, y)]
            g = gradient(params, *batch, jax.random.fold_in(key, number))
            return jax.tree.map(lambda a, b: a - how.rate * b, params, g), None

        end, _ = jax.lax.scan(step, start, jnp.arange(how.epochs * steps))
        update = jax.tree.map(jnp.subtract, end, start)
        factor = jnp.minimum(1, how.clip / jnp.maximum(norm(update), 1e-12))
        return jax.tree.map(lambda leaf: leaf * factor, update)

    def share(start, x, y, keys):
        """The sum over some of the cohort."""
        if way == "vmap":
            return jax.tree.map(lambda leaf: leaf.sum(0), jax.vmap(client, (None, 0, 0, 0))(start, x, y, keys))
        add = lambda total, given: (jax.tree.map(jnp.add, total, client(start, *given)), None)  # noqa: E731
        return jax.lax.scan(add, jax.tree.map(jnp.zeros_like, start), (x, y, keys))[0]

    together = jax.pmap(share, in_axes=(None, 0, 0, 0)) if cores > 1 else jax.jit(share)

    @jax.jit
    def server(params, totals, key):
        keys = jax.tree.unflatten(jax.tree.structure(params), jax.random.split(key, len(jax.tree.leaves(params))))
        deviation = protocol.NOISE_MULTIPLIER * how.clip

        def moved(leaf, total, key):
            noisy = total.sum(0) + deviation * jax.random.normal(key, leaf.shape)
            return leaf + protocol.SERVER_RATE / how.cohort * noisy

        return jax.tree.map(moved, params, totals, keys)

    x, y = jax_models.clients(model)
    import numpy as np

    draw = np.random.default_rng(protocol.SEED)
    params, key = jax.tree.map(jnp.asarray, jax_models.start(model)), jax.random.key(protocol.SEED)
    used = how.cohort // cores * cores

    def one_round() -> float:
        nonlocal params, key
        key, noise, *clients = jax.random.split(key, 2 + used)
        chosen = draw.permutation(how.clients)[:used]
        order = draw.permutation(how.examples)
        given = x[chosen][:, order], y[chosen][:, order], jnp.stack(clients)
        if cores > 1:
            given = [each.reshape(cores, used // cores, *each.shape[1:]) for each in given]
            totals = together(params, *given)
        else:
            totals = jax.tree.map(lambda leaf: leaf[None], together(params, *given))
        params = jax.block_until_ready(server(params, totals, noise))
        return used / how.cohort

    return one_round


if __name__ == "__main__":
    protocol.run("jax", build, jax_threads.set_cores, ("jax", "jaxlib"), MODELS)
