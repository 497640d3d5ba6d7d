"""Which defaults: learning rate, clip and Ditto's pull, tried on validation rows of ten federations of different kind.

`python -m benchmarks.defaults` runs what is missing in results/defaults.json and writes results/defaults.md. A choice
is the setting whose mean shortfall, behind the best one tried on each federation, is smallest.
"""

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

import tacit
from benchmarks.federations import FEDERATIONS, SEEDS, World
from tacit.core.checked import checked
from tacit.core.contract import Method, Shared, Site, Tree
from tacit.rounds.evaluate import Scores as Evaluated
from tacit.rounds.evaluate import evaluate

RESULTS: Final = Path(__file__).parent / "results"
STORE: Final = RESULTS / "defaults.json"
TRAINING: Final = tacit.Training(rounds=40, sampler=tacit.Poisson(0.25), batch=10)
RATES: Final = (0.03, 0.1, 0.3, 1.0)
EPSILONS: Final = (2.0, 8.0)
PERSONAL_RATES: Final = (0.1, 0.3)
STRENGTHS: Final = (0.1, 0.3, 1.0, 3.0)
ALWAYS: Final = ", always the personal model"
CLIPS: Final[Mapping[str, tacit.Fixed | tacit.Quantile]] = {
    "quantile from 0.1": tacit.Quantile(0.1, target=0.5, speed=0.2, thrift=5.0),
    "quantile from 1": tacit.Quantile(1.0, target=0.5, speed=0.2, thrift=5.0),
    "quantile from 0.5, target 0.2": tacit.Quantile(0.5, target=0.2, speed=0.2, thrift=5.0),
    "quantile from 0.5, target 0.1": tacit.Quantile(0.5, target=0.1, speed=0.2, thrift=5.0),
    "fixed 0.3": tacit.Fixed(0.3),
    "fixed 1": tacit.Fixed(1.0),
}
Scores = dict[str, dict[str, list[float]]]
"""By federation, by setting, in points: one for each seed, in their order."""


@checked
@dataclass(frozen=True)
class AlwaysPersonal(tacit.Ditto):
    """The control of Ditto's choice between both models: a client predicts with its personal model, come what may."""

    def adapt(self, view: Shared, state: Tree, site: Site) -> Tree:
        return state


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
    for epsilon, lr, strength in itertools.product(PULLED, PERSONAL_RATES, STRENGTHS):
        method = tacit.Ditto(tacit.FedAvg(tacit.LocalSgd(base)), strength, tacit.LocalSgd(lr))
        yield Trial(ditto(epsilon, base, lr, strength), method, "personal", epsilon, CLIPS[clip], opted_out=True)


def points(world: World, scores: Evaluated, judged: str) -> float:
    """Accuracy in percent; of a regression, how much of the targets' spread its error leaves out, in percent."""
    value = float(getattr(scores, judged).mean())
    if scores.metric.larger:
        return 100 * value if np.isfinite(value) else 0.0
    spread = float(world.data.test_y.double().std())
    return 100 * max(0.0, 1 - value / spread) if np.isfinite(value) else 0.0


def run(world: World, trial: Trial, seed: int) -> dict[str, float]:
    """What one run gives; of Ditto also what it would give without the choice between both models."""
    result = tacit.train(
        world.data,
        world.model,
        trial.method,
        trial.privacy(world.data.clients),
        replace(TRAINING, seed=seed),
        schedule=tacit.Schedule(evaluate_every=TRAINING.rounds),
        performance=tacit.Performance(threads=1),
        progress=False,
    )
    found = {trial.name: points(world, result.scores, trial.judged)}
    if isinstance(trial.method, tacit.Ditto):
        now, method = result.run, trial.method
        always = AlwaysPersonal(method.base, method.strength, method.personal)
        engine = replace(now.engine, method=always, programs={}, decisions={})
        scores = evaluate(engine, now.progress.server.view, now.store, now.progress.round)
        found[trial.name + ALWAYS] = points(world, scores, trial.judged)
    return {name: round(value, 2) for name, value in found.items()}


def measure(scores: Scores, trials: Sequence[Trial], seeds: int) -> None:
    """Runs what is missing for the first `seeds` seeds, federation by federation; what is done is kept at once."""
    for number, (name, make) in itertools.product(range(seeds), FEDERATIONS.items()):
        known = scores.setdefault(name, {})
        missing = [trial for trial in trials if len(known.get(trial.name, [])) <= number]
        world = make(SEEDS[number]) if missing else None
        for trial in missing:
            assert world is not None
            for setting, value in run(world, trial, SEEDS[number]).items():
                known.setdefault(setting, []).append(value)
            STORE.write_text(json.dumps(scores, indent=1) + "\n")
        if missing:
            print(f"seed {SEEDS[number]}, {name}: {len(missing)} runs", flush=True)


