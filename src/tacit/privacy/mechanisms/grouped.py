"""A trusted server adds noise to each level's sum and merges the levels' means (FedHDP; one level: DP-FedAvg)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal

import numpy as np
import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Shared, Tree
from tacit.core.tensors import to_list
from tacit.errors import TacitError
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.clipping import Clip, Fixed, clip, measure
from tacit.privacy.mechanisms.lattice import fits, place, step
from tacit.privacy.mechanisms.level_ratios import LevelRatios, open_weights
from tacit.privacy.mechanisms.level_weights import Merge, Optimal, Released, Weighted
from tacit.privacy.mechanisms.open_span import OpenSpan
from tacit.privacy.mechanisms.release import (
    BIT,
    ROUNDING,
    ClippedRelease,
    Inadmissible,
    Message,
    OnlyClips,
    Totals,
    add_noise_to_bit,
)
from tacit.privacy.plan import Account, CalibrationContext, Mechanism, Plan, Seen, Words, check_average, gaussian_event

_READERS: Final = (
    "against whoever sees the released models, but not who took part in which round; the server is trusted"
)
_ANY_READERS: Final = (
    "against whoever sees the released models and knows who took part in which round; the server is trusted"
)


@dataclass(frozen=True)
class GroupedRelease(ClippedRelease):
    """A trusted server adds noise to each level's sum and merges the levels' means (FedHDP; one level: DP-FedAvg).

    Every sum is divided by a public number, the expected count. A level nobody of which was sampled still gets its
    noise. The noise on level j's sum has std `multipliers[j] * sensitivity * bound`, bits included in the price.
    """

    expected: tuple[float, ...]  # sampled clients of each level in expectation
    merge: Merge
    sensitivity: float = 1.0  # of a sum of unit vectors: 1 add/remove, 2 replace-one
    span: OpenSpan = field(default_factory=OpenSpan)

    def start(self) -> Tree:
        return super().start() | tree.prefix("merge", self.merge.start(len(self.multipliers)))

    @property
    def ratios(self) -> list[float]:
        """Noise on the sum of each level, in clip bounds."""
        return [self.clip.multiplier(z) * self.sensitivity for z in self.multipliers]

    def encode(self, state: Tree, upload: Shared, level: Tensor, noise: noises.Noise) -> Message:
        body, inside = clip(tree.join(upload), state["bound"])
        message = Message(body, *self._beside(inside, measure(body), level))
        if self.exact is None or not body:
            return message
        ratio = torch.tensor(self.ratios, dtype=torch.float64)[level]
        integers = place(tree.flatten(body), state["bound"], ratio)
        return message._replace(body=tree.unflatten(integers, body))

    def only_clips(self, state: Tree) -> OnlyClips | None:
        """Exact sums are sums of integers: then every message is put on its lattice first."""
        return OnlyClips(state["bound"], self._beside) if self.exact is None else None

    def _beside(self, inside: Tensor, power: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
        bit = self.bit(inside)
        if all(self.multipliers):
            return bit, torch.zeros_like(bit)
        opted_out = (torch.tensor(self.multipliers) == 0)[level]
        return bit, torch.where(opted_out, power, 0.0)

    def decode(self, state: Tree, totals: Totals, noise: noises.Noise) -> tuple[Shared, Tree]:
        bits, expected_bits = torch.zeros((), dtype=torch.float64), 0.0
        released: list[Released | None] = []
        for j, (z, expected) in enumerate(zip(self.multipliers, self.expected, strict=True)):
            if expected == 0 or not self.merge.asks(j):
                released.append(None)
                continue
            released.append(self._mean(j, float(state["bound"]), totals, noise))
            bits, expected_bits = bits + self._bits(z, totals.bit[j].double(), noise), expected_bits + expected
        power = self._power(totals, state["bound"])
        released, directions = self.span.apply(tree.strip("span", state), released)
        weights, memory = self.merge.weigh(tree.strip("merge", state), released, power)
        mean = tree.each(lambda leaf: torch.zeros_like(leaf[0], dtype=self.exact), totals.body)
        for weight, level in zip(to_list(weights), released, strict=True):
            mean = mean if level is None else tree.axpy(weight, level.mean, mean)
        memory_left = tree.prefix("merge", memory) | tree.prefix("span", directions)
        return tree.split(mean), self.move_bound(state, bits, expected_bits) | memory_left

    def _mean(self, j: int, bound: float, totals: Totals, noise: noises.Noise) -> Released:
        total, std = tree.each(lambda leaf: leaf[j], totals.body), self.ratios[j] * bound
        if self.exact is None:
            noisy = noises.add(total, std, noise)
        else:
            integers = _add_discrete(total, torch.tensor(self.ratios[j], dtype=torch.float64), noise)
            noisy = self.read({"bound": torch.tensor(bound, dtype=torch.float64)}, integers, torch.tensor(j))
        mean = tree.scale(noisy, 1 / self.expected[j])
        return Released(mean, tree.size(mean) * (std / self.expected[j]) ** 2, self.expected[j])

    def _bits(self, z: float, total: Tensor, noise: noises.Noise) -> Tensor:
        std = self.clip.bit_std(z) * self.sensitivity
        if self.exact is None:
            return total + noise.normal(1, torch.float64)[0] * std
        ratio = torch.tensor(std / BIT, dtype=torch.float64)
        return add_noise_to_bit(total, ratio, noise) * step(BIT, ratio)

    def _power(self, totals: Totals, bound: Tensor) -> Tensor:
        """Mean squared norm of the uploads of clients that opted out; of private ones only that it is at most the
        bound's square is known, and that is public."""
        opted_out = [j for j, z in enumerate(self.multipliers) if z == 0 and self.expected[j] > 0]
        clients = sum(self.expected[j] for j in opted_out)
        return totals.power[opted_out].sum() / clients if opted_out else bound.square()

    def largest_norm(self, state: Tree, size: int) -> float:
        return float(state["bound"]) * (1 + ROUNDING)

    def admit(self, state: Tree, message: Message, template: Tree, level: int) -> Message:
        """Clipped again: a client's word is not a bound. Integers have a norm that can be known exactly: they keep to
        it or are refused."""
        if self.exact is not None:
            again = keep_integers(message, self, level, state["bound"])
            if again is None:
                raise Inadmissible("huge", "integers of a norm above their limit")
            return again
        again = clip_again(super().admit(state, message, template, level), template, state["bound"])
        if again is None:
            raise Inadmissible("shape", "the message does not fit")
        return again

    def std_of_mean(self, levels: np.ndarray) -> float:
        weights = self.merge.weights if isinstance(self.merge, Weighted) else ()
        return self.merged_noise(weights) * self.clip.bound

    def merged_noise(self, weights: Sequence[float]) -> float:
        """Noise in each coordinate of the levels' means, merged by these weights, in clip bounds, bits for free.

        It is least, z_j^2 being the only difference of the levels, at w_j proportional to (n_j / z_j)^2, where it is
        (sum_j (n_j / z_j)^2)^(-1/2): n_j clients of level j are drawn in expectation.
        """
        noise = (
            w * z * self.sensitivity / expected
            for w, z, expected in zip(weights, self.multipliers, self.expected, strict=True)
            if expected
        )
        return math.hypot(*noise)


