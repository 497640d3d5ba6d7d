"""Distributed noise: every client adds a share, the server sees only the sum (PrivateFL, Algorithm 3, corrected).

client: clip to C, times s, rotate, round at random within a norm, add a share of Skellam noise
sum:    modulo 2^b, by secure aggregation; in simulation the plain sum, unless it is asked for
server: unwrap around 0, rotate back, divide by s and the expected number of clients

Two figures, always both. *Against the server*, which knows who took part: a client is charged for each of its
participations, at the noise of the fewest clients that a round may have, without amplification. *Against those who see
only released models*, and not who took part: every round, at the noise that is released, amplified by sampling. The
budget applies to the one that `budget` names; the other is charged beside it, without a limit.

Neighbours: zero-out, a client's contribution or zero, its noise share sent in both cases.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Shared, Tree
from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import answer, calibrate
from tacit.privacy.accounting.skellam import SampledSkellamDpEvent, SkellamDpEvent
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.clipping import Clip, Fixed, clip
from tacit.privacy.mechanisms.integer_coding import Coding, rotate, rotate_back, solve, unwrap
from tacit.privacy.mechanisms.release import Inadmissible, MaskedSum, Message, Release, Totals
from tacit.privacy.plan import Account, CalibrationContext, Mechanism, Plan, Seen, Words, gaussian_event

BODY: Final = "integers"
_SHORT: Final = {"server": 1e-2, "released": 1e-5}
"""The chance of a round with too few clients, and of one with more than the noise is topped up to.

Against the server the excess noise counts, against readers only the edge (see `SampledSkellamDpEvent`).
"""
_PRESENT: Final = 0.9  # where the sampler states no distribution: the share of the expected cohort that must be there
_AWAY: Final = 0.1  # the share of clients that may be offline or have used up their budgets
ZERO_OUT: Final = "zero-out"
_SHARES: Final = (
    "your machine adds a share of the noise, and the server sees only the sum of all updates; this protects you as far "
    "as the other members are real and do not work together with the server"
)


@dataclass(frozen=True, eq=False)
class DistributedRelease(Release):
    """One client moves the integer sum by at most `coding.l2`; noise of `coding.least` shares is always in it.

    A round with fewer clients is discarded. In all others the server tops the noise up to `coding.most` shares, so
    that what is released has the same noise whoever took part. The divisor is the expected count.
    """

    coding: Coding
    template: Tree  # shapes and types of an upload
    expected: float
    threshold: float = 0.5  # the share of a cohort that must stay to the end for its sum to be unmasked

    def start(self) -> Tree:
        return {"bound": torch.tensor(self.coding.bound, dtype=torch.float64), "turn": torch.tensor(0)}

    def blank(self, template: Tree) -> Tree:
        return {BODY: torch.zeros(self.coding.padded, dtype=torch.int64)} if template else {}

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        zero = torch.zeros(())
        body, _ = clip(tree.join(upload), self.coding.bound)
        if not body:
            return Message({}, zero, zero)
        vector = tree.flatten(body).double() * self.coding.scale
        spread = rotate(pad(vector, (0, self.coding.padded - self.coding.size)), state["turn"])
        integers = noise.round(spread, self.coding.limit)
        return Message({BODY: integers + noise.skellam(self.coding.padded, self.coding.share)}, zero, zero)

    def read(self, state: Tree, body: Tree, level: Tensor) -> Tree:
        raise TacitError("a message of plan 'distributed' says nothing by itself: only sums are read")

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared | None, Tree]:
        clients, after = int(totals.members.sum()), state | {"turn": state["turn"] + 1}
        if not totals.body:
            return Shared({}), after
        if clients < self.coding.least:
            return None, after
        total = totals.body[BODY].sum(0) & ((1 << self.coding.bits) - 1)
        missing = max(self.coding.most - clients, 0)
        if missing and self.coding.share:
            total = total + noise.skellam(self.coding.padded, missing * self.coding.share)
        vector = rotate_back(unwrap(total, self.coding.bits).double(), state["turn"])[: self.coding.size]
        mean = tree.unflatten(vector / (self.coding.scale * self.expected), self.template)
        return tree.split(tree.each(lambda leaf, original: leaf.to(original.dtype), mean, self.template)), after

    def admit(self, state: Tree, message: Message, template: Tree, level: int) -> Message:
        """Residues. Whether they are an honest client's cannot be seen: that is what they are for."""
        if any(bool(((leaf < 0) | (leaf >= 1 << self.coding.bits)).any()) for leaf in message.body.values()):
            raise Inadmissible("huge", f"numbers outside 0 to 2^{self.coding.bits}")
        return message._replace(bit=torch.zeros_like(message.bit), power=torch.zeros_like(message.power))

    def wire(self, body: Tree) -> Tree:
        """Integers go as residues, which say no more than the sum needs."""
        return tree.each(lambda leaf: leaf & ((1 << self.coding.bits) - 1), body)

    @property
    def masked_sum(self) -> MaskedSum:
        return MaskedSum(BODY, self.coding.padded, self.coding.bits, self.coding.least, self.threshold)

    def std_of_mean(self, levels: np.ndarray) -> float:
        return self.coding.std / self.expected


