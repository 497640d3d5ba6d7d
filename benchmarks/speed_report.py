"""What `benchmarks.speed` found, as a table, a page, a file of numbers and a picture."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.machine import machine
from benchmarks.peers import protocol
from benchmarks.roofline import Rates
from benchmarks.speed_picture import draw
from benchmarks.systems import Setting
from benchmarks.workloads import WORKLOADS, Entry, Workload

_FIGURES = ("Median", "Quartiles", "Processor", "Times Tacit's", "Target", "Roofline", "Share of it")
HEADINGS = ("", "Work", "System", "Setting", *_FIGURES)
NUMBERS = set(_FIGURES)


@dataclass(frozen=True)
class Timing:
    """The rounds of one system on one workload, in its fastest setting."""

    title: str
    seconds: list[float]
    setting: Setting
    tried: dict[str, float]
    versions: dict[str, str]
    processor: list[float] = field(default_factory=list)  # seconds; none where they were not asked for

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
    load_before: float


Timings = dict[str, list[Timing]]
"""By workload; Tacit's first."""


@dataclass(frozen=True)
class Kept:
    """What was measured before: workloads that are measured again replace theirs."""

    timings: Timings = field(default_factory=dict)
    commands: tuple[str, ...] = ()
    rates: tuple[Rates, ...] = ()

    def with_new(self, timings: Timings) -> Timings:
        found = self.timings | timings
        return {key: found[key] for key in WORKLOADS if key in found}


def read(folder: Path) -> Kept:
    saved = json.loads((folder / "speed.json").read_text())

    def timing(one: dict[str, Any]) -> Timing:
        fields = {name: one[name] for name in ("title", "seconds", "tried", "versions")}
        return Timing(**fields, setting=Setting(**one["setting"]), processor=one.get("processor", []))

    timings = {key: [timing(one) for one in work["systems"]] for key, work in saved["workloads"].items()}
    return Kept(timings, (saved["command"],), (Rates(**saved["rates"]),))


def rows(timings: Timings, rates: Rates) -> list[tuple[str, ...]]:
    return [
        row
        for key, found in timings.items()
        for row in (_first(WORKLOADS[key], found[0], rates), *_others(WORKLOADS[key], found))
    ]


def _first(workload: Workload, tacit: Timing, rates: Rates) -> tuple[str, ...]:
    least = workload.work.seconds(rates)
    targets = [f"{workload.within:g} s" + _met(tacit.median <= workload.within)] if workload.within else []
    if workload.of_roofline:
        targets.append(f"{workload.of_roofline:g}x roofline" + _met(tacit.median <= workload.of_roofline * least))
    named = (workload.key, workload.title, *_times(tacit))
    return *named, "", ", ".join(targets), f"{least:.3f} s", f"{least / tacit.median:.0%}"


def _others(workload: Workload, found: list[Timing]) -> list[tuple[str, ...]]:
    tacit, entries = found[0].median, {entry.title: entry for entry in workload.entries}
    return [
        ("", "", *_times(each), f"{each.median / tacit:.2f}", _judge(entries[each.title], each.median / tacit), "", "")
        for each in found[1:]
        if each.title in entries
    ]


def _times(timing: Timing) -> tuple[str, ...]:
    quartiles = "{:.3f} - {:.3f} s".format(*timing.quartiles)
    processor = f"{statistics.median(timing.processor):.3f} s" if any(timing.processor) else ""
    return timing.title, str(timing.setting), f"{timing.median:.3f} s", quartiles, processor


def _judge(entry: Entry, ratio: float) -> str:
    if entry.faster is not None:
        return f"{entry.faster:g}" + _met(ratio >= entry.faster)
    if entry.longer is not None:
        return f"{1 / entry.longer:.2f} (Tacit takes {1 / ratio:.2f}x, {entry.longer:g}x allowed)" + _met(
            1 / ratio <= entry.longer
        )
    return ""


def _met(met: bool) -> str:
    return ": met" if met else ": NOT met"


def print_table(timings: Timings, rates: Rates, console: Console) -> None:
    table = Table(title="Seconds a round")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading in NUMBERS else "left")
    for row in rows(timings, rates):
        table.add_row(*row)
    console.print(table)


def _markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    align = ["---:" if heading in NUMBERS else "---" for heading in headings]
    return "\n".join("| " + " | ".join(row) + " |" for row in (headings, align, *rows))


def _tried_rows(timings: Timings) -> list[tuple[str, ...]]:
    return [
        (key, timing.title, setting, f"{median:.3f} s")
        for key, found in timings.items()
        for timing in found
        for setting, median in timing.tried.items()
    ]


