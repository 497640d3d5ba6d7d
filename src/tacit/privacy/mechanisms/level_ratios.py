"""What a user asks of the levels' weights: one ratio, one for each level, or the best ones."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tacit.errors import TacitError
from tacit.privacy.mechanisms.level_weights import Merge, Optimal, Weighted
from tacit.privacy.plan import CalibrationContext


@dataclass(frozen=True)
class LevelRatios:
    """Becomes the weights of a menu, w_j proportional to r_j N_j, with a note where what was asked for does nothing.

    Every weight is public: a ratio, counts of members, or a rule for what is released. No sum's noise depends on one.
    """

    ratio: float | Mapping[str, float] | Literal["optimal"]

    def __post_init__(self) -> None:
        ratio = self.ratio
        values: Mapping[str, object]  # of a file or a caller: anything
        values = ratio if isinstance(ratio, Mapping) else {} if ratio == "optimal" else {"": ratio}
        for name, value in values.items():
            if not (isinstance(value, int | float) and math.isfinite(value) and 0 <= value <= 1):
                of = f" of level '{name}'" if name else ""
                raise TacitError(
                    f"ratio{of} must lie between 0 (its clients are not asked) and 1 (uniform), or be 'optimal', "
                    f"not {value!r}"
                )
        if isinstance(ratio, Mapping) and not ratio:
            raise TacitError("ratio is {}: give a number for each level that counts less, for example {strict = 0.2}")

    @property
    def uniform(self) -> float | dict[str, float]:
        """The same levels asked, and their clients weighed alike."""
        if isinstance(self.ratio, Mapping):
            return {name: float(value > 0) for name, value in self.ratio.items()}
        return 0.0 if self.ratio == 0 else 1.0

    def merge(self, setting: CalibrationContext, horizon: float | None) -> tuple[Merge, tuple[str, ...]]:
        """The weights of a setting's levels, and what to say of them."""
        if self.ratio == "optimal":
            return self._optimal(setting, horizon)
        ratios = self._of_levels(setting)
        raw = [r * n for r, n in zip(ratios, setting.counts, strict=True)]
        if not sum(raw) and setting.asked is None:
            reason = "no client opted out" if self.ratio == 0 else "every level that clients chose has ratio 0"
            raise TacitError(f"ratio 0 asks nobody, because {reason}: choose a ratio above 0")
        return Weighted(tuple(weight / (sum(raw) or 1.0) for weight in raw)), self._without_effect(setting, ratios)

    def _optimal(self, setting: CalibrationContext, horizon: float | None) -> tuple[Merge, tuple[str, ...]]:
        counts = setting.counts
        if sum(n > 0 for n in counts) > 1:
            return Optimal(tuple(counts), horizon or setting.rounds), ()
        note = "everybody is at one level, so that optimal weights have nothing to weigh"
        return Weighted(tuple(n / (sum(counts) or 1) for n in counts)), (note,)

    def _of_levels(self, setting: CalibrationContext) -> list[float]:
        """r of each level of the menu. One number is that of private levels beside open ones, if anybody is open."""
        menu = setting.choices.menu
        if isinstance(self.ratio, Mapping):
            for name in self.ratio:
                menu.index(name)
            return [float(self.ratio.get(level.name, 1.0)) for level in menu.levels]
        assert self.ratio != "optimal"
        counts = setting.counts
        somebody_open = any(n and not level.private for level, n in zip(menu.levels, counts, strict=True))
        r = self.ratio if somebody_open or self.ratio == 0 else 1.0
        return [r if level.private else 1.0 for level in menu.levels]

    def _without_effect(self, setting: CalibrationContext, ratios: list[float]) -> tuple[str, ...]:
        menu, used = setting.choices.menu.levels, [j for j, n in enumerate(setting.counts) if n]
        if isinstance(self.ratio, Mapping):
            if len({ratios[j] for j in used}) == 1 and ratios[used[0]] not in (0.0, 1.0):
                return ("all levels that clients chose have the same ratio, so that all clients weigh alike",)
            idle = [name for j, level in enumerate(menu) if (name := level.name) in self.ratio and j not in used]
            return tuple(f"nobody is at level '{name}', so that its ratio has no effect" for name in idle)
        if self.ratio in (0, 1) or any(not menu[j].private for j in used):
            return ()
        return (
            f"nobody opted out, so that ratio {self.ratio:g} has no effect and all clients weigh alike; give a ratio "
            "for each level, or 'optimal'",
        )


def open_weights(setting: CalibrationContext) -> tuple[float, ...]:
    """Weights of levels without a guarantee, by their clients; 0 for all private ones."""
    menu, counts = setting.choices.menu.levels, setting.counts
    raw = [0 if level.private else n for level, n in zip(menu, counts, strict=True)]
    return tuple(n / (sum(raw) or 1) for n in raw)
