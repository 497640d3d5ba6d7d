"""What an attacker gets of a run, in pictures: who can be found out, and what one round shows of somebody's data.

*Found out*: of 100 members at each level, how many an attacker finds at most who wrongly accuses 1 outsider in 100;
from the ledger. *Shown*: the attacker knows everybody else's data, takes their part off what was released in the first
round, and looks at what is left along the first layer's weights. Without noise that is a blurred mean of the client's
own pictures. With the plan's noise it is what the guarantee leaves of it.
"""

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from tacit.errors import TacitError
from tacit.evidence.membership import Attacked, membership
from tacit.experiments.build import build
from tacit.experiments.config import parse
from tacit.experiments.train import reopen_run
from tacit.privacy.mechanisms.clipping import clip
from tacit.report.charts import MEASURED
from tacit.report.figures import NEUTRAL, PALETTE, Figure, Heat, Panel, Series
from tacit.report.html import origin
from tacit.report.page import document, facts, mark, sections
from tacit.report.run_folder import existing
from tacit.report.summary import RunSummary, open_run
from tacit.rounds.loop import Run

_GREY: Final = ("#ffffff", "#111111")
_SEED: Final = 0  # of the noise in a picture: another draw looks as empty


def attack_page(path: Path, client: str | None = None, references: int = 0) -> str:
    """The page of the run in a folder.

    Args:
        path: the folder.
        client: whose data are looked for; the first private one's if left out.
        references: how many models are trained like the run's, each with half of the clients, to see who is found out
            in fact; 0 for none.
    """
    findings = open_run(path)
    run, _ = reopen_run(path)
    figures = [_membership_limit(findings), *_shown(findings, run, client)]
    if references:
        figures[1:1] = _membership_measured(findings, membership(build(parse(existing(path).content())), references))
    intro = (
        f"<header><h1>What an attacker gets: {escape(findings.title)}</h1><p>Two attacks on this run. The first asks "
        "whether somebody took part, and its best possible success follows from the ledger. The second looks for "
        f"somebody's data in a single round.</p>{facts(origin(findings))}</header>{mark(MEASURED)}"
    )
    return document(f"What an attacker gets: {findings.title}", intro + sections(figures))


def _membership_limit(findings: RunSummary) -> Figure:
    """Members found of 100, by level; no level without a guarantee looks like one that has one."""
    rows: list[tuple[str, float, str]] = [("guessing", 1.0, NEUTRAL)]
    for at, promise in enumerate(each for each in findings.facts.promises if each.clients):
        limit = None if findings.spending is None else findings.spending.risk(promise.level)
        if promise.standing == "protected" and limit is not None:
            rows.append((promise.level, 100 * limit.found, PALETTE[at % len(PALETTE)]))
        elif promise.standing in ("opted out", "no noise"):
            rows.append((f"{promise.level}: no limit", 100.0, PALETTE[1]))
    series = [Series(name, [0], [value], color) for name, value, color in rows]
    note = (
        "Of 100 members, how many can be found at most by an attacker who wrongly accuses 1 outsider in 100. It may "
        "know everything but who took part. Somebody without a guarantee may be found for certain."
    )
    panel = Panel("", "", "members found of 100", series, bars=True, y_range=(0, 105), x_names={0: ""})
    return Figure("found", note, [panel], "Can it be found out that somebody took part?")


def _membership_measured(findings: RunSummary, attacked: Mapping[str, Attacked]) -> Sequence[Figure]:
    """Hits at each rate of false alarms, by level and attack, below what the ledger allows."""
    panels = []
    for at, (level, attack) in enumerate(attacked.items()):
        color = PALETTE[at % len(PALETTE)]
        lines = [Series("guessing", [0, 1], [0, 1], NEUTRAL, style="dot", width=1.2)]
        bound = None if findings.spending is None else findings.spending.risk(level)
        if bound is not None:
            alarms, misses = zip(*bound.curve, strict=True)
            lines.append(Series("at most", alarms, [1 - each for each in misses], NEUTRAL, style="dash"))
        for kind, style in (("reference", "solid"), ("loss", "dot")):
            lines.append(Series(attack.words(kind), *attack.curve(kind), color, style=style))  # type: ignore[arg-type]
        title = f"{level}: {attack.clients} clients"
        panels.append(Panel(title, "false alarms", "members found", lines, x_range=(0, 1), y_range=(0, 1.03)))
    note = (
        "Models were trained like this run's, each with half of the clients. The attacker sees a model and a client's "
        "own rows, and says whether the client was among them: by their loss, or by how much smaller it is than under "
        "models that never saw them. In brackets: how often a member looks more like one than an outsider does (half "
        "the time: nothing is learned), with its standard error. A better attack may find more, up to the dashed line."
    )
    return [Figure("found in fact", note, panels, "And who is found out in fact?", MEASURED)] if panels else []


