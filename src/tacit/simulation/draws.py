"""The batches of a chunk's clients: in compiled code where they are shuffled passes, and the same rows either way."""

import numpy as np

from tacit.compile.kernels.shuffles import shuffled
from tacit.core import rng
from tacit.data.dataset import FederatedDataset
from tacit.privacy.accounting.sampling import BatchRule
from tacit.sampling.cohorts import Draw, Shuffled, draw_batches


def drawn(
    rule: BatchRule,
    seed: int,
    round: int,
    clients: np.ndarray,
    federation: FederatedDataset,
    purpose: str,
    steps: int = 0,
) -> Draw:
    """One round's, padded to at least `steps` steps that are not live."""
    found = _shuffled(rule, seed, round, clients, federation, purpose, steps) if isinstance(rule, Shuffled) else None
    return found or draw_batches(rule, seed, round, clients, federation, purpose, steps)


def _shuffled(
    rule: Shuffled, seed: int, round: int, clients: np.ndarray, federation: FederatedDataset, purpose: str, steps: int
) -> Draw | None:
    firsts, sizes = federation.offsets[clients], federation.offsets[clients + 1] - federation.offsets[clients]
    most = max(steps, rule.steps(int(sizes.max(initial=0))))
    keys = rng.keys(seed, purpose, round, clients.tolist())
    found = shuffled(keys, sizes, firsts, rule.epochs, rule.size, most)
    return found and Draw(*found)