def seeds_of(scores: Scores, several: Sequence[str]) -> int:
    """How many seeds all of these settings have on all federations."""
    return min(len(found.get(each, [])) for found in scores.values() for each in several)


def shortfalls(scores: Scores, several: Sequence[str]) -> dict[str, np.ndarray]:
    """By setting, seed by seed: the mean over federations of how far it stays behind the best of them.

    Which one is best on a federation is told by the mean over its seeds.
    """
    seeds = seeds_of(scores, several)
    behind: dict[str, list[np.ndarray]] = {each: [] for each in several}
    for found in scores.values():
        values = {each: np.array(found[each][:seeds]) for each in several}
        best = max(values.values(), key=lambda of: float(of.mean()))
        for each in several:
            behind[each].append(best - values[each])
    return {each: np.mean(lists, axis=0) for each, lists in behind.items()}


Table = Mapping[tuple[str, ...], tuple[np.ndarray, ...]]
"""By setting, as its row has it: mean shortfalls, a column each, seed by seed."""


def by_rate(scores: Scores) -> Table:
    columns = [shortfalls(scores, [name(lr) for lr in RATES]) for name in (plain, alone)]
    return {(f"{lr:g}",): (columns[0][plain(lr)], columns[1][alone(lr)]) for lr in RATES}


def by_clip(scores: Scores, lr: float) -> Table:
    columns = [shortfalls(scores, [central(e, clip, lr) for clip in CLIPS]) for e in EPSILONS]
    return {(c,): tuple(f[central(e, c, lr)] for e, f in zip(EPSILONS, columns, strict=True)) for c in CLIPS}


PAIRS: Final = tuple(itertools.product(PERSONAL_RATES, STRENGTHS))
PULLED: Final = (None, 4.0)  # epsilons at which Ditto's pull is tried


def seeds_of_pull(scores: Scores, base: float, pair: tuple[float, float]) -> int:
    return seeds_of(scores, [ditto(epsilon, base, *pair) for epsilon in PULLED])


def by_pull(scores: Scores, base: float, pairs: Sequence[tuple[float, float]]) -> Table:
    columns = [(e, shortfalls(scores, [ditto(e, base, *pair) for pair in pairs])) for e in PULLED]
    return {
        (f"{lr:g}", f"{strength:g}"): tuple(found[ditto(e, base, lr, strength)] for e, found in columns)
        for lr, strength in pairs
    }


def pull_tables(scores: Scores, base: float) -> list[Table]:
    """All pairs, with the seeds that all of them have; and those with more seeds, which decide."""
    seeds = {pair: seeds_of_pull(scores, base, pair) for pair in PAIRS}
    tried = [pair for pair in PAIRS if seeds[pair]]
    most = [pair for pair in tried if seeds[pair] == max(seeds.values())]
    tables = [by_pull(scores, base, tried)]
    return tables if most == tried else [*tables, by_pull(scores, base, most)]


def choose(table: Table) -> tuple[str, ...]:
    """The smallest shortfall; all columns count alike."""
    return min(table, key=lambda setting: float(np.mean(table[setting])))


def with_error(values: np.ndarray, sign: str = "") -> str:
    """A mean over seeds with its standard error."""
    error = f" ± {values.std(ddof=1) / np.sqrt(len(values)):.1f}" if len(values) > 1 else ""
    return f"{values.mean():{sign}.1f}{error}"


_HEAD: Final = """# How defaults were chosen

Written by `python -m benchmarks.defaults`. Ten small federations of different kind, 40 rounds at rate 0.25 (a client
takes part ten times, as with `Training()`), batches of 10. What is measured are **validation rows**, 30% of each
client's training rows; test rows are not touched, and the seeds (data, start, draws, noise: 100 and
those after it) are none that another page reports. Points are accuracy in percent; of the regressions, how much of the
targets' standard deviation the error leaves out. A **shortfall** is how far a setting stays behind the best one of its
column, in the mean over the ten federations. All columns of a table count alike. ± is the standard error over seeds.
"""


def page(scores: Scores) -> str:
    (lr,), base = choose(by_rate(scores)), float(choose(by_rate(scores))[0])
    (clip,), tables = choose(by_clip(scores, base)), pull_tables(scores, base)
    pull = choose(tables[-1])
    chosen = float(pull[0]), float(pull[1])
    parts = [
        _HEAD,
        *_table("Learning rate", "FedAvg without privacy, and training alone.", ("lr",), ("FedAvg", "alone"),
                by_rate(scores)),
        *_table("Clip", f"DP-FedAvg under `Central`, at the rate {lr}.", ("clip",),
                [f"epsilon {e:g}" for e in EPSILONS], by_clip(scores, base)),
        *_pull_tables(tables),
        *_choice_table(scores, base, chosen),
        *_each_table(scores, base, clip, chosen),
    ]  # fmt: skip
    return "\n".join([*parts, ""])