def _add_discrete(total: Tree, ratio: Tensor, noise: noises.Noise) -> Tree:
    """A sum of integers, with the noise of its lattice."""
    if not total:
        return {}
    drawn = tree.unflatten(noise.discrete(tree.size(total), ratio), total)
    return tree.each(lambda leaf, more: leaf.long() + more, total, drawn)


def clip_again(message: Message, template: Mapping[str, Tensor], bound: float | Tensor) -> Message | None:
    """A received message, clipped again (a client's word is not a bound), or None if it is malformed.

    None for missing or extra names, another shape or dtype, or a value that is not finite. A squared norm that was sent
    is replaced by the true one.
    """
    body = message.body
    if body.keys() != template.keys() or message.bit.dim() != 0 or message.power.dim() != 0:
        return None
    if any(body[name].shape != leaf.shape or body[name].dtype != leaf.dtype for name, leaf in template.items()):
        return None
    if not all(bool(leaf.isfinite().all()) for leaf in body.values()) or not bool(message.bit.isfinite()):
        return None
    clipped, _ = clip(body, bound)
    power = torch.where(message.power == 0, 0.0, measure(clipped))
    return Message(clipped, message.bit.clamp(-0.5, 0.5), power)


def keep_integers(message: Message, release: GroupedRelease, level: int, bound: float | Tensor) -> Message | None:
    """A received message of integers, or None if its norm, in integers, is above the limit of its level's lattice.

    Its bit is one of two; a squared norm that was sent is replaced by the true one.
    """
    if message.body and not fits(tree.flatten(message.body), release.ratios[level]):
        return None
    known = release.read({"bound": torch.as_tensor(bound)}, message.body, torch.tensor(level))
    power = torch.where(message.power == 0, 0.0, tree.norm(known).square())
    return Message(message.body, torch.where(message.bit > 0, BIT, -BIT), power)


