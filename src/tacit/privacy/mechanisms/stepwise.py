"""Clip and noise in every local step, on the client: DP-AdaPeD, Section 3.5 and Theorem 7, corrected.

What a method would upload passes the guard after each of its tau steps. The guard clips the step to norm C; then either

- `seen="messages"`, the server sees what each client sends. The guard adds N(0, s^2) to the clipped step, and the next
  step starts from the noisy point. *Claim:* a participation costs tau Gaussian mechanisms with multiplier s / (2 C).
  *Proof:* given all noisy steps so far, a step is a function of them and of the client's data, so for any two data sets
  of the client the clipped steps are at most 2 C apart ("replace"): one Gaussian mechanism, and tau of them compose
  adaptively. The upload is their sum, which is post-processing; so is all that others compute of it. That nothing else
  of the data reaches the upload is found out by running the method (`interferes(..., door="guard")`); that steps are as
  many as were paid for is checked in every round. Their number must not depend on the client's rows.
- `seen="sum"`, the server sees the sum over at least K clients alone (secure aggregation, nobody drops out). Each
  client sends its upload, clipped to tau C, plus N(0, (z tau C)^2 / K). *Claim:* one Gaussian mechanism with multiplier
  z for a client's data against none ("zero-out"). *Proof:* the sum moves by at most tau C and carries K independent
  shares of noise, z tau C in all. The noise is added at the end, because what the others add *within* their steps
  cannot be counted on: their later steps depend on it, so that the sum is no Gaussian mechanism.

*Correction.* Theorem 7 takes tau steps of norm C to move the mean by sqrt(tau) C / K. Steps may all point one way: it
is tau C / K, and the printed Renyi divergence is too small by a factor of tau. It also credits sampling to a server
that drew the clients itself. `as_published` gives the printed figure, to be read beside the provable one.

The third reading, a server that adds the noise itself, is the plan `Central`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, get_args

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Tree
from tacit.core.tensors import register_vmap
from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import Relation
from tacit.privacy.mechanisms import noise as noises
from tacit.privacy.mechanisms.clipping import Clip, Fixed, clip
from tacit.privacy.mechanisms.local import LocalRelease
from tacit.privacy.mechanisms.open import OpenRelease
from tacit.privacy.plan import CalibrationContext, Mechanism, Plan, Words, gaussian_event

Sight = Literal["messages", "sum"]
EXTRA = "extra/"


class StepGuard:
    """One client's guard in one round: clips each step and adds its noise; counts how often it was asked.

    `ratios`: noise std over bound by level, all zero for none. `exact`: noise is discrete, on integers.
    """

    def __init__(
        self,
        bounds: tuple[float, ...],
        ratios: Sequence[float],
        level: Tensor,
        noise: noises.Noise,
        exact: bool = False,
    ) -> None:
        self._bounds, self._ratios, self._level, self._noise = bounds, list(ratios), level, noise
        self._exact = exact
        self.calls = 0

    def __call__(self, start: Tree, before: Tree, now: Tree) -> Tree:
        self.calls += 1
        step = tree.sub(now, before)
        parts = [step] if len(self._bounds) == 1 else _parts(step)
        noisy: Tree = {}
        for part, bound in zip(parts, self._bounds, strict=True):
            noisy |= self._guarded(part, bound) if part else {}
        return tree.add(before, noisy)

    def _guarded(self, part: Tree, bound: float) -> Tree:
        if isinstance(self._noise, noises.Seeded):
            key, call = self._noise.next_call()
            flat = tree.flatten(part)
            moved = guarded_step(flat, self._level, key, self._ratios, bound, call, self._exact)
            return tree.unflatten(moved, part)
        short, _ = clip(part, bound)
        if not any(self._ratios):
            return short
        ratio = torch.tensor(self._ratios, dtype=torch.float64)[self._level]
        if self._exact:
            return noises.add_exactly(short, bound, ratio, self._noise)
        return noises.add(short, float(ratio * bound), self._noise)


@torch.library.custom_op("tacit::guarded_steps", mutates_args=())
def guarded_steps(
    steps: Tensor, levels: Tensor, keys: Tensor, ratios: Sequence[float], bound: float, call: int, exact: bool
) -> Tensor:
    """Steps [clients, numbers], each clipped to `bound` and covered with its own client's noise.

    One operation, so that a recorded program has it whole: no pass sees a norm, a factor or a number of noise.
    """
    short = clip({"step": steps}, bound, lead=1)[0]["step"]
    if not any(ratios):
        return short
    if exact:
        ratio = torch.tensor(ratios, dtype=torch.float64, device=steps.device)[levels]
        return noises.exact_rows(short, bound, ratio, keys, call)
    std = torch.tensor(ratios, dtype=steps.dtype, device=steps.device)[levels] * bound
    return short + std.unsqueeze(1) * noises.normal_rows(keys, call, steps.shape[1], steps.dtype)


@torch.library.custom_op("tacit::guarded_step", mutates_args=())
def guarded_step(
    step: Tensor, level: Tensor, key: Tensor, ratios: Sequence[float], bound: float, call: int, exact: bool
) -> Tensor:
    """`guarded_steps` of one client."""
    return guarded_steps(step.unsqueeze(0), level.unsqueeze(0), key.unsqueeze(0), ratios, bound, call, exact)[0]


def _guarded_step_vmap(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
    """All clients' steps in one operation, each with its own level and key."""
    rows = [
        leaf.expand(info.batch_size, *leaf.shape) if dim is None else leaf.movedim(dim, 0) if dim else leaf
        for leaf, dim in zip(arguments[:3], in_dims[:3], strict=True)
    ]
    return guarded_steps(*rows, *arguments[3:]), 0


