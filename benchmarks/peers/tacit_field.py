"""The rounds of the field's own models in Tacit: the modules of `field_models`, as they are."""

import numpy as np
import protocol
import torch
from field_models import make_layers
from torch import nn
from torch_loop import make_clients

from tacit.data.dataset import FederatedDataset
from tacit.methods import FedAvg, LocalSgd, ServerSgd
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import Central
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import FixedSize

NEVER = 10**9


def clients(model: str) -> FederatedDataset:
    """What every system is given; a federation wants a test row of each client, which nothing here uses."""
    x, y = make_clients(model)
    several, examples = x.shape[:2]
    return FederatedDataset(
        name="random",
        x=x.flatten(0, 1),
        y=y.flatten(0, 1),
        offsets=np.arange(several + 1) * examples,
        test_x=x[:, 0],
        test_y=y[:, 0],
        test_offsets=np.arange(several + 1),
        common_x=None,
        common_y=None,
        ids=tuple(map(str, range(several))),
        classes=protocol.WORDS if model == "words" else 10,
    )


def build(model: str) -> protocol.Round:
    how, data = protocol.training(model), clients(model)
    torch.manual_seed(protocol.SEED)
    network = nn.Sequential(*make_layers(model))
    levels = (Level("private", delta=1e-4, noise=protocol.NOISE_MULTIPLIER),)
    training = Training(rounds=NEVER, sampler=FixedSize(how.cohort), batch=how.batch, epochs=how.epochs)
    method = FedAvg(LocalSgd(how.rate), ServerSgd(protocol.SERVER_RATE))
    parts = assemble(data, network, method, Privacy(Central(Fixed(how.clip)), levels), training)
    run = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=NEVER, checkpoint_every=NEVER))

    def one_round() -> None:
        run.step()

    return one_round


if __name__ == "__main__":
    protocol.run("tacit", build, torch.set_num_threads, ("tacit-fl", "torch"), tuple(protocol.FIELD))
