"""Which defaults: learning rate, clip and Ditto's pull, tried on validation rows of ten federations of different kind.

`python -m benchmarks.defaults` runs what is missing in results/defaults.json and writes results/defaults.md. A choice
is the setting whose mean shortfall, behind the best one tried on each federation, is smallest. One seed a federation.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import tacit
from benchmarks.federations import FEDERATIONS, SEED, World
from tacit.core.contract import Method

RESULTS: Final = Path(__file__).parent / "results"
STORE: Final = RESULTS / "defaults.json"
TRAINING: Final = tacit.Training(rounds=40, rate=0.25, batch=10, seed=SEED)
RATES: Final = (0.03, 0.1, 0.3, 1.0)
EPSILONS: Final = (2.0, 8.0)
PERSONAL_RATES: Final = (0.1, 0.3)
STRENGTHS: Final = (0.1, 0.3, 1.0)
CLIPS: Final[Mapping[str, tacit.Fixed | tacit.Quantile]] = {
    "quantile from 0.1": tacit.Quantile(0.1, target=0.5, speed=0.2, thrift=5.0),
    "quantile from 1": tacit.Quantile(1.0, target=0.5, speed=0.2, thrift=5.0),
    "quantile from 0.5, target 0.2": tacit.Quantile(0.5, target=0.2, speed=0.2, thrift=5.0),
    "quantile from 0.5, target 0.1": tacit.Quantile(0.5, target=0.1, speed=0.2, thrift=5.0),
    "fixed 0.3": tacit.Fixed(0.3),
    "fixed 1": tacit.Fixed(1.0),
}
Scores = dict[str, dict[str, float]]
"""By federation, by setting, in points."""


@dataclass(frozen=True)
class Trial:
    """A run: what it is called, and which of its models is judged."""

    name: str
    method: Method
    judged: str
    epsilon: float | None = None
    clip: tacit.Fixed | tacit.Quantile | None = None
    opted_out: bool = False

    def privacy(self, clients: int) -> tacit.Privacy:
        if self.epsilon is None or self.clip is None:
            return tacit.Privacy()
        private = tacit.Level("private", epsilon=self.epsilon, delta=0.5 / clients)
        if not self.opted_out:
            return tacit.Privacy(tacit.Central(self.clip), (private,))
        return tacit.Privacy(tacit.Grouped(self.clip), (private, tacit.Level("open")), choices={"open": 0.1})


def plain(lr: float) -> str:
    return f"FedAvg, lr {lr:g}"


def alone(lr: float) -> str:
    return f"alone, lr {lr:g}"


def central(epsilon: float, clip: str, lr: float) -> str:
    return f"DP-FedAvg, epsilon {epsilon:g}, {clip}, lr {lr:g}"


def ditto(epsilon: float | None, base: float, lr: float, strength: float) -> str:
    return f"Ditto, epsilon {epsilon}, lr {base:g}, personal lr {lr:g}, strength {strength:g}"


def rate_trials() -> Iterator[Trial]:
    """What decides the learning rate."""
    for lr in RATES:
        yield Trial(plain(lr), tacit.FedAvg(tacit.LocalSgd(lr)), "shared")
        yield Trial(alone(lr), tacit.LocalOnly(tacit.LocalSgd(lr)), "personal")


def clip_trials(lr: float) -> Iterator[Trial]:
    """What decides the clip, given the rate."""
    for epsilon, (name, clip) in itertools.product(EPSILONS, CLIPS.items()):
        yield Trial(central(epsilon, name, lr), tacit.FedAvg(tacit.LocalSgd(lr)), "shared", epsilon, clip)


def personal_trials(base: float, clip: str) -> Iterator[Trial]:
    """What decides Ditto's pull, with and without privacy, given the rest."""
    for epsilon, lr, strength in itertools.product((None, 4.0), PERSONAL_RATES, STRENGTHS):
        method = tacit.Ditto(tacit.FedAvg(tacit.LocalSgd(base)), strength, tacit.LocalSgd(lr))
        yield Trial(ditto(epsilon, base, lr, strength), method, "personal", epsilon, CLIPS[clip], opted_out=True)


def points(world: World, result: tacit.Result, judged: str) -> float:
    """Accuracy in percent; of a regression, how much of the targets' spread its error leaves out, in percent."""
    value = float(getattr(result.scores, judged).mean())
    if result.scores.metric.larger:
        return 100 * value if np.isfinite(value) else 0.0
    spread = float(world.data.test_y.double().std())
    return 100 * max(0.0, 1 - value / spread) if np.isfinite(value) else 0.0


def measure(scores: Scores, trials: Sequence[Trial]) -> None:
    """Runs what is missing, federation by federation; what is done is kept at once."""
    for name, make in FEDERATIONS.items():
        known = scores.setdefault(name, {})
        missing = [trial for trial in trials if trial.name not in known]
        world = make() if missing else None
        for trial in missing:
            assert world is not None
            privacy, schedule = trial.privacy(world.data.clients), tacit.Schedule(evaluate_every=TRAINING.rounds)
            result = tacit.train(
                world.data,
                world.model,
                trial.method,
                privacy,
                TRAINING,
                schedule=schedule,
                performance=tacit.Performance(compile="off", threads=1),
                progress=False,
            )
            known[trial.name] = round(points(world, result, trial.judged), 2)
            STORE.write_text(json.dumps(scores, indent=1) + "\n")
        print(f"{name}: {len(missing)} runs", flush=True)