@checked
@dataclass(frozen=True)
class Grouped(Mechanism):
    """A trusted server adds noise to each level's sum (FedHDP): each level has its own noise and its own epsilon.

    The guarantee of each level is of a client's whole contribution, against whoever sees the released models but not
    who took part. The server sees clipped uploads, and is trusted with them.

    Args:
        clip: the bound on an upload's norm: a number or `Fixed` keeps it, `Quantile()` moves it by paid bits.
        ratio: the weight of a private client beside an open one. 1 weighs all clients alike, 0 does not ask the private
            ones at all. One for each level, by its name, weighs private levels against each other, too; a level that is
            not named has 1. "optimal" weighs noise against bias in every round, for any menu.
        project: clip what would be uploaded after every local step, too.
        horizon: with "optimal", over how many rounds noise averages out; by default the rounds of the run.
        span: keep of private means what lies in the span of the open clients' means of the last so many rounds, and of
            the rest a share (`open_span.py` has the proof). 0: all of it.
        rest: that share, between 0 and 1; 0.1 if left out.
        average: the model is, in the end, the mean of those of the last so many rounds. 0: the last one.
        open_rounds: the first so many rounds ask open clients alone. Private ones send nothing in them and pay nothing,
            and the noise of the others is calibrated to the rounds that are left.

    Raises:
        TacitError: a ratio outside of 0 to 1, a bound or horizon that is not positive, or a horizon without "optimal".

    Why rounds of open clients alone cost nothing: their models are functions of the start and of open clients' rows, so
    that a private client's data reach the released models through the rounds that are left, each charged. Level j's
    noise is calibrated to these T - K rounds, which compose to its epsilon.

    Weights are public before training, or made of what was released: each level's sum keeps its sensitivity and its
    noise, so that its epsilon does not depend on them.

    >>> import tacit
    >>> tacit.Grouped(ratio=0.5).server_sees
    'uploads'
    >>> tacit.Grouped(ratio={"mild": 1, "strict": 0.2}).ratio
    {'mild': 1.0, 'strict': 0.2}
    """

    name: ClassVar[str] = "grouped"
    words: ClassVar[Mapping[str, Words]] = {
        "grouped": Words(
            _READERS,
            "you trust the server with your update; it adds each level's noise before anybody else sees anything",
            shared=True,
        ),
        "grouped-rota": Words(_ANY_READERS),
    }

    clip: Clip = field(default_factory=Fixed, metadata={"short": Fixed})
    ratio: float | Mapping[str, float] | Literal["optimal"] = 1.0
    project: bool = False
    horizon: float | None = None
    span: int = 0
    rest: float | None = None
    average: int = 0
    open_rounds: int = 0

    def __post_init__(self) -> None:
        LevelRatios(self.ratio)
        if self.horizon is not None and self.ratio != "optimal":
            raise TacitError(f"horizon is {self.horizon:g}, and only ratio 'optimal' uses it: leave it out")
        if self.horizon is not None:
            Optimal((1.0,), self.horizon)
        if self.rest is not None and not self.span:
            raise TacitError(f"rest is {self.rest:g}, and without span nothing is projected: add span, or leave it out")
        check_average(self.average)
        if self.open_rounds < 0:
            raise TacitError(f"open_rounds must be at least 0, not {self.open_rounds}")
        _ = self._span

    @property
    def _span(self) -> OpenSpan:
        return OpenSpan(self.span) if self.rest is None else OpenSpan(self.span, self.rest)

    @property
    def server_sees(self) -> Seen:
        return "uploads"

    def plan(self, setting: CalibrationContext) -> Plan:
        self._check(setting)
        merge, notes = LevelRatios(self.ratio).merge(setting, self.horizon)
        whole, release = self._planned(setting, merge)
        whole = replace(whole, notes=(*notes, *_less_noise(release)))
        return (self._scheduled(whole, release) if self.open_rounds else whole).by_participation()

    def _scheduled(self, whole: Plan, release: GroupedRelease) -> Plan:
        """The plan, with another one for its first rounds: nobody private is asked, noised or charged in them."""
        alone = Weighted(open_weights(whole.setting))
        only_open = tuple(map(alone.asks, range(len(whole.multipliers))))
        first = replace(whole, release=replace(release, merge=alone), levels=(), asked_levels=only_open)
        note = f"the first {self.open_rounds} rounds ask open clients alone; private ones are not charged for them"
        return replace(whole, first=first, first_rounds=self.open_rounds, notes=(*whole.notes, note))

    def _check(self, setting: CalibrationContext) -> None:
        if setting.asked is None and setting.choices.private.all():
            for name, value in (("span", self.span), ("open_rounds", self.open_rounds)):
                if value:
                    raise TacitError(f"{name} is {value}, and nobody opted out, so that it has no effect: leave it out")
        if self.open_rounds >= setting.rounds:
            raise TacitError(
                f"open_rounds is {self.open_rounds} of {setting.rounds} rounds, so that no private client is ever "
                "asked: give fewer, or ratio 0"
            )

    def _planned(self, setting: CalibrationContext, merge: Merge) -> tuple[Plan, GroupedRelease]:
        """The plan of rounds in which all levels with a weight are asked; noise for as many as there are of them."""
        menu, paid = setting.choices.menu.levels, setting._replace(rounds=setting.rounds - self.open_rounds)
        accounts: list[Account] = []
        multipliers: list[float] = []
        for j, level in enumerate(menu):
            z = paid.central_noise(level) if level.private and merge.asks(j) else 0.0
            multipliers.append(z)
            if z > 0:
                event = setting.sampler.event(gaussian_event(z), len(setting.ids))
                accounts.append(Account.of(f"level:{level.name}", "client", setting.sampler.relation, event, 1, level))
        release = GroupedRelease(
            clip=self.clip,
            multipliers=tuple(multipliers),
            expected=tuple(setting.rate * n for n in setting.counts),
            merge=merge,
            sensitivity=setting.sampler.sensitivity,
            span=self._span,
        )
        plan = Plan(
            "grouped",
            self,
            setting,
            release,
            relation=setting.sampler.relation,
            levels=tuple(accounts),
            project=self.project,
            multipliers=tuple(multipliers),
            asked_levels=tuple(merge.asks(j) for j in range(len(menu))),
            average=self.average,
        )
        return plan, release

    def for_figures(self, clip: Clip, times: int) -> Mechanism:
        return Grouped(clip, ratio=LevelRatios(self.ratio).uniform)


