"""DP-SGD on every client: the unit of privacy is one record, and noise is in every gradient of a batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Batch, Losses, Task, Tree
from tacit.core.dropout import Key
from tacit.privacy.accounting.sampling import round_event
from tacit.privacy.mechanisms import lattice
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.gradient import BatchOf, KeyOf, ghost, integer_sum, no_key
from tacit.privacy.mechanisms.open import OpenRelease
from tacit.privacy.plan import Account, CalibrationContext, Mechanism, Plan, Seen, Unit, Words, multiplier_of


@dataclass(frozen=True)
class Private:
    """Each example's gradient clipped to `bound`, summed, noise of `z * bound` added, divided by a public number.

    For every data set, adding or removing one row moves the sum by at most `bound`. The divisor is the expected
    batch size, never the realised one, and an empty batch still gets its noise. What dropout leaves of an example
    depends on the example's key alone: given the masks of all rows, the bound is the same.
    """

    task: Task
    batch: BatchOf
    bound: float
    z: Tensor  # noise multiplier of this client, 0-d
    expected: Tensor  # expected batch size of this client, 0-d, public
    noise: noises.Noise
    exact: bool = False  # examples' gradients are summed as integers, and the noise is discrete
    key: KeyOf = no_key

    def __call__(self, params: Tree, step: int, losses: Losses | None = None) -> Tree:
        query = self._exact if self.exact else self._fast
        return query(losses or self.task.losses, params, self.batch(step), self.key(step))

    def _fast(self, losses: Losses, params: Tree, batch: Batch, key: Key | None) -> Tree:
        """Noise is added and the sum divided in one trip through memory; each leaf has numbers of its own."""
        total, std = ghost(losses, params, *batch, self.bound, key), self.z * self.bound
        return tree.each(lambda leaf: self.noise.noisy(leaf, std, self.expected), total)

    def _exact(self, losses: Losses, params: Tree, batch: Batch, key: Key | None) -> Tree:
        """Every example's gradient is on the lattice before anything is added: no rounding of a sum to bound."""
        total = integer_sum(losses, params, *batch, self.bound, self.z, key)
        noisy = total + self.noise.discrete(tree.size(params), self.z)
        size = lattice.step(self.bound, self.z)
        mean = tree.each(lambda leaf, original: (leaf * size).to(original.dtype), tree.unflatten(noisy, params), params)
        return tree.each(lambda leaf: leaf / self.expected.to(leaf.dtype), mean)


@dataclass(frozen=True, eq=False)
class RecordNoise:
    """Per-example clipping and noise on the clients: what `private_grad` does under `Record`."""

    bound: float
    multipliers: np.ndarray  # z of each client, 0 where it opted out
    expected: np.ndarray  # expected batch size of each client
    exact: bool = False


@checked
@dataclass(frozen=True)
class Record(Mechanism):
    """DP-SGD on every client: each example's gradient is clipped to `bound` and noise is added on the client.

    The guarantee is of one record of a client, against everybody. Every client has its own account, calibrated from its
    own number of rows (treated as public) to `participations` rounds; no amplification by client sampling. A step whose
    batch answers several private gradients is one sample of their composition (`accounting/sampling.py`). The upload
    then needs no further protection.

    Args:
        bound: on the norm of an example's gradient.
        participations: of one client that the noise is calibrated to; by default what 99% of the clients stay below.

    Raises:
        TacitError: a bound that is not positive; and in a run, participations below 1.

    >>> import tacit
    >>> tacit.Record(bound=0.5).unit
    'record'
    """

    name: ClassVar[str] = "record"
    unit: ClassVar[Unit] = "record"
    words: ClassVar[Mapping[str, Words]] = {
        "record": Words(
            "against everybody, the server included",
            "noise is added on your machine, to every step; each single row of yours is protected, from everybody",
        )
    }

    bound: float = 1.0
    participations: int | None = None

    def __post_init__(self) -> None:
        Fixed(self.bound)

    @property
    def server_sees(self) -> Seen:
        return "messages"

    def plan(self, setting: CalibrationContext) -> Plan:
        times = setting.participations(self.participations)
        accounts = [self._account(k, setting, times) for k in range(len(setting.ids))]
        z = np.array([0.0 if account is None else multiplier_of(account.event) for account in accounts])
        noise = RecordNoise(self.bound, z, np.array([setting.batches.expected(int(n)) for n in setting.sizes]))
        return Plan(
            "record",
            self,
            setting,
            OpenRelease(),
            client=lambda k: accounts[k],
            record=noise,
            notes=(
                f"noise calibrated for {times} participations of one client",
                "each client's number of rows is treated as public",
            ),
        )

    def _account(self, k: int, setting: CalibrationContext, times: int) -> Account | None:
        n, level = int(setting.sizes[k]), setting.choices.of(k)
        event_of, count = round_event(setting.batches, n, setting.queries(setting.batches.steps(n)))
        if not level.private or count == 0:
            return None
        z = setting.noise(level, event_of, times * count, "add/remove", n)
        return Account.of(f"client:{setting.ids[k]}", "record", "add/remove", event_of(z), count, level)