def _version_lines(timings: Timings) -> str:
    versions = {timing.title.split(",")[0]: timing.versions for found in timings.values() for timing in found}
    return "\n".join(
        f"- {title}: " + ", ".join(f"{package} {number}" for package, number in each.items())
        for title, each in versions.items()
    )


def _work_rows(timings: Timings, rates: Rates) -> list[tuple[str, ...]]:
    works = [(key, WORKLOADS[key].work) for key in timings]
    return [
        (
            key,
            f"{work.operations / 1e9:.1f}",
            f"{work.bytes / 1e6:.0f}",
            f"{work.operations / rates.operations:.3f} s",
            f"{work.bytes / rates.bytes:.3f} s",
        )
        for key, work in works
    ]


def markdown(timings: Timings, rates: Rates, run: Run) -> str:
    return f"""# Seconds a round

Written by `{run.command}`; do not edit.

![Seconds a round by system and workload](speed.png)

{_markdown_table(HEADINGS, rows(timings, rates))}

Medians of rounds that the systems of a workload did in turns, each warm in a process of its own and begun when the
machine was idle (Ray clears up for a while after a round of Flower's); {protocol.WARM_UP_ROUNDS} rounds before are not
counted. Where processes share a round, the last to finish counts. Processor is the median of the processor time of a
round, in all threads and processes (Flower's actors are not seen, so what stands there is its server's).

{_what_a_round_is(timings)}

{_roofline(timings, rates)}

## Machine and versions

{machine()}; load average {run.load_before:.2f} before the start.

{_version_lines(timings)}
"""


def _what_a_round_is(timings: Timings) -> str:
    sizes = protocol.unequal_sizes()
    return f"""## What a round is

- **a, b, c**: DP-FedAvg: draw {protocol.COHORT["mlp"]} (c: {protocol.COHORT["writers"]}) of {protocol.CLIENTS:,}
  clients, train each for {protocol.LOCAL_EPOCHS} epochs over its {protocol.IMAGES_PER_CLIENT} images in batches of
  {protocol.BATCH} (SGD, rate {protocol.LOCAL_RATE}), clip each update to an L2 norm of {protocol.CLIP_NORM}, sum, add
  Gaussian noise once, step the shared model. Images are random, 28 x 28, in memory before the clock starts.
- **d1, d2**: Ditto, which trains a second model for each client and keeps it, beside FedAvg.
- **e**: {protocol.RECORD_CLIENTS} clients, {protocol.RECORD_ROWS // protocol.RECORD_BATCH} steps of DP-SGD each,
  batches of {protocol.RECORD_BATCH} by Poisson sampling. Opacus trains client after client with its own optimizer,
  wrapped once; once with stored gradients (its default), once with ghost clipping. It is timed on
  {protocol.RECORD_CLIENTS // protocol.OPACUS_SHARE} clients and scaled to all, which one after another is exact.
- **f**: every client's own model on {protocol.TESTS} images of its own, and the shared model on all of them.
- **g**: one epoch over clients with a log-normal number of images, {min(sizes)} to {max(sizes)} (mean
  {sum(sizes) / len(sizes):.0f}), beside clients that all have the mean; seconds are scaled to equal work.
- **h**: pfl-research's own benchmark of CIFAR-10: {_setting("cifar")}, random images of 32 x 32 in three colours,
  conv 32, conv 64, pool, dropout .25, dense 128, dropout .5, dense 10: 1,626,442 parameters. Its data and its number of
  rounds are left out: a round takes as long whatever the images show.
- **i**: {_setting("words")}; sentences of
  {protocol.SENTENCE} words out of {protocol.WORDS:,}, with the next word as the label of each place; two blocks
  {protocol.WIDTH} wide with {protocol.HEADS} heads and {protocol.FEED_FORWARD:,} between.
- **j**: {_setting("lora")}; ViT-tiny
  ({protocol.VIT_LAYERS} blocks {protocol.VIT_WIDTH} wide, 65 places), frozen, with adapters of rank {protocol.RANK}
  and a head to train.

The JAX programs are jitted as a whole: clients by `scan`, on each core a share of them (`pmap`), or by `vmap`; a
client's steps by `scan`. FedJAX is its `for_each_client`. For e a JAX program has norms by ghost products, written by
hand, with Poisson draws (cut off at 96 rows) and noise, without a ledger or states of clients.

pfl-research is set up as in its own image classification benchmark (`FederatedAveraging`, `PyTorchModel`, users from
`FederatedDataset.from_slices` over tensors, `CentrallyAppliedPrivacyMechanism(GaussianMechanism)`). Flower runs a
ServerApp and a ClientApp of its message API in its simulation engine, an actor a core, without a strategy between: the
least that a round can be there. The PyTorch loop trains one client after another with `nn.Module` and
`torch.optim.SGD`. Each ran in the fastest of these settings, by the median of a few rounds beforehand:

{_markdown_table(("Work", "System", "Setting", "Median"), _tried_rows(timings))}"""