register_vmap(guarded_step, _guarded_step_vmap)
GUARDED_STEPS: Final = torch.ops.tacit.guarded_steps.default
"""How a recorded program names it."""


@dataclass(frozen=True, eq=False)
class StepNoise:
    """Per-step clipping and noise on the clients: what `guard` does under `Stepwise`."""

    bounds: tuple[float, ...]  # of the whole step, or of the model and of the rest
    ratios: tuple[float, ...]  # noise std over bound, by level
    steps: int
    exact: bool = False

    def guard(self, level: Tensor, noise: noises.Noise) -> StepGuard:
        return StepGuard(self.bounds, self.ratios, level, noise, self.exact)

    @property
    def noisy(self) -> bool:
        return any(self.ratios)

    def check(self, calls: int) -> None:
        """Fails before anything is released if steps were not guarded, or more often than was paid for."""
        if calls != self.steps:
            raise TacitError(f"the method guarded {calls} steps and {self.steps} were accounted for: guard each once")


@checked
@dataclass(frozen=True)
class Stepwise(Mechanism):
    """Every local step is clipped to `bound` and covered with noise, on the client (DP-AdaPeD, corrected).

    The guarantee is of a client's whole contribution: against everybody with `seen="messages"`; with `seen="sum"`
    against a server that sees sums alone. The module has the proofs. Charged by participation, without amplification.

    Args:
        bound: on the norm of a step.
        extra_bound: on that of what comes with the model (AdaPeD's psi), where it is clipped separately; else both are
            clipped together.
        seen: what the server sees: "messages" of each client, or the "sum" alone. A sum has one level, and nobody opts
            out.
        participations: of one client that the noise is calibrated to; by default what 99% of the clients stay below.
        least: with `seen="sum"`, how many clients a round has at least; a smaller one is discarded, and charged. By
            default what a round has in 99% of the cases.

    Raises:
        TacitError: a bound that is not positive, another `seen`, or a `least` that does not go with it; and in a run, a
            number of steps that depends on a client's rows.

    >>> import tacit
    >>> tacit.Stepwise(bound=0.1, seen="sum").plan_name
    'stepwise-sum'
    """

    name: ClassVar[str] = "stepwise"
    words: ClassVar[Mapping[str, Words]] = {
        "stepwise": Words(
            "against everybody, the server included",
            "noise is added on your machine, in every step; you need to trust nobody with your update",
        ),
        "stepwise-sum": Words(
            "against a server that sees sums alone, as long as no client drops out",
            "your machine adds a share of the noise, and you trust the server to look at the sum of all updates alone",
        ),
    }

    bound: float = 1.0
    extra_bound: float | None = None
    seen: Sight = "messages"
    participations: int | None = None
    least: int | None = None

    def __post_init__(self) -> None:
        for bound in self.bounds:
            Fixed(bound)
        if self.seen not in get_args(Sight):
            raise TacitError(f"seen is '{self.seen}': use 'messages' (of each client) or 'sum' (secure aggregation)")
        if self.least is not None and (self.least < 1 or self.seen != "sum"):
            raise TacitError(f"least is {self.least}: a number of at least 1, and only with seen='sum'")

    @property
    def server_sees(self) -> Sight:
        return self.seen

    @property
    def plan_name(self) -> str:
        return "stepwise-sum" if self.seen == "sum" else self.name

    def for_figures(self, clip: Clip, times: int) -> Mechanism:
        if self.seen == "sum":
            raise TacitError(
                "with seen = 'sum' noise is in shares of floats, which no masked sum of a federation carries, so that "
                "figures cannot be protected alike: set evaluate.deployment to 'off', or use plan 'distributed'"
            )
        return super().for_figures(clip, times)

    @property
    def bounds(self) -> tuple[float, ...]:
        return (self.bound,) if self.extra_bound is None else (self.bound, self.extra_bound)

    def plan(self, setting: CalibrationContext) -> Plan:
        tau = _public_steps(setting)
        times = setting.participations(self.participations)
        return self._sum(setting, tau, times) if self.seen == "sum" else self._messages(setting, tau, times)

    def _messages(self, setting: CalibrationContext, tau: int, times: int) -> Plan:
        z = self._calibrated(setting, times * tau, "replace")
        # parts with a bound each are as many Gaussian mechanisms: sqrt(parts) more noise for the same z
        ratios = tuple(2 * zj * math.sqrt(len(self.bounds)) for zj in z)
        return Plan(
            self.plan_name,
            self,
            setting,
            OpenRelease(),
            relation="replace",
            client=setting.account_of_each([gaussian_event(each) for each in z], "replace", tau),
            steps=StepNoise(self.bounds, ratios, tau),
            multipliers=z,
            notes=(
                _calibrated_for(times),
                f"{tau} noisy steps a participation",
                *self._published(setting, ratios),
            ),
        )

    def _sum(self, setting: CalibrationContext, tau: int, times: int) -> Plan:
        _ = setting.only_level  # who opted out, or chose less noise, sends no full share
        z = self._calibrated(setting, times, "zero-out")
        least = self._fewest(setting)
        total = tau * math.hypot(*self.bounds)
        release = LocalRelease(
            Fixed(total), tuple(zj / (2 * math.sqrt(least)) for zj in z), setting.rate * len(setting.ids), least
        )
        # one step's share of the noise in units of its bound, for the figure as published
        ratios = tuple(zj * math.sqrt(tau / least) for zj in z)
        return Plan(
            self.plan_name,
            self,
            setting,
            release,
            relation="zero-out",
            client=setting.account_of_each([gaussian_event(each) for each in z], "zero-out"),
            steps=StepNoise(self.bounds, (0.0,) * len(z), tau),
            multipliers=z,
            notes=(
                _calibrated_for(times),
                f"the server sees sums over at least {least} clients alone, and no client drops out",
                *self._published(setting, ratios),
            ),
        )

    def _calibrated(self, setting: CalibrationContext, times: int, relation: Relation) -> tuple[float, ...]:
        menu = setting.choices.menu.levels
        return tuple(setting.noise(level, gaussian_event, times, relation, len(setting.ids)) for level in menu)

    def _fewest(self, setting: CalibrationContext) -> int:
        if self.least is not None:
            return self.least
        n, rate, stay = len(setting.ids), setting.rate, 1 - setting.drop
        from scipy.stats import binom

        fixed = setting.sampler.relation != "add/remove"  # as many are asked in every round
        return max(1, int(binom.ppf(0.01, round(rate * n), stay) if fixed else binom.ppf(0.01, n, rate * stay)))

    def _published(self, setting: CalibrationContext, ratios: tuple[float, ...]) -> tuple[str, ...]:
        return tuple(
            f"as published (Theorem 7), level '{level.name}': epsilon "
            f"{as_published(ratio, level.delta, setting, len(self.bounds)):.3g}, which is not proved"
            for level, ratio in zip(setting.choices.menu.levels, ratios, strict=True)
            if level.private and level.delta is not None
        )


