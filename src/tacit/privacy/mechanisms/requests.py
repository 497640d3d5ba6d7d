"""What a user may ask for. Each request becomes a `Plan` in a setting; the table of them stands in `plan.py`.

Noise is calibrated for each level to the whole run, as if a member stayed for all of its rounds: a client that changes
its level meets the noise that the level has anyway.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from tacit.core.checked import checked
from tacit.errors import TacitError
from tacit.privacy.accounting.calibration import (
    account_for,
    by_participation,
    central_noise,
    gaussian_event,
    multiplier_of,
    noise_for,
    participations_of,
)
from tacit.privacy.accounting.queries import round_event
from tacit.privacy.levels import Level
from tacit.privacy.mechanisms import release as releases
from tacit.privacy.mechanisms.clipping import Clip, Fixed, Quantile
from tacit.privacy.mechanisms.distributed_plan import Distributed
from tacit.privacy.mechanisms.level_weights import Merge, Optimal, Weighted
from tacit.privacy.plan import Account, CalibrationContext, Plan, RecordNoise, Request

__all__ = ["Central", "Distributed", "Grouped", "Local", "NoUpload", "Open", "Record"]


@checked
@dataclass(frozen=True)
class Open:
    """No privacy: for comparison, and for methods that upload nothing."""

    def plan(self, setting: CalibrationContext) -> Plan:
        return Plan("open", self, setting, releases.Open())


@checked
@dataclass(frozen=True)
class Grouped:
    """Each level has its own noise and its own epsilon; `ratio` is the weight of a private client beside an open one.

    1 weighs all clients alike, 0 does not ask the private ones at all, "optimal" weighs noise against bias in every
    round (`horizon`: see `level_weights.Optimal`; by default the rounds of the run).
    """

    clip: Clip = field(default_factory=Quantile, metadata={"short": Fixed})
    ratio: float | Literal["optimal"] = 1.0
    project: bool = False
    horizon: float | None = None

    def __post_init__(self) -> None:
        if self.ratio != "optimal" and not (isinstance(self.ratio, int | float) and 0 <= self.ratio <= 1):
            raise TacitError(
                f"ratio must lie between 0 (private clients are not asked) and 1 (uniform), or be 'optimal', "
                f"not {self.ratio!r}"
            )
        if self.horizon is not None:
            Optimal((1.0,), self.horizon)

    def plan(self, setting: CalibrationContext) -> Plan:
        menu = setting.choices.menu.levels
        merge, notes = self._merge(setting)
        accounts, multipliers = [], []
        for j, level in enumerate(menu):
            z = central_noise(level, setting) if level.private and merge.asks(j) else 0.0
            multipliers.append(z)
            if z > 0:
                event = setting.sampler.event(gaussian_event(z), len(setting.ids))
                accounts.append(account_for(f"level:{level.name}", "client", setting.sampler.relation, event, 1, level))
        release = releases.Grouped(
            clip=self.clip,
            multipliers=tuple(multipliers),
            expected=tuple(setting.rate * n for n in setting.counts),
            merge=merge,
            sensitivity=setting.sampler.sensitivity,
        )
        plan = Plan(
            "grouped",
            self,
            setting,
            release,
            unit="client",
            relation=setting.sampler.relation,
            levels=tuple(accounts),
            project=self.project,
            multipliers=tuple(multipliers),
            asked_levels=tuple(merge.asks(j) for j in range(len(menu))),
            notes=notes,
        )
        return by_participation(plan)

    def _merge(self, setting: CalibrationContext) -> tuple[Merge, tuple[str, ...]]:
        menu, counts = setting.choices.menu.levels, setting.counts
        if self.ratio == 0 and setting.asked is None and setting.choices.private.all():
            raise TacitError("ratio 0 asks nobody, because no client opted out: choose a ratio above 0")
        if self.ratio != "optimal":
            return Weighted(_weights(menu, counts, self.ratio)), ()
        if setting.choices.private.all():
            return Weighted(_weights(menu, counts, 1.0)), ("nobody opted out, so optimal weights are the shares",)
        return Optimal(tuple(counts), self.horizon or setting.rounds), ()


@checked
@dataclass(frozen=True)
class Central:
    """A trusted server, one level for everybody: DP-FedAvg."""

    clip: Clip = field(default_factory=Quantile, metadata={"short": Fixed})
    project: bool = False

    def plan(self, setting: CalibrationContext) -> Plan:
        used = [level.name for level, n in zip(setting.choices.menu.levels, setting.choices.counts, strict=True) if n]
        if len(used) != 1 or not setting.choices.private.all():
            raise TacitError(f"the central plan has one private level, but clients chose {used}: use plan 'grouped'")
        grouped = Grouped(self.clip, project=self.project).plan(setting)
        return replace(grouped, name=grouped.name.replace("grouped", "central"), request=self)


@checked
@dataclass(frozen=True)
class Local:
    """Each client clips and adds the whole noise itself. Charged by participation, without amplification.

    The noise is calibrated to `participations` of one client (default: what 99% of the clients stay below); a client
    that has used them up is no longer asked.
    """

    clip: Clip = field(default_factory=Fixed, metadata={"short": Fixed})
    participations: int | None = None
    project: bool = False

    def plan(self, setting: CalibrationContext) -> Plan:
        menu, times = setting.choices.menu.levels, participations_of(self.participations, setting)
        z = [noise_for(level, setting, gaussian_event, times, "replace", len(setting.ids)) for level in menu]
        accounts = [
            account_for("", "client", "replace", gaussian_event(zj), 1, level)
            for zj, level in zip(z, menu, strict=True)
        ]

        def client(k: int) -> Account | None:
            account = accounts[setting.choices.level[k]]
            return Account(**{**vars(account), "scope": f"client:{setting.ids[k]}"}) if account.event else None

        release = releases.Local(self.clip, tuple(z), expected=setting.rate * len(setting.ids))
        return Plan(
            "local",
            self,
            setting,
            release,
            unit="client",
            relation="replace",
            client=client,
            project=self.project,
            multipliers=tuple(z),
            notes=(f"noise calibrated for {times} participations of one client",),
        )


@checked
@dataclass(frozen=True)
class Record:
    """DP-SGD on every client: each example's gradient is clipped to `bound` and noise is added on the client.

    Every client has its own account, calibrated from its own number of rows (treated as public) to `participations`
    rounds; no amplification by client sampling. A step whose batch answers several private gradients is one sample of
    their composition (`queries.py`). The upload then needs no further protection.
    """

    bound: float = 1.0
    participations: int | None = None

    def __post_init__(self) -> None:
        Fixed(self.bound)

    def plan(self, setting: CalibrationContext) -> Plan:
        times = participations_of(self.participations, setting)
        accounts = [self._account(k, setting, times) for k in range(len(setting.ids))]
        z = np.array([0.0 if account is None else multiplier_of(account.event) for account in accounts])
        noise = RecordNoise(self.bound, z, np.array([setting.batches.expected(int(n)) for n in setting.sizes]))
        return Plan(
            "record",
            self,
            setting,
            releases.Open(),
            unit="record",
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
        z = noise_for(level, setting, event_of, times * count, "add/remove", n)
        return account_for(f"client:{setting.ids[k]}", "record", "add/remove", event_of(z), count, level)


@dataclass(frozen=True)
class NoUpload:
    """Another request, for a method that uploads nothing: nothing leaves, so nothing is owed."""

    request: Request

    def plan(self, setting: CalibrationContext) -> Plan:
        return self.of(self.request.plan(setting))

    def of(self, plan: Plan) -> Plan:
        return replace(plan, request=self, levels=(), client=lambda _: None, beside=lambda _: ())


def _weights(menu: Sequence[Level], counts: Sequence[int], ratio: float) -> tuple[float, ...]:
    """w_open : w_private = N_open : r N_private; with nobody opted out, counts. All zero if nobody is asked."""
    somebody_open = any(n and not level.private for level, n in zip(menu, counts, strict=True))
    r = ratio if somebody_open or ratio == 0 else 1.0
    raw = [n * (r if level.private else 1.0) for level, n in zip(menu, counts, strict=True)]
    return tuple(weight / (sum(raw) or 1.0) for weight in raw)