class Crowd(NamedTuple):
    """How many clients a round has. `edge`: see `SampledSkellamDpEvent`; `rate` None: no sampling is credited.

    `away`: the share of the clients that may not be there to be drawn before `edge` is too small.
    """

    expected: float
    least: int
    most: int
    rate: float | None = None
    edge: float = 0.0
    away: float = 1.0


def crowd(setting: CalibrationContext, short: float, times: int | None = None) -> Crowd:
    """From what the sampler states to the accountant. Who drops out is public, so that then no sampling is credited.

    `times`: how many participations a client's own budget is sized for. Where many will want more, any number of them
    may be spent in the end.
    """
    from dp_accounting import PoissonSampledDpEvent

    n, event = sum(setting.counts), setting.sampler.event(gaussian_event(1.0), len(setting.ids))
    expected, stay = setting.rate * n, 1 - setting.drop
    if not isinstance(event, PoissonSampledDpEvent):
        return Crowd(expected, max(1, math.floor(_PRESENT * expected * stay)), max(1, math.ceil(expected)))
    sizes = _poisson(n, event.sampling_probability * stay, expected, short, _away(setting, times))
    return sizes._replace(rate=None, edge=0.0) if setting.drop else sizes


def _away(setting: CalibrationContext, times: int | None) -> float:
    from scipy.stats import binom

    spent = 0.0 if times is None else float(binom.sf(times, setting.rounds, setting.rate))
    return _AWAY if spent <= _AWAY / 2 else 1.0


def _poisson(n: int, rate: float, expected: float, short: float, away: float = _AWAY) -> Crowd:
    from scipy.stats import binom

    least, largest = max(1, int(binom.ppf(short, n, rate))), max(1, int(binom.isf(short, n, rate)))
    others = np.arange(math.floor((1 - away) * n) - 1, max(n, 1)).clip(min=0)
    edge = float(binom.pmf(least - 1, others, rate).max() + binom.sf(largest - 1, max(n - 1, 0), rate))
    return Crowd(expected, least, largest, rate, min(edge, 1.0), away)


