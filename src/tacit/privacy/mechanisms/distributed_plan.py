"""The request for distributed noise: how many shares, how much noise, how many bits; what is charged to whom.

Two figures, always both. *Against the server*, which knows who took part: a client is charged for each of its
participations, at the noise of the fewest clients that a round may have, without amplification. *Against those who see
only released models*, and not who took part: every round, at the noise that is released, amplified by sampling. The
budget applies to the one that `budget` names; the other is charged beside it, without a limit.

Neighbours: zero-out, a client's contribution or zero, its noise share sent in both cases.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from tacit.core.checked import checked
from tacit.errors import TacitError
from tacit.privacy.accounting import calibration
from tacit.privacy.accounting.accountant import answer, calibrate
from tacit.privacy.accounting.calibration import account_for, gaussian_event, noise_for, only_level, participations_of
from tacit.privacy.accounting.skellam import SampledSkellamDpEvent, SkellamDpEvent
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms.clipping import Clip, Fixed
from tacit.privacy.mechanisms.distributed import Distributed as Release
from tacit.privacy.mechanisms.distributed_solver import Coding, solve
from tacit.privacy.plan import Account, CalibrationContext, Plan

_SHORT: Final = {"server": 1e-2, "released": 1e-5}
"""The chance of a round with too few clients, and of one with more than the noise is topped up to.

Against the server the excess noise counts, against readers only the edge (see `SampledSkellamDpEvent`).
"""
_PRESENT: Final = 0.9  # where the sampler states no distribution: the share of the expected cohort that must be there
_AWAY: Final = 0.1  # the share of clients that may be offline or have used up their budgets
ZERO_OUT: Final = "zero-out"


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
    who = _poisson(n, event.sampling_probability * stay, expected, short, _away(setting, times))
    return who._replace(rate=None, edge=0.0) if setting.drop else who


def _away(setting: CalibrationContext, times: int | None) -> float:
    from scipy.stats import binom

    spent = 0.0 if times is None else float(binom.sf(times, setting.rounds, setting.rate))
    return _AWAY if spent <= _AWAY / 2 else 1.0


def _poisson(n: int, rate: float, expected: float, short: float, away: float = _AWAY) -> Crowd:
    from scipy.stats import binom

    least, most = max(1, int(binom.ppf(short, n, rate))), max(1, int(binom.isf(short, n, rate)))
    others = np.arange(math.floor((1 - away) * n) - 1, max(n, 1)).clip(min=0)
    edge = float(binom.pmf(least - 1, others, rate).max() + binom.sf(most - 1, max(n - 1, 0), rate))
    return Crowd(expected, least, most, rate, min(edge, 1.0), away)


@checked
@dataclass(frozen=True)
class Distributed:
    """Each client adds a share of the noise to integers of `bits` bits; only their sum is ever seen.

    `budget`: the figure that a level's epsilon limits, "server" or "released". The noise is calibrated to
    `participations` of one client (default: what 99% of the clients stay below), or to all rounds. `secure_sum`: a
    simulation, too, makes the sum by secure aggregation, which takes time and gives the same. `threshold`: the share of
    a cohort that must stay to the end for its sum to be unmasked; more than half of it, if 0.5.
    """

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

    def plan(self, setting: CalibrationContext) -> Plan:
        if self.budget == "released" and setting.most is not None:
            raise TacitError(
                "with a rota no sampling hides who took part, so both figures are one: use budget 'server'"
            )
        level, times = only_level(setting), participations_of(self.participations, setting)
        who = crowd(setting, _SHORT[self.budget], times if self.budget == "server" else None)
        z = self._noise(level, setting, who, times)
        coding = self._coding(z, setting, who)
        server, released = _server_event(coding), _released_event(coding, who)
        plan = Plan(
            "distributed" if self.budget == "server" else "distributed-released",
            self,
            setting,
            Release(coding, setting.upload, who.expected),
            unit="client",
            relation=ZERO_OUT,
            project=self.project,
            summed=True,
            secure_sum=self.secure_sum,
            multipliers=tuple(z if each is level else 0.0 for each in setting.choices.menu.levels),
            notes=(*_notes(coding, who), self._error(coding, level, setting, times)),
        )
        if self.budget == "server":
            return self._against_server(plan, server, released, level, times)
        return self._against_readers(plan, server, released, level, times)

    def _coding(self, z: float, setting: CalibrationContext, who: Crowd) -> Coding:
        excess = who.most / who.least if self.budget == "server" else 1.0
        size = sum(leaf.numel() for leaf in setting.upload.values())
        return solve((z * self.clip.bound) ** 2 * excess, size, self.clip.bound, self.bits, who.least, who.most)

    def _noise(self, level: Level, setting: CalibrationContext, who: Crowd, times: int) -> float:
        def event_of(z: float) -> Any:
            coding = self._coding(z, setting, who)
            return _server_event(coding) if self.budget == "server" else _released_event(coding, who)

        often = times if self.budget == "server" else setting.rounds
        try:
            return noise_for(level, setting, event_of, often, ZERO_OUT, len(setting.ids))
        except TacitError as error:
            if "no amount of noise" not in str(error):
                raise
            raise TacitError(
                f"{self.bits} bits are too coarse for epsilon {level.epsilon:g} of level '{level.name}': use more bits"
            ) from error

    def _against_server(self, plan: Plan, server: Any, released: Any, level: Level, times: int) -> Plan:
        ids, rounds = plan.setting.ids, plan.setting.rounds
        own = account_for("", "client", ZERO_OUT, server, 1, level)
        if plan.setting.most is not None:
            return self._by_rota(plan, own, times)
        beside = replace(own, scope=f"released:{level.name}", event=released, epsilon=None)
        figure = answer({released: rounds}, level.delta or 0.0, ZERO_OUT, "rdp").epsilon
        return replace(
            plan,
            client=lambda k: replace(own, scope=f"client:{ids[k]}"),
            beside=lambda _: (beside,),
            notes=(
                f"noise calibrated for {times} participations of one client",
                *plan.notes,
                f"against those who see only released models, and not who took part: {_said(figure, level)} after "
                f"{rounds:,} rounds",
            ),
        )

    def _by_rota(self, plan: Plan, own: Account, times: int) -> Plan:
        """Who is asked when is public and nobody often: what released models tell is no more than the server knows."""
        ids = plan.setting.ids
        said = (
            f"noise calibrated for {times} participations of one client, which is never asked more often; no sampling "
            "is credited, and the figure holds against those who see only released models, too"
        )
        return replace(plan, client=lambda k: replace(own, scope=f"client:{ids[k]}"), notes=(said, *plan.notes))

    def _against_readers(self, plan: Plan, server: Any, released: Any, level: Level, times: int) -> Plan:
        ids = plan.setting.ids
        own = account_for(f"level:{level.name}", "client", ZERO_OUT, released, 1, level)
        figure = answer({server: times}, level.delta or 0.0, ZERO_OUT, "rdp").epsilon

        def beside(cohort: np.ndarray) -> Sequence[Account]:
            return [replace(own, scope=f"server:{ids[k]}", event=server, epsilon=None) for k in cohort]

        said = f"against the server, which knows who took part: {_said(figure, level)} after {times} participations"
        return replace(plan, levels=(own,), beside=beside, notes=(*plan.notes, said))

    def _error(self, coding: Coding, level: Level, setting: CalibrationContext, times: int) -> str:
        """What shares, rounding and this accounting cost beside a trusted server's Gaussian noise."""
        gaussian = _central(level, setting, times if self.budget == "server" else None)
        ratio = coding.std / (gaussian * coding.bound)
        return f"the mean has {ratio:.3g} times the noise (std) that a trusted server would add for the same figure"


