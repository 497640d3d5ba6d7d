"""A character model of documentation, shared by Python modules under central privacy, with a personal adapter for each.

    python -m benchmarks.language_model choose     # settings, by validation rows: results/language-model-settings.json
    python -m benchmarks.language_model            # measures on test rows, and writes results/language-model.md

Every client is one module of the standard library or of an installed package, its text the docstrings in it: nothing is
fetched. A transformer of two layers is trained by all under client-level privacy; then each client trains an adapter of
its own on top of it, which never leaves. A row is used for one thing: to train, to choose, or to measure.
"""

import json
import math
import re
import sys
import sysconfig
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import tacit

ALPHABET: Final = "\n !\"#%&'()*+,-./0123456789:;<=>?@[]_`abcdefghijklmnopqrstuvwxyz{|}~"
NUMBERS: Final = {letter: number for number, letter in enumerate(ALPHABET)}
PACKAGES: Final = ("numpy", "scipy", "sklearn", "pandas", "sympy", "networkx", "matplotlib", "torch", "sqlalchemy")
LENGTH: Final = 32
ROWS: Final = {"train": 10, "validation": 5, "test": 5}  # of a client
WIDTH, HEADS, BOTTLENECK = 32, 4, 4
CLIENTS, PANEL = 1500, 100  # who trains; who is measured, and trains alone
ROUNDS, RATE, STEPS, BATCH, CLIP = 50, 0.07, 2, 5, 0.3
EPSILON, DELTA = 8.0, 1e-4
RESULTS: Final = Path(__file__).parent / "results"
SETTINGS: Final = RESULTS / "language-model-settings.json"
HOW_TO: Final = RESULTS.parents[1] / "docs" / "how-to" / "language-models.md"
CHOSEN_ON: Final = 100  # a seed that no figure is of


@cache
def documentation() -> dict[str, str]:
    """What stands between triple quotes in a module, by its name: its docstrings. Tests are left out."""
    site, library = (Path(sysconfig.get_paths()[kind]) for kind in ("purelib", "stdlib"))
    found = {}
    for root in (library, *(site / name for name in PACKAGES)):
        for path in sorted(root.rglob("*.py")):
            place = path.relative_to(root.parent)
            if not {"test", "tests", "testing", "site-packages", "idlelib", "lib2to3"} & set(place.parts):
                texts = re.findall(r'"""(.*?)"""', path.read_text(errors="ignore"), re.DOTALL)
                found[".".join(place.with_suffix("").parts)] = re.sub(r"[ \n]*\n[ \n]*", "\n", "\n".join(texts))
    return found


