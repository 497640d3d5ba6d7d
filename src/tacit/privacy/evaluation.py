"""Evaluation in a deployment: how good the models are on the clients' own test rows, as a release like any other.

Every client that is asked has two figures, the metric of the shared model and that of its own, on its own test rows.
Each is clipped to a public range, whatever the data is, and the range is mapped to [0, 1] (of an accuracy both are
without effect); what is not a number counts as the middle. Less 1/2, the two are a vector of norm at most
C = sqrt(2) / 2: the bound does not depend on the range, whose width is what the noise is multiplied with. It leaves the
client as an upload does under the plan in force (`Mechanism.for_figures`), and the sum is divided by the number of
clients that are on the list:

- `Central`, `Grouped`: the server adds noise to each level's sum. Without a client a sum moves by at most C.
- `Local`, `Stepwise`, `Open`: the client adds it. Any two vectors are at most 2 C apart.
- `Record`: the same. A record more or less may change both models, and so the figures, in any way: at most by 2 C.
- `Distributed`: integers with a share of noise each, in a masked sum.

*Claim:* an evaluation is one Gaussian (Skellam) mechanism of the stated multiplier, whoever reads the models and all
earlier figures. *Proof:* the bound holds for every data set, every broadcast and every personal state; no sampling is
credited, because everybody is asked; evaluations and rounds compose adaptively. It is charged to the account that pays
for training, and a level's epsilon limits both: evaluations take `share` of it if they are taken alone, and the noise
of training is calibrated to what all of them cost together.

Clients of an opted-out level send their figures plainly. Who drops out, or has no test rows, counts as the middle.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Shared, Tree
from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import Relation
from tacit.privacy.levels import Choices, Level, LevelOptions
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.plan import Account, CalibrationContext, Mechanism, Plan

FIGURES: Final = ("shared", "personal")
CENTRE: Final = 0.5
BOUND: Final = math.sqrt(len(FIGURES)) / 2
Range = tuple[float, ...]
UNIT: Final[Range] = (0.0, 1.0)


@dataclass(frozen=True)
class Everybody:
    """Asks all clients. Neighbours are those of the sampler that trains: one account is charged for both."""

    relation: Relation
    sensitivity: float

    def rate(self, population: int) -> float:
        return 1.0

    def most(self, population: int, rounds: int) -> int | None:
        return None

    def draw(self, seed: int, round: int, eligible: np.ndarray) -> np.ndarray:
        return np.flatnonzero(eligible)

    def event(self, inner: Any, population: int) -> Any:
        return inner


class Evaluated(NamedTuple):
    """An evaluation's own plan, and after how many rounds there is one."""

    plan: Plan
    every: int
    range: Range = (0.0, 1.0)

    def due(self, round: int, rounds: int) -> bool:
        return round % self.every == 0 or round == rounds

    @property
    def std(self) -> float:
        """Of the noise in each figure's mean."""
        low, high = self.range
        return self.plan.release.std_of_mean(self.plan.setting.choices.level) * (high - low)

    @property
    def beside(self) -> Mapping[str, Mapping[Any, int]]:
        """What all evaluations together will charge to the account that each level's epsilon limits."""
        plan = self.plan
        charges: dict[str, dict[Any, int]] = {}
        for place in np.unique(plan.setting.choices.level, return_index=True)[1]:
            account = plan.of(int(place))
            if account is not None and account.event is not None:
                level = plan.setting.choices.of(int(place)).name
                charges[level] = {account.event: account.count * plan.setting.rounds}
        return charges


@checked
@dataclass(frozen=True)
class Evaluation:
    """After every `every` rounds and after the last one; `share`: the part of each level's epsilon that it may take."""

    every: int = 10
    share: float = 0.1
    range: Range | None = None  # public; None: the metric's own

    def __post_init__(self) -> None:
        if self.range is not None and not (
            len(self.range) == 2 and -math.inf < self.range[0] < self.range[1] < math.inf
        ):
            raise TacitError(f"evaluate.range must be two finite numbers, the smaller first, not {[*self.range]}")
        if self.every < 1:
            raise TacitError(f"evaluate.every must be at least 1, not {self.every}")
        if not 0 < self.share < 1:
            raise TacitError(f"evaluate.share must lie between 0 and 1, not {self.share}: 0.1 leaves most to training")

    def plan(self, mechanism: Mechanism, setting: CalibrationContext) -> Evaluated:
        times, sampler, by_record = math.ceil(setting.rounds / self.every), setting.sampler, mechanism.unit == "record"
        inner = mechanism.for_figures(Fixed(BOUND), times)
        _refuse(setting)
        menu = LevelOptions(tuple(self._part(level) for level in setting.choices.menu.levels))
        context = setting._replace(
            choices=Choices(menu, setting.choices.level),
            sampler=Everybody(sampler.relation, sampler.sensitivity),
            rounds=times,
            upload=tree.each(lambda leaf: leaf.to("meta"), blank()),
            # there the unit is a record, and training's plan compares delta with the numbers of rows
            allow_large_delta=setting.allow_large_delta or by_record,
        )
        return Evaluated(_charged(inner.plan(context), setting.choices, by_record), self.every, self.range or UNIT)

    def _part(self, level: Level) -> Level:
        return replace(level, epsilon=level.epsilon * self.share) if level.epsilon is not None else level


def _refuse(setting: CalibrationContext) -> None:
    if setting.most is not None:
        raise TacitError(
            f"a client is asked at most {setting.most} times, and an evaluation asks everybody: set "
            "evaluate.deployment to 'off', or leave out times"
        )
    for level, members in zip(setting.choices.menu.levels, setting.choices.counts, strict=True):
        if members and level.private and level.epsilon is None:
            raise TacitError(
                f"level '{level.name}' has a noise and no epsilon, of which an evaluation could take a share: give "
                "it an epsilon, or set evaluate.deployment to 'off'"
            )


def figures(values: Sequence[float], range: Range = UNIT) -> Tree:
    """The figures of one client as an upload's leaves: of norm at most `BOUND` for all values, NaN and infinity too."""
    low, high = range
    shares = (torch.tensor(values, dtype=torch.float64) - low) / (high - low)
    moved = torch.where(shares.isnan(), CENTRE, shares).clamp(0, 1) - CENTRE
    return dict(zip(FIGURES, moved.unbind(), strict=True))


def means(released: Mapping[str, torch.Tensor], range: Range = UNIT) -> dict[str, float]:
    """What a released mean says of each figure. It is cut to the range, which costs nothing."""
    low, high = range
    return {name: low + (high - low) * min(max(float(released[name]) + CENTRE, 0.0), 1.0) for name in FIGURES}


def blank() -> Tree:
    """The leaves of figures, all zero."""
    return tree.join(Shared(figures([CENTRE] * len(FIGURES))))


def _charged(plan: Plan, choices: Choices, by_record: bool) -> Plan:
    """With the accounts that pay for training: their scopes, their whole epsilon, their unit."""

    def account(charged: Account | None, level: Level) -> Account | None:
        if charged is None:
            return None
        whole = replace(charged, epsilon=level.epsilon)
        return replace(whole, unit="record", relation="add/remove") if by_record else whole

    def client(k: int) -> Account | None:
        return account(plan.client(k), choices.of(k))

    by_name = {level.name: level for level in choices.menu.levels}
    levels = (account(each, by_name[each.scope.removeprefix("level:")]) for each in plan.levels)
    return replace(
        plan,
        levels=tuple(each for each in levels if each is not None),
        client=client,
    )