def own_noise(plan: Plan) -> float:
    """The noise multiplier that a client's own share gives it: all that is left if everybody else helps the server.

    Infinite for a plan whose noise is not in shares: nobody else takes part in it.
    """
    release = plan.release
    return math.sqrt(release.coding.share) / release.coding.l2 if isinstance(release, Release) else math.inf


def epsilon_alone(plan: Plan) -> float:
    """Epsilon against a server that knows all other shares, after the participations that the plan is sized for.

    Evaluations are in it, all of them.
    """
    history = Counter[Any]()
    for each in (plan, plan.evaluation.plan if plan.evaluation is not None else None):
        if each is not None and isinstance(each.release, Release) and isinstance(each.request, Distributed):
            coding, times = each.release.coding, participations_of(each.request.participations, each.setting)
            history[SkellamDpEvent(coding.share, coding.l2, coding.l1)] += times
    return answer(history, only_level(plan.setting).delta or 0.0, ZERO_OUT, "rdp").epsilon


def _central(level: Level, setting: CalibrationContext, times: int | None) -> float:
    """z of Gaussian noise for the same epsilon: of `times` participations, or of all rounds with sampling."""
    if level.noise is not None or level.epsilon is None or level.delta is None:
        return level.noise or 1.0
    if times is not None:
        return calibrate(gaussian_event, level.epsilon, level.delta, ZERO_OUT, setting.accountant, times)
    return calibration.central_noise(level, setting._replace(beside={}))


def _server_event(coding: Coding) -> SkellamDpEvent:
    return SkellamDpEvent(coding.share * coding.least, coding.l2, coding.l1)


def _released_event(coding: Coding, who: Crowd) -> SkellamDpEvent | SampledSkellamDpEvent:
    if who.rate is None:
        return SkellamDpEvent(coding.share * coding.most, coding.l2, coding.l1)
    return SampledSkellamDpEvent(who.rate, who.edge, coding.share * coding.most, coding.l2, coding.l1)


def _notes(coding: Coding, who: Crowd) -> tuple[str, ...]:
    sampled = f"sampling is credited as long as no more than {who.away:.0%} of the clients are away or spent"
    return (
        f"uploads are integers of {coding.bits} bits; the chance that a round's sum wraps around anywhere is at most "
        f"{coding.wraps():.1g}",
        f"noise shares are sized for {who.least} of {who.expected:.4g} expected clients, and topped up to "
        f"{who.most} shares by the server; a round with fewer clients is discarded, and charged",
        *([sampled] if who.rate is not None and who.away < 1 else []),
    )


def _said(epsilon: float, level: Level) -> str:
    return f"epsilon {math.ceil(epsilon * 100) / 100:.2f} at delta {level.delta:g} (client-level, zero-out, RDP)"
