"""What a budget buys with noise in shares: bits, scale, both figures, and the price beside a trusted server's noise."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tacit.errors import TacitError
from tacit.privacy.accounting.accountant import answer
from tacit.privacy.ledger.statement import shown
from tacit.privacy.levels import Level, LevelOptions, by_fraction
from tacit.privacy.mechanisms import Distributed
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.distributed import ZERO_OUT
from tacit.privacy.plan import CalibrationContext, Plan
from tacit.sampling.cohorts import Poisson, Shuffled

Against = Literal["server", "released"]
LIMIT = 100_000  # clients that are laid out to be counted


@dataclass(frozen=True)
class SharesReport:
    """The plan of a whole run. `epsilons`: against the server, and against readers of released models."""

    plan: Plan
    against: Against
    bits: int
    epsilons: dict[str, float]
    facts: tuple[tuple[str, str], ...]

    def __rich__(self) -> RenderableType:
        words = Table.grid(padding=(0, 2))
        for name, text in self.facts:
            words.add_row(Text(name, style="bold"), text)
        notes = [Text(f"- {note}") for note in self.plan.notes]
        return Group(Text(self._headline(), style="bold"), words, Text(""), *notes)

    def _headline(self) -> str:
        z = max(self.plan.multipliers)
        level = self.plan.setting.choices.menu.levels[0]
        return (
            f"noise multiplier z = {z:#.4g} in integers of {self.bits} bits gives epsilon "
            f"{shown(self.epsilons[self.against])} against the {_WHO[self.against]} (client-level, zero-out, delta "
            f"{level.delta:g}, RDP)"
        )


_WHO = {"server": "server, which knows who took part", "released": "readers of released models"}


def shares(
    *,
    epsilon: float,
    delta: float,
    rate: float,
    rounds: int,
    population: int | None,
    parameters: int,
    bits: int = 18,
    clip: float = 1.0,
    against: Against = "released",
    allow_large_delta: bool = False,
) -> SharesReport:
    """The distributed plan for so many clients and parameters, calibrated to the whole run."""
    if population is None or not 1 <= population <= LIMIT:
        raise TacitError(f"shares of noise need the number of clients, up to {LIMIT:,}: give population")
    if parameters < 1:
        raise TacitError(f"an upload of {parameters} parameters: give at least 1")
    setting = CalibrationContext(
        ids=[str(k) for k in range(population)],
        sizes=np.ones(population, np.int64),
        choices=by_fraction(LevelOptions((Level("private", epsilon, delta),)), population, {}, 0),
        sampler=Poisson(rate),
        batches=Shuffled(1),
        rounds=rounds,
        allow_large_delta=allow_large_delta,
        upload={"parameters": torch.zeros(parameters, device="meta")},
    )
    plan = Distributed(Fixed(clip), bits, against).plan(setting)
    return SharesReport(plan, against, bits, _both(plan, delta), _facts(plan, bits))


def _both(plan: Plan, delta: float) -> dict[str, float]:
    """Each scope's event, as often as it is charged."""
    someone = np.array([0])
    client = plan.client(0) or next(iter(plan.beside(someone)))
    readers = plan.levels[0] if plan.levels else next(iter(plan.beside(someone)))
    often = {"server": (client, _times(plan)), "released": (readers, plan.setting.rounds)}
    return {name: answer({account.event: n}, delta, ZERO_OUT, "rdp").epsilon for name, (account, n) in often.items()}


def _times(plan: Plan) -> int:
    return plan.setting.participations(None)


def _facts(plan: Plan, bits: int) -> tuple[tuple[str, str], ...]:
    setting, coding = plan.setting, plan.release.coding  # pyright: ignore[reportAttributeAccessIssue]
    epsilons = _both(plan, setting.choices.menu.levels[0].delta or 0.0)
    return (
        ("against the server", f"epsilon {shown(epsilons['server'])} after {_times(plan)} participations, no sampling"),
        ("against readers", f"epsilon {shown(epsilons['released'])} after {setting.rounds:,} rounds, sampling counted"),
        ("neighbours", "zero-out: a client's contribution or zero, its share of the noise sent in both cases"),
        ("an upload", f"{coding.padded:,} integers of {bits} bits: {coding.padded * bits / 8e6:.3g} MB"),
        ("scale", f"s = {coding.scale:.4g}; rounded contributions have norm at most {coding.l2:.4g}"),
    )