def shortfalls(scores: Scores, several: Sequence[str]) -> dict[str, float]:
    """By setting, the mean over federations of how far it stays behind the best of them."""
    best = {name: max(found[each] for each in several) for name, found in scores.items()}
    return {each: float(np.mean([best[name] - found[each] for name, found in scores.items()])) for each in several}


Table = Mapping[tuple[str, ...], tuple[float, ...]]
"""By setting, as its row has it: mean shortfalls, a column each."""


def by_rate(scores: Scores) -> Table:
    columns = [shortfalls(scores, [name(lr) for lr in RATES]) for name in (plain, alone)]
    return {(f"{lr:g}",): (columns[0][plain(lr)], columns[1][alone(lr)]) for lr in RATES}


def by_clip(scores: Scores, lr: float) -> Table:
    columns = [shortfalls(scores, [central(e, clip, lr) for clip in CLIPS]) for e in EPSILONS]
    return {(c,): tuple(f[central(e, c, lr)] for e, f in zip(EPSILONS, columns, strict=True)) for c in CLIPS}


def by_pull(scores: Scores, base: float) -> Table:
    pairs = list(itertools.product(PERSONAL_RATES, STRENGTHS))
    columns = [(e, shortfalls(scores, [ditto(e, base, *pair) for pair in pairs])) for e in (None, 4.0)]
    return {
        (f"{lr:g}", f"{strength:g}"): tuple(found[ditto(e, base, lr, strength)] for e, found in columns)
        for lr, strength in pairs
    }


def choose(table: Table) -> tuple[str, ...]:
    """The smallest shortfall; all columns count alike."""
    return min(table, key=lambda setting: float(np.mean(table[setting])))


_HEAD: Final = """# How defaults were chosen

Written by `python -m benchmarks.defaults`. Ten small federations of different kind, 40 rounds at rate 0.25 (a client
takes part ten times, as with `Training()`), batches of 10, one seed. What is measured are **validation rows**, 30% of
each client's training rows; test rows are not touched, and the seed (100) is none that another page reports. Points are
accuracy in percent; of the regressions, how much of the targets' standard deviation the error leaves out. A
**shortfall** is how far a setting stays behind the best one of its column, in the mean over the ten federations. All
columns of a table count alike. With one seed a federation, differences below about a point say little.
"""


def page(scores: Scores) -> str:
    (lr,), base = choose(by_rate(scores)), float(choose(by_rate(scores))[0])
    (clip,), pull = choose(by_clip(scores, base)), choose(by_pull(scores, base))
    parts = [
        _HEAD,
        *_table("Learning rate", "FedAvg without privacy, and training alone.", ("lr",), ("FedAvg", "alone"),
                by_rate(scores)),
        *_table("Clip", f"DP-FedAvg under `Central`, at the rate {lr}.", ("clip",),
                [f"epsilon {e:g}" for e in EPSILONS], by_clip(scores, base)),
        *_table("Ditto's pull", "Personal models, without privacy and under `Grouped` (epsilon 4, a tenth opted out); "
                "the shared model has the rate and the clip from above.", ("personal lr", "strength"),
                ("open", "epsilon 4"), by_pull(scores, base)),
        *_each_table(scores, base, clip, (float(pull[0]), float(pull[1]))),
    ]  # fmt: skip
    return "\n".join([*parts, ""])


def _table(title: str, note: str, names: Sequence[str], columns: Sequence[str], table: Table) -> Iterator[str]:
    heads = [*names, *columns, "mean shortfall", ""]
    yield f"## {title}\n\n{note}\n"
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(names)}{'---:|' * (len(columns) + 1)}---|"
    for setting in sorted(table, key=lambda each: float(np.mean(table[each]))):
        cells = [f"{value:.1f}" for value in (*table[setting], float(np.mean(table[setting])))]
        yield f"| {' | '.join([*setting, *cells, 'chosen' if setting == choose(table) else ''])} |"
    yield ""


def _each_table(scores: Scores, base: float, clip: str, pull: tuple[float, float]) -> Iterator[str]:
    yield "## Each federation, in points\n\nBefore: FedAvg at rate 0.1; DP-FedAvg at the chosen rate, with a clip"
    yield "from 0.1; Ditto at the personal rate 0.1 with strength 0.1. Alone: at the chosen rate.\n"
    yield "| federation | alone | FedAvg before | after | epsilon 8 before | after | Ditto, epsilon 4 before | after |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, found in scores.items():
        names = (alone(base), plain(0.1), plain(base), central(8.0, "quantile from 0.1", base),
                 central(8.0, clip, base), ditto(4.0, base, 0.1, 0.1), ditto(4.0, base, *pull))  # fmt: skip
        yield f"| {name} | {' | '.join(f'{found[each]:.1f}' for each in names)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-page", action="store_true", help="run nothing")
    scores: Scores = json.loads(STORE.read_text()) if STORE.is_file() else {}
    if not parser.parse_args().only_page:
        measure(scores, list(rate_trials()))
        base = float(choose(by_rate(scores))[0])
        measure(scores, list(clip_trials(base)))
        measure(scores, list(personal_trials(base, choose(by_clip(scores, base))[0])))
    (RESULTS / "defaults.md").write_text(page(scores))


if __name__ == "__main__":
    main()
