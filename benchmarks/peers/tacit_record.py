"""The record-level rounds in Tacit: DP-SGD on every client of the population, as one program."""

import protocol
import torch

from tacit.data.dataset import FederatedDataset
from tacit.data.from_rows import from_clients
from tacit.methods import FedAvg, LocalSgd
from tacit.models import MLP
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import Record
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.cohorts import Poisson

NEVER = 10**9


def clients() -> FederatedDataset:
    draw = torch.Generator().manual_seed(protocol.SEED)
    n, side = protocol.RECORD_ROWS, protocol.IMAGE_SIDE

    def rows(several: int) -> tuple[torch.Tensor, torch.Tensor]:
        images = torch.rand(several, side, side, generator=draw)
        return images, torch.randint(protocol.RECORD_CLASSES, (several,), generator=draw)

    return from_clients({k: (*rows(n), *rows(1)) for k in range(protocol.RECORD_CLIENTS)})


def build(model: str) -> protocol.Round:
    level = Level("private", delta=1e-5, noise=protocol.NOISE_MULTIPLIER)
    training = Training(rounds=NEVER, sampler=Poisson(1.0), batch=protocol.RECORD_BATCH)
    network = MLP(protocol.IMAGE_SIDE**2, protocol.RECORD_CLASSES, protocol.RECORD_HIDDEN)
    privacy = Privacy(Record(protocol.CLIP_NORM, participations=100), (level,))
    parts = assemble(clients(), network, FedAvg(LocalSgd(protocol.LOCAL_RATE)), privacy, training)
    run = Run(*parts, ledger=Ledger.open(":memory:"), schedule=Schedule(evaluate_every=NEVER, checkpoint_every=NEVER))

    def one_round() -> None:
        run.step()

    return one_round


if __name__ == "__main__":
    protocol.run("tacit", build, torch.set_num_threads, ("tacit-fl", "torch"), ("dnn", "dnn-ghost"))