def as_published(ratio: float, delta: float, setting: CalibrationContext, parts: int = 1) -> float:
    """Epsilon of the whole run by Theorem 7 as printed: (K/m)^2 6 (T/tau) a (C1^2 / (K s1^2) + C2^2 / (K s2^2)).

    `ratio` is s / C of one step's noise on one client. Not a guarantee: see the correction above.
    """
    cohort = setting.rate * len(setting.ids)
    slope = setting.rate**2 * 6 * setting.rounds * parts / (cohort * ratio**2)
    a = torch.logspace(-4, 8, 4000, dtype=torch.float64) + 1
    spent = slope * a + (-math.log(delta) + (a - 1) * torch.log1p(-1 / a) - a.log()) / (a - 1)  # Lemma 2
    return max(0.0, float(spent.min()))


def _parts(step: Mapping[str, Tensor]) -> list[Tree]:
    extra = [name for name in step if name.startswith(EXTRA)]
    return [tree.drop(step, extra), tree.pick(step, extra)]


def _public_steps(setting: CalibrationContext) -> int:
    counts = {setting.batches.steps(n) for n in (1, 10, 10**6)}
    if len(counts) > 1:
        raise TacitError(
            "the number of local steps depends on a client's number of rows, which its messages would tell: "
            "give every client the same with Training(steps=...)"
        )
    return counts.pop()


def _calibrated_for(times: int) -> str:
    return f"noise calibrated for {times} participations of one client"
