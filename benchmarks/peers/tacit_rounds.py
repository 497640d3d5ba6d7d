"""The rounds in Tacit."""

import protocol
import torch

from tacit.engine.assemble import Privacy, Training, assemble
from tacit.engine.loop import Run, Schedule
from tacit.federation.cohort import FixedSize
from tacit.federation.data import Federation, from_clients
from tacit.methods import FedAvg, LocalSgd, ServerSgd
from tacit.models import MLP, FiveLayerCNN, TwoConvCNN
from tacit.privacy.clip import Fixed
from tacit.privacy.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.requests import Central

MODELS = {
    "mlp": lambda classes: MLP(protocol.IMAGE_SIDE**2, classes, (100,)),
    "cnn": lambda classes: FiveLayerCNN(1, protocol.IMAGE_SIDE, classes),
    "writers": lambda classes: TwoConvCNN(1, protocol.IMAGE_SIDE, classes),
}
NEVER = 10**9


def clients(classes: int) -> Federation:
    """Random images; each client tests on one of them, because a federation wants test rows (they are not used)."""
    draw = torch.Generator().manual_seed(protocol.SEED)
    n, side = protocol.IMAGES_PER_CLIENT, protocol.IMAGE_SIDE

    def images(several: int) -> torch.Tensor:
        return torch.rand(several, side, side, generator=draw)

    def labels(several: int) -> torch.Tensor:
        return torch.randint(0, classes, (several,), generator=draw)

    return from_clients({k: (images(n), labels(n), images(1), labels(1)) for k in range(protocol.CLIENTS)})


def build(model: str) -> protocol.Round:
    privacy = Privacy(
        Central(Fixed(protocol.CLIP_NORM)), (Level("private", delta=1e-4, noise=protocol.NOISE_MULTIPLIER),)
    )
    training = Training(
        rounds=NEVER, sampler=FixedSize(protocol.COHORT[model]), batch=protocol.BATCH, epochs=protocol.LOCAL_EPOCHS
    )
    method = FedAvg(LocalSgd(protocol.LOCAL_RATE), ServerSgd(protocol.SERVER_RATE))
    classes = protocol.CLASSES[model]
    parts = assemble(clients(classes), MODELS[model](classes), method, privacy, training)
    run = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=NEVER, checkpoint_every=NEVER))

    def one_round() -> None:
        run.step()

    return one_round


if __name__ == "__main__":
    protocol.run("tacit", build, torch.set_num_threads, ("tacit-fl", "torch"))