@checked
@dataclass(frozen=True)
class Central(Mechanism):
    """A trusted server adds the noise, one level for everybody: DP-FedAvg. It is `Grouped` with one level.

    The guarantee is of a client's whole contribution, against whoever sees the released models but not who took part.
    The server sees clipped uploads, and is trusted with them.

    Args:
        clip: the bound on an upload's norm: a number or `Fixed` keeps it, `Quantile()` moves it by paid bits.
        project: clip what would be uploaded after every local step, too.
        average: the model is, in the end, the mean of those of the last so many rounds. 0: the last one.

    Raises:
        TacitError: a bound that is not positive; and in a run, more than one level, or one that is not private.

    >>> import tacit
    >>> tacit.Central(clip=0.5)
    Central(clip=Fixed(bound=0.5), project=False, average=0)
    """

    name: ClassVar[str] = "central"
    words: ClassVar[Mapping[str, Words]] = {
        "central": Words(
            _READERS,
            "you trust the server with your update; it adds noise before anybody else sees anything",
            shared=True,
        ),
        "central-rota": Words(_ANY_READERS),
    }

    clip: Clip = field(default_factory=Fixed, metadata={"short": Fixed})
    project: bool = False
    average: int = 0

    def __post_init__(self) -> None:
        check_average(self.average)

    @property
    def server_sees(self) -> Seen:
        return "uploads"

    def plan(self, setting: CalibrationContext) -> Plan:
        used = [level.name for level, n in zip(setting.choices.menu.levels, setting.choices.counts, strict=True) if n]
        if len(used) != 1 or not setting.choices.private.all():
            raise TacitError(f"the central plan has one private level, but clients chose {used}: use plan 'grouped'")
        grouped = Grouped(self.clip, project=self.project, average=self.average).plan(setting)
        return replace(grouped, name=grouped.name.replace("grouped", "central"), mechanism=self)

    def for_figures(self, clip: Clip, times: int) -> Mechanism:
        return Central(clip)


def _less_noise(release: GroupedRelease) -> tuple[str, ...]:
    """Says it where fixed weights of private levels alone leave twice the noise that others would."""
    if not isinstance(release.merge, Weighted) or not all(
        z for z, expected in zip(release.multipliers, release.expected, strict=True) if expected
    ):
        return ()
    precision = [(n / z) ** 2 if z else 0.0 for z, n in zip(release.multipliers, release.expected, strict=True)]
    if not sum(precision):
        return ()
    now, least = (
        release.merged_noise(weights)
        for weights in (release.merge.weights, [each / sum(precision) for each in precision])
    )
    if now < 1.5 * least:
        return ()
    return (
        f"by these weights the merged noise is {now:.3g} of the clip bound; ratio 'optimal' can bring it down to "
        f"{least:.3g}",
    )
