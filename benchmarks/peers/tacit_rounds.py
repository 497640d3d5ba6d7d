"""The rounds in Tacit: DP-FedAvg, Ditto, clients of unequal sizes, and the evaluation of everybody's own model."""

from dataclasses import dataclass, field

import numpy as np
import protocol
import torch

from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset
from tacit.methods import Ditto, FedAvg, LocalSgd, ServerSgd
from tacit.models import MLP, FiveLayerCNN, TwoConvCNN
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import Central
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import FixedSize

NETWORKS = {
    "mlp": lambda classes: MLP(protocol.IMAGE_SIDE**2, classes, (100,)),
    "cnn": lambda classes: FiveLayerCNN(1, protocol.IMAGE_SIDE, classes),
    "writers": lambda classes: TwoConvCNN(1, protocol.IMAGE_SIDE, classes),
}
NEVER = 10**9


def fedavg() -> Method:
    return FedAvg(LocalSgd(protocol.LOCAL_RATE), ServerSgd(protocol.SERVER_RATE))


def alike() -> np.ndarray:
    return np.full(protocol.CLIENTS, protocol.IMAGES_PER_CLIENT)


@dataclass(frozen=True)
class World:
    """What a name on the command line stands for; a cohort is as large as the network's."""

    network: str
    method: Method = field(default_factory=fedavg)
    sizes: np.ndarray = field(default_factory=alike)
    epochs: int = protocol.LOCAL_EPOCHS
    tests: int = 1  # a federation wants test rows; only an evaluation uses them


def worlds() -> dict[str, World]:
    unequal = protocol.unequal_sizes()
    return {
        "mlp": World("mlp"),
        "cnn": World("cnn"),
        "writers": World("writers"),
        "ditto-mlp": World("mlp", Ditto(fedavg())),
        "ditto-cnn": World("cnn", Ditto(fedavg())),
        "unequal": World("mlp", sizes=np.array(unequal), epochs=1),
        "equal": World("mlp", sizes=np.full(len(unequal), sum(unequal) // len(unequal)), epochs=1),
        "evaluation": World("mlp", Ditto(fedavg()), tests=protocol.TESTS),
    }


def clients(sizes: np.ndarray, tests: int, classes: int) -> FederatedDataset:
    """Random images, in memory as the networks take them."""
    draw = torch.Generator().manual_seed(protocol.SEED)
    rows, side = int(sizes.sum()), protocol.IMAGE_SIDE

    def images(several: int) -> torch.Tensor:
        return torch.rand(several, side, side, generator=draw)

    def labels(several: int) -> torch.Tensor:
        return torch.randint(0, classes, (several,), generator=draw)

    return FederatedDataset(
        name="random",
        x=images(rows),
        y=labels(rows),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        test_x=images(tests * len(sizes)),
        test_y=labels(tests * len(sizes)),
        test_offsets=np.arange(len(sizes) + 1) * tests,
        common_x=None,
        common_y=None,
        ids=tuple(map(str, range(len(sizes)))),
        classes=classes,
    )


def prepare(world: World) -> Run:
    classes = protocol.CLASSES[world.network]
    levels = (Level("private", delta=1e-4, noise=protocol.NOISE_MULTIPLIER),)
    sampler = FixedSize(protocol.COHORT[world.network])
    training = Training(rounds=NEVER, sampler=sampler, batch=protocol.BATCH, epochs=world.epochs)
    network = NETWORKS[world.network](classes)
    privacy = Privacy(Central(Fixed(protocol.CLIP_NORM)), levels)
    parts = assemble(clients(world.sizes, world.tests, classes), network, world.method, privacy, training)
    return Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=NEVER, checkpoint_every=NEVER))


def give_everybody_a_model(run: Run) -> None:
    first = run.engine.method.join(run.progress.server.view, run.engine.start)
    for some in np.array_split(np.arange(protocol.CLIENTS), 20):
        run.store.write(some, {name: leaf.expand(len(some), *leaf.shape).clone() for name, leaf in first.items()})


def build(model: str) -> protocol.Round:
    world = worlds()[model]
    run = prepare(world)
    if model == "evaluation":
        give_everybody_a_model(run)
    for _ in range(20 if model == "unequal" else 0):  # until programs of all lengths are recorded
        run.step()

    def evaluation() -> None:
        run.evaluate()

    def one_round() -> float:
        """A round; its work is how many times the usual number of images its cohort has."""
        cohort = run.plan.setting.sampler.draw(run.engine.seed, run.progress.round, run.budget.eligible())
        run.step()
        return float(world.sizes[cohort].mean() / world.sizes.mean())

    return evaluation if model == "evaluation" else one_round


if __name__ == "__main__":
    protocol.run("tacit", build, torch.set_num_threads, ("tacit-fl", "torch"), tuple(worlds()))
