"""What `benchmarks.speed` found, as a table, a page, a file of numbers and a picture."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.peers import protocol
from benchmarks.systems import SYSTEMS, Setting

TRIAL_ROUNDS = 5
HEADINGS = ("System", "Setting", "Median", "Quartiles", "Ratio")
NUMBERS = HEADINGS[2:]
MODEL_TITLES = {"mlp": "MLP 784-100-10", "cnn": "CNN 6-16-120-84-10", "writers": "CNN 32-64-128-62"}


@dataclass(frozen=True)
class Timing:
    """The rounds of one system on one model, in its fastest setting."""

    seconds: list[float]
    setting: Setting
    tried: dict[str, float]
    versions: dict[str, str]

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def quartiles(self) -> tuple[float, float]:
        lower, _, upper = statistics.quantiles(self.seconds, n=4, method="inclusive")
        return lower, upper


@dataclass(frozen=True)
class Run:
    """What was asked for, and how busy the machine was before."""

    command: str
    repeats: int
    load_before: float


Timings = dict[str, dict[str, Timing]]


def _rows(timings: dict[str, Timing]) -> list[tuple[str, ...]]:
    """A row for each system, as text; the last column is its median over that of the first system."""
    first = next(iter(timings.values())).median
    return [
        (
            SYSTEMS[name].title,
            str(timing.setting),
            f"{timing.median:.3f} s",
            "{:.3f} - {:.3f} s".format(*timing.quartiles),
            f"{timing.median / first:.2f}x",
        )
        for name, timing in timings.items()
    ]


def print_tables(timings: Timings, console: Console) -> None:
    for model, of_model in timings.items():
        table = Table(title=MODEL_TITLES[model])
        for heading in HEADINGS:
            table.add_column(heading, justify="right" if heading in NUMBERS else "left")
        for row in _rows(of_model):
            table.add_row(*row)
        console.print(table)


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    align = ["---:" if heading in NUMBERS else "---" for heading in headings]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, align, *rows))


def _tried_rows(timings: Timings) -> list[tuple[str, ...]]:
    return [
        (MODEL_TITLES[model], SYSTEMS[name].title, setting, f"{median:.3f} s")
        for model, of_model in timings.items()
        for name, timing in of_model.items()
        for setting, median in timing.tried.items()
    ]


def _version_lines(timings: Timings) -> str:
    of_model = next(iter(timings.values()))
    return "\n".join(
        f"- {SYSTEMS[name].title}: " + ", ".join(f"{package} {number}" for package, number in timing.versions.items())
        for name, timing in of_model.items()
    )


def markdown(timings: Timings, run: Run) -> str:
    tables = "\n\n".join(
        f"## {MODEL_TITLES[model]}\n\n{_markdown_table(HEADINGS, _rows(of_model))}"
        for model, of_model in timings.items()
    )
    first = next(iter(next(iter(timings.values()))))
    tried = _markdown_table(("Model", "System", "Setting", "Median"), _tried_rows(timings))
    cohorts = ", ".join(f"{protocol.COHORT[model]} ({MODEL_TITLES[model]})" for model in timings)
    return f"""# Seconds a round

Written by `{run.command}`; do not edit.

![Seconds a round by system and model](speed.png)

{tables}

Ratio: a system's median over that of {SYSTEMS[first].title}.

## What was counted

A round of DP-FedAvg: draw {cohorts} of {protocol.CLIENTS:,} clients, train each for
{protocol.LOCAL_EPOCHS} epochs over its {protocol.IMAGES_PER_CLIENT} images in batches of {protocol.BATCH} (SGD,
rate {protocol.LOCAL_RATE}), clip each update to an L2 norm of {protocol.CLIP_NORM}, sum, add Gaussian noise once, and
step the shared model. The images are random, {protocol.IMAGE_SIDE} x {protocol.IMAGE_SIDE}, in memory before the clock
starts. Nothing is evaluated. Start-up and {protocol.WARM_UP_ROUNDS} warm-up rounds are not counted.

The systems stay warm in processes of their own and take turns round by round, {run.repeats} rounds each, so that only
one computes at a time. Every system's process times its own round; where several processes share one, the last to
finish counts.

pfl-research is set up as in its own image classification benchmark: `FederatedAveraging`, `PyTorchModel`, users from
`FederatedDataset.from_slices` over tensors, and `WeightByUser` and
`CentrallyAppliedPrivacyMechanism(GaussianMechanism)` as postprocessors. The PyTorch loop trains one client after
another with `nn.Module` and `torch.optim.SGD`. Both go through a client's images in the same order every epoch.

Each system ran in the fastest of these settings, by the median of {TRIAL_ROUNDS} rounds beforehand. Sharing a round
between processes is the advice of pfl-research's guide for small models.

{tried}

## Machine and versions

{machine()}; load average {run.load_before:.2f} before the start.

{_version_lines(timings)}

## To repeat it

```
{run.command}
```
"""


def as_json(timings: Timings, run: Run) -> dict[str, Any]:
    def one(timing: Timing) -> dict[str, Any]:
        lower, upper = timing.quartiles
        return {"median": timing.median, "lower_quartile": lower, "upper_quartile": upper} | asdict(timing)

    models = {model: {name: one(timing) for name, timing in each.items()} for model, each in timings.items()}
    return asdict(run) | {"machine": machine(), "models": models}


def draw(timings: Timings, path: Path) -> None:
    """A panel for each model, a bar for each system, whiskers over the middle half of its rounds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    height = 1.1 + 0.5 * max(map(len, timings.values()))
    figure, panels = plt.subplots(1, len(timings), figsize=(5.2 * len(timings), height), squeeze=False)
    for panel, (model, of_model) in zip(panels[0], timings.items(), strict=True):
        _draw_panel(panel, MODEL_TITLES[model], of_model)
    figure.tight_layout(w_pad=3)
    figure.savefig(path, dpi=160)
    plt.close(figure)


def _draw_panel(panel: Any, title: str, timings: dict[str, Timing]) -> None:
    medians = [timing.median for timing in timings.values()]
    quartiles = [timing.quartiles for timing in timings.values()]
    below = [median - lower for median, (lower, _) in zip(medians, quartiles, strict=True)]
    above = [upper - median for median, (_, upper) in zip(medians, quartiles, strict=True)]
    titles = [SYSTEMS[name].title for name in timings]
    colors = ["#1f6f8b" if name == "tacit" else "#b8c4cc" for name in timings]
    panel.barh(titles, medians, xerr=[below, above], color=colors, ecolor="#444444", height=0.62, capsize=3)
    ends = [upper for _, upper in quartiles]
    for place, (end, median) in enumerate(zip(ends, medians, strict=True)):
        label = f"{median:.2f} s ({median / medians[0]:.1f}x)" if place else f"{median:.2f} s"
        panel.text(end + 0.02 * max(ends), place, label, va="center", fontsize=9)
    panel.set_xlim(0, 1.35 * max(ends))
    panel.invert_yaxis()
    panel.set_title(title, fontsize=10, loc="left")
    panel.set_xlabel("seconds a round (less is better)", fontsize=9)
    panel.spines[["top", "right", "left"]].set_visible(False)
    panel.tick_params(axis="y", length=0)


def write(timings: Timings, run: Run, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    (to / "speed.md").write_text(markdown(timings, run))
    (to / "speed.json").write_text(json.dumps(as_json(timings, run), indent=1) + "\n")
    draw(timings, to / "speed.png")