@checked
@dataclass(frozen=True)
class Distributed(Mechanism):
    """Each client adds a share of the noise to integers of `bits` bits; only their sum is ever seen.

    The guarantee is of a client's whole contribution, against the server too, as long as it sees only the sum: in a
    federation secure aggregation sees to that. How far it rests on the other clients is told when somebody joins.

    Args:
        clip: the fixed bound on an upload's norm.
        bits: of each number that is sent.
        budget: the figure that a level's epsilon limits: "server", or "released" (those who see only released models).
        participations: of one client that the noise is calibrated to; by default what 99% of the clients stay below.
        project: clip what would be uploaded after every local step, too.
        secure_sum: a simulation, too, makes the sum by secure aggregation, which takes time and gives the same.
        threshold: the share of a cohort that must stay to the end for its sum to be unmasked; more than half, if 0.5.

    Raises:
        TacitError: a clip bound that moves, another budget, a threshold outside of 0.5 to 1; and in a run, more than
            one level, or too few bits for the epsilon.

    >>> import tacit
    >>> tacit.Distributed(clip=0.5, bits=16).server_sees
    'sum'
    """

    name: ClassVar[str] = "distributed"
    words: ClassVar[Mapping[str, Words]] = {
        "distributed": Words(
            "against everybody, the server included, as long as it sees only the sum of the clients' messages", _SHARES
        ),
        "distributed-released": Words(
            "against whoever sees the released models, but not who took part in which round",
            f"{_SHARES}; epsilon limits what the models tell to those who do not know when you took part, not what "
            "they tell to the server",
            shared=True,
        ),
    }

    clip: Clip = field(default_factory=Fixed, metadata={"short": Fixed})
    bits: int = 18
    budget: Literal["server", "released"] = "server"
    participations: int | None = None
    project: bool = False
    secure_sum: bool = field(default=False, repr=False)  # leaves the result as it is, so that it identifies no run
    threshold: float = field(default=0.5, repr=False)  # the same

    def __post_init__(self) -> None:
        if not isinstance(self.clip, Fixed):
            raise TacitError("the distributed plan needs a fixed clip bound, not a moving one: set clip to a number")
        if self.budget not in ("server", "released"):
            raise TacitError(f"budget is {self.budget!r}: name the figure that it limits, 'server' or 'released'")
        if not 0.5 <= self.threshold <= 1:
            raise TacitError(f"threshold is {self.threshold}: give a share of the cohort from 0.5 (a majority) to 1")

    @property
    def server_sees(self) -> Seen:
        return "sum"

    @property
    def plan_name(self) -> str:
        return self.name if self.budget == "server" else f"{self.name}-released"

    def for_figures(self, clip: Clip, times: int) -> Mechanism:
        return replace(self, clip=clip, participations=times, project=False)

    def plan(self, setting: CalibrationContext) -> Plan:
        if self.budget == "released" and setting.most is not None:
            raise TacitError(
                "with a rota no sampling hides who took part, so both figures are one: use budget 'server'"
            )
        level, times = setting.only_level, setting.participations(self.participations)
        sizes = crowd(setting, _SHORT[self.budget], times if self.budget == "server" else None)
        z = self._noise(level, setting, sizes, times)
        coding = self._coding(z, setting, sizes)
        server, released = _server_event(coding), _released_event(coding, sizes)
        plan = Plan(
            self.plan_name,
            self,
            setting,
            DistributedRelease(coding, setting.upload, sizes.expected, threshold=self.threshold),
            relation=ZERO_OUT,
            alone={SkellamDpEvent(coding.share, coding.l2, coding.l1): times},
            project=self.project,
            secure_sum=self.secure_sum,
            multipliers=tuple(z if each is level else 0.0 for each in setting.choices.menu.levels),
            notes=(*_notes(coding, sizes), self._error(coding, level, setting, times)),
        )
        if self.budget == "server":
            return self._against_server(plan, server, released, level, times)
        return self._against_readers(plan, server, released, level, times)

    def _coding(self, z: float, setting: CalibrationContext, sizes: Crowd) -> Coding:
        excess = sizes.most / sizes.least if self.budget == "server" else 1.0
        size = sum(leaf.numel() for leaf in setting.upload.values())
        return solve((z * self.clip.bound) ** 2 * excess, size, self.clip.bound, self.bits, sizes.least, sizes.most)

    def _noise(self, level: Level, setting: CalibrationContext, sizes: Crowd, times: int) -> float:
        def event_of(z: float) -> Any:
            coding = self._coding(z, setting, sizes)
            return _server_event(coding) if self.budget == "server" else _released_event(coding, sizes)

        often = times if self.budget == "server" else setting.rounds
        try:
            return setting.noise(level, event_of, often, ZERO_OUT, len(setting.ids))
        except TacitError as error:
            if "no amount of noise" not in str(error):
                raise
            raise TacitError(
                f"{self.bits} bits are too coarse for epsilon {level.epsilon:g} of level '{level.name}': use more bits"
            ) from error

    def _against_server(self, plan: Plan, server: Any, released: Any, level: Level, times: int) -> Plan:
        ids, rounds = plan.setting.ids, plan.setting.rounds
        account = Account.of("", "client", ZERO_OUT, server, 1, level)
        if plan.setting.most is not None:
            return self._by_rota(plan, account, times)
        beside = replace(account, scope=f"released:{level.name}", event=released, epsilon=None)
        figure = answer({released: rounds}, level.delta or 0.0, ZERO_OUT, "rdp").epsilon

        def also_charged(_: np.ndarray) -> tuple[Account]:
            return (beside,)

        return replace(
            plan,
            client=_for_each(account, ids),
            beside=also_charged,
            notes=(
                f"noise calibrated for {times} participations of one client",
                *plan.notes,
                f"against those who see only released models, and not who took part: {_in_words(figure, level)} after "
                f"{rounds:,} rounds",
            ),
        )

    def _by_rota(self, plan: Plan, account: Account, times: int) -> Plan:
        """Who is asked when is public and nobody often: what released models tell is no more than the server knows."""
        ids = plan.setting.ids
        note = (
            f"noise calibrated for {times} participations of one client, which is never asked more often; no sampling "
            "is credited, and the figure holds against those who see only released models, too"
        )
        return replace(plan, client=_for_each(account, ids), notes=(note, *plan.notes))

    def _against_readers(self, plan: Plan, server: Any, released: Any, level: Level, times: int) -> Plan:
        ids = plan.setting.ids
        account = Account.of(f"level:{level.name}", "client", ZERO_OUT, released, 1, level)
        figure = answer({server: times}, level.delta or 0.0, ZERO_OUT, "rdp").epsilon

        def beside(cohort: np.ndarray) -> Sequence[Account]:
            return [replace(account, scope=f"server:{ids[k]}", event=server, epsilon=None) for k in cohort]

        note = f"against the server, which knows who took part: {_in_words(figure, level)} after {times} participations"
        return replace(plan, levels=(account,), beside=beside, notes=(*plan.notes, note))

    def _error(self, coding: Coding, level: Level, setting: CalibrationContext, times: int) -> str:
        """What shares, rounding and this accounting cost beside a trusted server's Gaussian noise."""
        gaussian = _central(level, setting, times if self.budget == "server" else None)
        ratio = coding.std / (gaussian * coding.bound)
        return f"the mean has {ratio:.3g} times the noise (std) that a trusted server would add for the same figure"