def _table(title: str, note: str, names: Sequence[str], columns: Sequence[str], table: Table) -> Iterator[str]:
    heads, seeds = [*names, *columns, "mean shortfall", ""], len(next(iter(table.values()))[0])
    yield f"## {title}\n\n{note} {seeds} seed{'s' * (seeds > 1)}.\n"
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(names)}{'---:|' * (len(columns) + 1)}---|"
    for setting in sorted(table, key=lambda each: float(np.mean(table[each]))):
        cells = [with_error(value) for value in (*table[setting], np.mean(table[setting], axis=0))]
        yield f"| {' | '.join([*setting, *cells, 'chosen' if setting == choose(table) else ''])} |"
    yield ""


def _pull_tables(tables: Sequence[Table]) -> Iterator[str]:
    about = (
        "Personal models, without privacy and under `Grouped` (epsilon 4, a tenth opted out); the shared model has the "
        "rate and the clip from above.",
        "Those that decide, with more seeds.",
    )
    for number, (table, note) in enumerate(zip(tables, about, strict=False)):
        title = "Ditto's pull" + ", again" * number
        yield from _table(title, note, ("personal lr", "strength"), ("open", "epsilon 4"), table)


def _choice_table(scores: Scores, base: float, pull: tuple[float, float]) -> Iterator[str]:
    """Of the same runs: with the choice between both models, and without."""
    yield "## Does it help that a client keeps the better one of two models?\n\nBefore it predicts, a client of Ditto"
    yield "compares its personal model with the shared one on its training rows, and keeps the better one. Points with"
    yield "the choice less points without it, of the same runs, in the mean over federations, paired by seed; and the"
    yield "federation that gains least and most.\n"
    yield "| personal lr | strength | open | least | most | epsilon 4 | least | most |"
    yield "|---|---|---:|---:|---:|---:|---:|---:|"
    for lr, strength in PAIRS:
        settings = [ditto(epsilon, base, lr, strength) for epsilon in PULLED]
        if not seeds_of(scores, [*settings, *(each + ALWAYS for each in settings)]):
            continue
        cells: list[str] = []
        for setting in settings:
            gains = _gains(scores, setting)
            ends = gains.mean(1)
            cells += [with_error(gains.mean(0), "+"), f"{ends.min():+.1f}", f"{ends.max():+.1f}"]
        mark = "**" if (lr, strength) == pull else ""
        yield f"| {mark}{lr:g}{mark} | {mark}{strength:g}{mark} | {' | '.join(cells)} |"
    yield ""


def _gains(scores: Scores, setting: str) -> np.ndarray:
    """[federation, seed]"""
    seeds = seeds_of(scores, [setting, setting + ALWAYS])
    return np.array([np.subtract(f[setting][:seeds], f[setting + ALWAYS][:seeds]) for f in scores.values()])


def _each_table(scores: Scores, base: float, clip: str, pull: tuple[float, float]) -> Iterator[str]:
    yield "## Each federation, in points\n\nMeans over the seeds there are. Before: FedAvg at rate 0.1; DP-FedAvg at"
    yield "the chosen rate, with a clip from 0.1; Ditto at the personal rate 0.1 with strength 0.1."
    yield "Alone: at the chosen rate.\n"
    yield "| federation | alone | FedAvg before | after | epsilon 8 before | after | Ditto, epsilon 4 before | after |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for name, found in scores.items():
        names = (alone(base), plain(0.1), plain(base), central(8.0, "quantile from 0.1", base),
                 central(8.0, clip, base), ditto(4.0, base, 0.1, 0.1), ditto(4.0, base, *pull))  # fmt: skip
        yield f"| {name} | {' | '.join(f'{np.mean(found[each]):.1f}' for each in names)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only-page", action="store_true", help="run nothing")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), choices=range(1, len(SEEDS) + 1))
    options = parser.parse_args()
    scores: Scores = json.loads(STORE.read_text()) if STORE.is_file() else {}
    if not options.only_page:
        measure(scores, list(rate_trials()), options.seeds)
        base = float(choose(by_rate(scores))[0])
        measure(scores, list(clip_trials(base)), options.seeds)
        measure(scores, list(personal_trials(base, choose(by_clip(scores, base))[0])), options.seeds)
    (RESULTS / "defaults.md").write_text(page(scores))


if __name__ == "__main__":
    main()
