"""The rounds in FedJAX: `for_each_client`, its jitted loop over clients, with the clip in a client's last step."""

# pyright: reportMissingImports=false
import jax_threads
import protocol

MODELS = (*protocol.MODELS, "cifar", "words")


def build(model: str) -> protocol.Round:
    import fedjax
    import jax
    import jax.numpy as jnp
    import jax_models
    import numpy as np

    how, apply = protocol.training(model), jax_models.APPLY[model]
    gradient = jax.grad(lambda params, batch, key: jax_models.loss(apply, params, batch["x"], batch["y"], key))

    def begin(start, key):
        return {"start": start, "params": start, "key": key}

    def step(state, batch):
        key, now = jax.random.split(state["key"])
        params = jax.tree.map(lambda a, b: a - how.rate * b, state["params"], gradient(state["params"], batch, now))
        return state | {"params": params, "key": key}

    def finish(start, state):
        update = jax.tree.map(jnp.subtract, state["params"], start)
        norm = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(update)))
        return jax.tree.map(lambda leaf: leaf * jnp.minimum(1, how.clip / jnp.maximum(norm, 1e-12)), update)

    train = fedjax.for_each_client(begin, step, finish)
    x, y = jax_models.clients(model)
    batches = {"batch_size": how.batch, "num_epochs": how.epochs}
    datasets = [fedjax.ClientDataset({"x": a, "y": b}) for a, b in zip(x, y, strict=True)]
    params, key = jax.tree.map(jnp.asarray, jax_models.start(model)), jax.random.key(protocol.SEED)
    draw = np.random.default_rng(protocol.SEED)

    @jax.jit
    def add(total, update):
        return jax.tree.map(jnp.add, total, update)

    @jax.jit
    def server(params, total, key):
        keys = jax.tree.unflatten(jax.tree.structure(params), jax.random.split(key, len(jax.tree.leaves(params))))
        scale, deviation = protocol.SERVER_RATE / how.cohort, protocol.NOISE_MULTIPLIER * how.clip
        noisy = lambda a, b, k: a + scale * (b + deviation * jax.random.normal(k, a.shape))  # noqa: E731
        return jax.tree.map(noisy, params, total, keys)

    def one_round() -> None:
        nonlocal params, key
        key, noise, *keys = jax.random.split(key, 2 + how.cohort)
        clients = [
            (client, datasets[client].shuffle_repeat_batch(**batches, seed=at), keys[at])
            for at, client in enumerate(draw.permutation(how.clients)[: how.cohort].tolist())
        ]
        total = jax.tree.map(jnp.zeros_like, params)
        for _, update in train(params, clients):
            total = add(total, update)
        params = jax.block_until_ready(server(params, total, noise))

    return one_round


if __name__ == "__main__":
    protocol.run("fedjax", build, jax_threads.set_cores, ("fedjax", "jax"), MODELS)