def _setting(model: str) -> str:
    how = protocol.FIELD[model]
    epochs = "one epoch" if how.epochs == 1 else f"{how.epochs} epochs"
    who = f"{how.cohort} of {how.clients:,} clients with {how.examples} examples each"
    return f"{who}, {epochs} in batches of {how.batch} at rate {how.rate}, clip {how.clip}"


def _roofline(timings: Timings, rates: Rates) -> str:
    return f"""## Roofline

In this run, on all cores, a matrix product of 1,536 x 1,536 reached {rates.operations / 1e9:.0f} GFLOP/s and a copy of
128 MiB {rates.bytes / 1e9:.1f} GB/s, read and written (medians of measurements before, between and after). The roofline
is the longer of operations at the first and bytes at the second; its share is what part of Tacit's time that is.

{_markdown_table(("Work", "GFLOP", "MB", "Operations", "Bytes"), _work_rows(timings, rates))}

Operations are those of the plain algorithm: two for each weight and each place it is used at, in the forward pass, for
the gradient of the weights, and for the gradient of the inputs except in the first layer (e: without the extra work of
norms by example). Bytes are what must come from memory whatever is kept in cache: each example once, each client's
models once in and once out. What stands between Tacit and the roofline: where networks are small (a, d1, g), what one
thread does for all (drawing batches and noise, the ledger, the server), clients' states on their way in and out, and
that a round here comes after an idle second: in a row it takes a tenth to a fifth less; in b, rows of pooled places
that do not fill vectors, the linear layers' small products, and copies between layouts; in c, that the linear layer's
matrix (4.7 MB a client) is read twice and written once in a step, from beyond a core's cache. A share may be above what
an operation count suggests: the first linear layer's steps are done on shares of examples (a, d1) and c's second
convolution by Winograd's method, each with a quarter of the multiplications."""


def as_json(timings: Timings, rates: Rates, run: Run) -> dict[str, Any]:
    def one(timing: Timing) -> dict[str, Any]:
        lower, upper = timing.quartiles
        return {"median": timing.median, "lower_quartile": lower, "upper_quartile": upper} | asdict(timing)

    works = {
        key: {"title": WORKLOADS[key].title, "roofline": WORKLOADS[key].work.seconds(rates)}
        | {"systems": [one(timing) for timing in found]}
        for key, found in timings.items()
    }
    return asdict(run) | {"machine": machine(), "rates": asdict(rates), "workloads": works}


README_ROWS = {
    "a": "DP-FedAvg, MLP, 100 clients",
    "b": "DP-FedAvg, small CNN, 100 clients",
    "c": "DP-FedAvg, large CNN, 30 clients",
    "h": "DP-FedAvg, pfl-research's CIFAR-10 CNN, 50 clients",
    "i": "DP-FedAvg, transformer over words, 20 clients",
    "e": "record-level DP-SGD, 100 clients",
}
BEGIN, END = "<!-- figures of speed -->", "<!-- end of figures of speed -->"


def write_readme_table(timings: Timings, readme: Path) -> None:
    """Puts the medians between the two marks of the README."""
    lines = ["| a round of | Tacit | others, and how many times as long they take |", "|---|---:|---|"]
    for key, what in README_ROWS.items():
        if key in timings:
            tacit, *others = timings[key]
            beside = (f"{each.title} {each.median:.3g} s ({each.median / tacit.median:.2g}x)" for each in others)
            lines.append(f"| {what} | {tacit.median:.3g} s | {', '.join(beside)} |")
    text = readme.read_text()
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    readme.write_text(before + "\n" + "\n".join(lines) + "\n" + after)


def write(timings: Timings, rates: Rates, run: Run, to: Path) -> None:
    to.mkdir(parents=True, exist_ok=True)
    (to / "speed.md").write_text(markdown(timings, rates, run))
    (to / "speed.json").write_text(json.dumps(as_json(timings, rates, run), indent=1) + "\n")
    panels = {f"{key}  {WORKLOADS[key].title}": found for key, found in timings.items()}
    least = [WORKLOADS[key].work.seconds(rates) for key in timings]
    bars = [[(timing.title, timing.median, timing.quartiles) for timing in found] for found in panels.values()]
    draw(list(panels), bars, least, to / "speed.png")