def _for_each(account: Account, ids: Sequence[str]) -> Callable[[int], Account]:
    """The same account for every client, under its own name."""

    def of(client: int) -> Account:
        return replace(account, scope=f"client:{ids[client]}")

    return of


def own_noise(plan: Plan) -> float:
    """The noise multiplier that a client's own share gives it: all that is left if everybody else helps the server.

    Infinite for a plan whose noise is not in shares: nobody else takes part in it.
    """
    return min((event.multiplier for event in plan.alone), default=math.inf)


def epsilon_alone(plan: Plan) -> float:
    """Epsilon against a server that knows all other shares, after the participations that the plan is sized for.

    Evaluations are in it, all of them.
    """
    history = Counter[Any](plan.alone)
    if plan.evaluation is not None:
        history.update(plan.evaluation.plan.alone)
    return answer(history, plan.setting.only_level.delta or 0.0, ZERO_OUT, "rdp").epsilon


def _central(level: Level, setting: CalibrationContext, times: int | None) -> float:
    """z of Gaussian noise for the same epsilon: of `times` participations, or of all rounds with sampling."""
    if level.noise is not None or level.epsilon is None or level.delta is None:
        return level.noise or 1.0
    if times is not None:
        return calibrate(gaussian_event, level.epsilon, level.delta, ZERO_OUT, setting.accountant, times)
    return setting._replace(beside={}).central_noise(level)


def _server_event(coding: Coding) -> SkellamDpEvent:
    return SkellamDpEvent(coding.share * coding.least, coding.l2, coding.l1)


def _released_event(coding: Coding, sizes: Crowd) -> SkellamDpEvent | SampledSkellamDpEvent:
    if sizes.rate is None:
        return SkellamDpEvent(coding.share * coding.most, coding.l2, coding.l1)
    return SampledSkellamDpEvent(sizes.rate, sizes.edge, coding.share * coding.most, coding.l2, coding.l1)


def _notes(coding: Coding, sizes: Crowd) -> tuple[str, ...]:
    sampled = f"sampling is credited as long as no more than {sizes.away:.0%} of the clients are away or spent"
    return (
        f"uploads are integers of {coding.bits} bits; the chance that a round's sum wraps around anywhere is at most "
        f"{coding.wraps():.1g}",
        f"noise shares are sized for {sizes.least} of {sizes.expected:.4g} expected clients, and topped up to "
        f"{sizes.most} shares by the server; a round with fewer clients is discarded, and charged",
        *([sampled] if sizes.rate is not None and sizes.away < 1 else []),
    )


def _in_words(epsilon: float, level: Level) -> str:
    return f"epsilon {math.ceil(epsilon * 100) / 100:.2f} at delta {level.delta:g} (client-level, zero-out, RDP)"