def rows_of(text: str) -> np.ndarray:
    """Token numbers [rows, LENGTH + 1], no two of them from one place; letters outside of the alphabet are left out."""
    known = [NUMBERS[letter] for letter in text.lower() if letter in NUMBERS]
    return np.array(known[: len(known) // (LENGTH + 1) * (LENGTH + 1)], np.int64).reshape(-1, LENGTH + 1)


def federation(seed: int, held_out: str, most: int = CLIENTS) -> tacit.FederatedDataset:
    """The first of a seed's clients: the same rows to train on, whatever is held out ("validation" or "test")."""
    draw, needed = np.random.default_rng(seed), sum(ROWS.values())
    modules = {name: rows for name, text in documentation().items() if len(rows := rows_of(text)) >= needed}
    clients = {}
    for name in draw.permutation(sorted(modules))[:CLIENTS].tolist():
        chosen = modules[name][draw.permutation(len(modules[name]))[:needed]]
        train, validation, test = np.split(chosen, np.cumsum([*ROWS.values()])[:2])
        held = validation if held_out == "validation" else test
        clients[name] = (train[:, :-1], train[:, 1:], held[:, :-1], held[:, 1:])
    return tacit.from_clients(dict([*clients.items()][:most]), classes=len(ALPHABET), name="documentation")


class Block(nn.Module):
    """Causal attention and a layer of two linear maps, both beside the identity."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.think = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor, later: Tensor) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attend(y, y, y, attn_mask=later, need_weights=False)[0]
        return x + self.think(self.norms[1](x))


class Transformer(nn.Module):
    """Two blocks. `adapter` is what a client may keep: a bottleneck after the last one, and how common letters are."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(len(ALPHABET), WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(ALPHABET))
        last = nn.Linear(BOTTLENECK, len(ALPHABET))
        self.adapter = nn.Sequential(nn.Linear(WIDTH, BOTTLENECK), last)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, x: Tensor) -> Tensor:
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        hidden = self.letters(x) + self.places.weight
        for block in self.blocks:
            hidden = block(hidden, later)
        hidden = self.norm(hidden)
        return self.head(hidden) + self.adapter(hidden)


def start(seed: int) -> Transformer:
    torch.manual_seed(seed)
    return Transformer()


def adapter_alone(model: nn.Module) -> nn.Module:
    """The model with all but its adapter frozen."""
    for name, leaf in model.named_parameters():
        leaf.requires_grad_(name.startswith("adapter"))
    return model


class Figures(NamedTuple):
    """On each client's held-out rows, the mean over clients; what was spent, and the seconds that it took."""

    perplexity: float
    hits: float
    epsilon: float = math.nan
    seconds: float = math.nan


def measured(model: Callable[[str], nn.Module], data: tacit.FederatedDataset) -> Figures:
    """Of the model that each of the panel predicts with."""
    found = []
    for k in range(min(PANEL, data.clients)):
        rows = data.test_rows(k)
        with torch.no_grad():
            outputs = model(data.ids[k]).eval()(data.test_x[rows])
        y = data.test_y[rows]
        loss = nn.functional.cross_entropy(outputs.flatten(0, 1), y.flatten())
        found.append((math.exp(loss), float((outputs.argmax(-1) == y).double().mean())))
    perplexity, hits = np.mean(found, 0)
    return Figures(float(perplexity), float(hits))


def share(data: tacit.FederatedDataset, seed: int, rate: float) -> tuple[Any, Figures]:
    """Trained by all under central privacy."""
    method = tacit.FedAvg(tacit.LocalSgd(0.5), tacit.ServerAdam(rate, epsilon=1e-4))
    level = tacit.Level("private", epsilon=EPSILON, delta=DELTA)
    privacy = tacit.Privacy(tacit.Central(tacit.Fixed(CLIP)), (level,))
    training = tacit.Training(ROUNDS, tacit.Poisson(RATE), batch=BATCH, steps=STEPS, seed=seed)
    began = time.process_time()
    result = _train(data, start(seed), method, privacy, training)
    model, spent = result.model(), result.findings.epsilons["private"]
    found = measured(lambda _: model, data)
    return result, found._replace(epsilon=next(iter(spent.values())), seconds=time.process_time() - began)


def alone(
    data: tacit.FederatedDataset, model: nn.Module, seed: int, rate: float, epochs: int, momentum: float = 0.0
) -> Figures:
    """Each client trains what is not frozen of a model by itself: nothing is uploaded, nothing is charged."""
    training = tacit.Training(1, tacit.Poisson(1.0), batch=BATCH, epochs=epochs, seed=seed)
    began = time.process_time()
    result = _train(data, model, tacit.LocalOnly(tacit.LocalSgd(rate, momentum)), tacit.Privacy(), training)
    return measured(result.personal, data)._replace(seconds=time.process_time() - began)


def _train(data: tacit.FederatedDataset, model: nn.Module, *how: Any) -> Any:
    return tacit.train(
        data, model, *how, progress=False, metrics=["perplexity"], schedule=tacit.Schedule(evaluate_every=ROUNDS),
        performance=tacit.Performance(threads=1, compile="off"),
    )  # fmt: skip


GRID: Final[dict[str, list[tuple[float, ...]]]] = {  # rates; passes; momentum
    "shared": [(0.01,), (0.02,), (0.04,)],
    "adapter": [(rate, epochs) for rate in (0.3, 1.0) for epochs in (5, 20)],
    "alone": [
        *((rate, epochs) for rate in (0.1, 0.3) for epochs in (5, 20)),
        (1.0, 5),
        (1.0, 20),
        (0.1, 16, 0.9),
        (0.03, 20, 0.9),
    ],
    "without": [(0.1, 5), (0.1, 20), (0.3, 5), (0.3, 20), (1.0, 5)],
}


def choose() -> dict[str, Any]:
    """The settings of each arm with the least perplexity on validation rows, of a seed that is not measured.

    What the file of settings has is not tried again.
    """
    seed, known = CHOSEN_ON, json.loads(SETTINGS.read_text()) if SETTINGS.exists() else {}
    tried: dict[str, dict[str, float]] = known.get("validation perplexity", {})
    panel = federation(seed, "validation", PANEL)
    shared = cache(lambda rate: share(federation(seed, "validation"), seed, rate))
    runs: dict[str, Callable[..., Figures]] = {
        "shared": lambda rate: shared(rate)[1],
        "adapter": lambda *how: alone(panel, adapter_alone(shared(*_best(tried["shared"]))[0].model()), seed, *how),
        "alone": lambda *how: alone(panel, start(seed), seed, *how),
        "without": lambda *how: alone(panel, adapter_alone(start(seed)), seed, *how),
    }
    for arm, run in runs.items():
        for how in GRID[arm]:
            name = json.dumps(how)
            tried.setdefault(arm, {})[name] = tried.get(arm, {}).get(name) or run(*how).perplexity
        _say(f"{arm}: {tried[arm]}")
    chosen = {arm: _best(found) for arm, found in tried.items()}
    SETTINGS.write_text(json.dumps({"chosen": chosen, "validation perplexity": tried}, indent=2) + "\n")
    return chosen


def _best(tried: dict[str, float]) -> Any:
    return json.loads(min(tried, key=lambda how: tried[how]))


ARMS: Final = {
    "personal": "shared, and an adapter of one's own trained on it",
    "shared": "shared, the same for all",
    "alone": "the whole network trained alone",
    "without": "an adapter of one's own without communication: on the untrained start",
    "letters": "how common letters are in all training rows",
}


def measure(seed: int, chosen: dict[str, Any]) -> dict[str, Figures]:
    """Every arm, on test rows."""
    data, panel = federation(seed, "test"), federation(seed, "test", PANEL)
    result, shared = share(data, seed, *chosen["shared"])
    found = {
        "personal": alone(panel, adapter_alone(result.model()), seed, *chosen["adapter"]),
        "shared": shared,
        "alone": alone(panel, start(seed), seed, *chosen["alone"]),
        "without": alone(panel, adapter_alone(start(seed)), seed, *chosen["without"]),
        "letters": measured(lambda _: Unigram(data.y), data),
    }
    return {arm: found[arm] for arm in ARMS}


class Unigram(nn.Module):
    """Knows how common each letter is, and no more."""

    def __init__(self, y: Tensor) -> None:
        super().__init__()
        self.chances = (torch.bincount(y.flatten(), minlength=len(ALPHABET)) + 1.0).log()

    def forward(self, x: Tensor) -> Tensor:
        return self.chances.expand(*x.shape, -1)


def page(found: list[dict[str, Figures]], chosen: dict[str, Any]) -> str:
    """`found` by seed and arm."""
    values = {arm: np.array([each[arm].perplexity for each in found]) for arm in ARMS}
    hits = {arm: np.mean([each[arm].hits for each in found]) for arm in ARMS}
    lines = [f"| {said} | {_told(values[arm])} | {_told(values[arm] - values['personal'])} | {hits[arm]:.3f} |"
             for arm, said in ARMS.items()]  # fmt: skip
    spent = max(each["shared"].epsilon for each in found)
    size = sum(leaf.numel() for leaf in Transformer().parameters())
    own = sum(leaf.numel() for leaf in Transformer().adapter.parameters())
    return f"""# A language model of documentation

Written by `python -m benchmarks.language_model` (Python {sys.version.split()[0]}, torch {torch.__version__}); its text
is [language_model.py](../language_model.py), and how to do the same with your own text is in [Language
models](../../docs/how-to/language-models.md). {CLIENTS:,} clients, each one module of Python's standard library or of
an installed package, with its docstrings: {ROWS["train"]} rows of {LENGTH} characters to train on, {ROWS["validation"]}
to choose settings by, {ROWS["test"]} to measure on. A transformer of two layers, {size:,} parameters, of which {own:,}
are the adapter. {ROUNDS} rounds, client-level privacy: epsilon {spent:.2f} at delta {DELTA:g} (the noise is seeded:
nobody is protected by a simulation).

Perplexity of the next character on a client's own test rows, mean over {PANEL} clients; mean ± standard error over
{len(found)} seeds (other clients, rows, start and noise). The difference is to the first line, of the same seed:
positive is worse.

| | perplexity | difference | characters right |
|---|---:|---:|---:|
{chr(10).join(lines)}

Settings were chosen on validation rows of another seed ([all that were tried](language-model-settings.json)): server's
rate {chosen["shared"][0]:g}, adapter {_how(chosen["adapter"])}, alone {_how(chosen["alone"])}, adapter on the untrained
start {_how(chosen["without"])}. Processor time:
{_mean(found, "shared"):.0f} s for the shared model, {_mean(found, "personal"):.0f} s for {PANEL} adapters.

Both controls that train without others were given wider grids, on the same validation rows, after the test rows of
seed 0 had been seen; they only got better by it. So the adapter on the untrained start has steps of its own, not those
of the first line. The server's rate is at the edge of its grid.
"""


def _write(text: str) -> None:
    """The page of results, and its table in the how-to."""
    (RESULTS / "language-model.md").write_text(text)
    table = "\n".join(line for line in text.splitlines() if line.startswith("|"))
    kept = re.sub(r"(<!-- figures -->\n).*?(<!-- end)", rf"\1{table}\n\2", HOW_TO.read_text(), flags=re.DOTALL)
    HOW_TO.write_text(kept)


def _how(chosen: list[float]) -> str:
    momentum = f", momentum {chosen[2]:g}" if len(chosen) > 2 else ""
    return f"rate {chosen[0]:g} for {chosen[1]} passes{momentum}"


def _mean(found: list[dict[str, Figures]], arm: str) -> float:
    return float(np.mean([each[arm].seconds for each in found]))


def _told(values: np.ndarray) -> str:
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return f"{values.mean():.2f} ± {error:.2f}"


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main(seeds: int = 3) -> None:
    torch.set_num_threads(1)
    if sys.argv[1:] == ["choose"]:
        choose()
        return
    chosen, found = json.loads(SETTINGS.read_text())["chosen"], []
    for seed in range(seeds):
        found.append(measure(seed, chosen))
        _say(json.dumps({arm: each._asdict() for arm, each in found[-1].items()}))
        _write(page(found, chosen))


if __name__ == "__main__":
    main()