def _shown(findings: RunSummary, run: Run, client: str | None) -> Sequence[Figure]:
    """Three pictures; none for data that are no pictures, or plans whose noise is not one number a level."""
    shape = run.engine.federation.input_shape
    side = shape[-2:] if len(shape) > 1 else (round(math.prod(shape) ** 0.5),) * 2
    level, victim = _victim(run, client)
    noise = next((each.noise for each in findings.facts.promises if each.level == level), None)
    if noise is None or "bound" not in run.progress.public or int(np.prod(side)) != int(np.prod(shape)):
        return []
    views = _one_round(run, victim, noise)
    names = {
        "mean": "the mean of this client's pictures",
        "bare": "what its upload shows without noise",
        "noisy": "what a round shows with the noise of this run",
    }
    panels = [_picture(names[name], value.reshape(side).numpy()) for name, value in views.items()]
    note = (
        f"A client at level '{level}', the first step of the first round. The attacker knows the model and everybody "
        "else's data, and takes their part off what was released. The last picture is one draw of the noise that was "
        "charged. A run has many rounds: what all of them together show is bounded by the figure above."
    )
    return [Figure("shown", note, panels, "Can somebody's data be seen in a round?", MEASURED)]


def _victim(run: Run, client: str | None) -> tuple[str, int]:
    choices, ids = run.plan.setting.choices, run.engine.federation.ids
    if client is not None:
        if client not in ids:
            raise TacitError(f"there is no client '{client}' in this run of {len(ids)}")
        return choices.of(ids.index(client)).name, ids.index(client)
    private = np.flatnonzero(choices.private)
    if not len(private):
        raise TacitError("nobody in this run is at a private level: there is no noise to look through")
    return choices.of(int(private[0])).name, int(private[0])


def _one_round(run: Run, victim: int, noise: float) -> dict[str, Tensor]:
    """The client's mean picture, and its clipped first-round upload along the first layer, bare and noisy."""
    engine = run.engine
    rows = torch.arange(*engine.federation.offsets[victim : victim + 2])
    x, y = engine.federation.take(rows)
    dtype = next(iter(engine.start.values())).dtype
    pull = torch.func.grad(lambda p: engine.task.losses(p, x.to(dtype), y).mean())(engine.start)
    size = int(np.prod(engine.federation.input_shape))
    layer = next((name for name, leaf in pull.items() if leaf.ndim == 2 and leaf.shape[-1] == size), None)
    if layer is None:
        raise TacitError(
            "the network's first layer sees no whole picture (a convolution): this picture needs a dense one"
        )
    # as long as local training would make it, or longer: clipped to the bound, as every upload is
    bound = float(run.progress.public["bound"])
    longer = {name: -1e6 * leaf for name, leaf in pull.items()}
    clipped, _ = clip(longer, bound)
    bare = clipped[layer]
    drawn = torch.randn(bare.shape, generator=torch.Generator().manual_seed(_SEED), dtype=bare.dtype)
    noisy = bare + noise * bound * drawn
    return {"mean": x.reshape(len(x), -1).mean(0), "bare": _strongest(bare, bare), "noisy": _strongest(noisy, bare)}


def _strongest(weights: Tensor, bare: Tensor) -> Tensor:
    """The picture in a matrix of weights, along the outputs that the client moved most: the attacker knows which."""
    left = torch.linalg.svd(bare.double(), full_matrices=False).U[:, 0]
    picture = left @ weights.double()
    along = left @ bare.double()
    return picture if along.sum() >= 0 else -picture


def _picture(title: str, values: np.ndarray) -> Panel:
    empty: Mapping[Any, str] = {-1: ""}
    heat = Heat(values, colors=_GREY, scale=False)
    return Panel(title, "", "", heat=heat, x_names=empty, y_names=empty, height=3.4)
