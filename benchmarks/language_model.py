"""A character model of documentation, trained by the modules of Python's standard library under central privacy.

    python -m benchmarks.language_model [--seeds 3] [--rounds 40]

Every client is one file of the standard library, its text the docstrings in it: nothing is fetched. A transformer of
two layers is shared under client-level privacy; each client keeps an adapter of its own (`KeepLocal`). Beside it, on
the same rows with the same seeds: the same network and adapter trained by each client alone, and the shared model as it
is. Writes `benchmarks/results/language-model.md`; about five minutes a seed on one core.
"""

import argparse
import ast
import math
import sys
import sysconfig
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import tacit

ALPHABET: Final = "\n !\"#%&'()*+,-./0123456789:;<=>?@[]_`abcdefghijklmnopqrstuvwxyz{|}~"
NUMBERS: Final = {letter: number for number, letter in enumerate(ALPHABET)}
LENGTH: Final = 48
ROWS, LEAST = 24, 6  # of a client
WIDTH, HEADS, BOTTLENECK = 32, 4, 4
PAGE: Final = Path(__file__).parent / "results" / "language-model.md"
EPSILON, DELTA = 8.0, 1e-3


def documentation() -> Iterator[tuple[str, str]]:
    """(module, all of its docstrings), of the standard library without its tests."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if not {"test", "tests", "site-packages", "idlelib", "lib2to3"} & set(place.parts):
            yield ".".join(place.with_suffix("").parts), "\n".join(docstrings(path))


def docstrings(path: Path) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from filter(None, [ast.get_docstring(node)])


def rows_of(text: str) -> np.ndarray:
    """Token numbers [rows, LENGTH + 1], every row from another place; characters outside of the alphabet are left out.

    Rows do not overlap: what is held out was not trained on.
    """
    known = [NUMBERS[letter] for letter in text.lower() if letter in NUMBERS]
    return np.array(known[: len(known) // (LENGTH + 1) * (LENGTH + 1)], np.int64).reshape(-1, LENGTH + 1)


def federation(seed: int, most: int | None = None) -> tacit.FederatedDataset:
    """Clients with at least `LEAST` rows; each has at most `ROWS` of them, drawn at random, a third to be tested on."""
    draw, clients = np.random.default_rng(seed), {}
    for name, text in documentation():
        rows = rows_of(text)
        if len(rows) >= LEAST:
            chosen = rows[np.sort(draw.permutation(len(rows))[:ROWS])]
            clients[name] = (chosen[:, :-1], chosen[:, 1:])
    names = sorted(draw.permutation(sorted(clients))[:most].tolist())
    return tacit.from_clients(
        {name: clients[name] for name in names}, test_fraction=1 / 3, seed=seed, classes=len(ALPHABET), name="docs"
    )


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


def unigram(data: tacit.FederatedDataset) -> float:
    """Perplexity of knowing how common each letter is, and no more: a floor that a model has to beat."""
    counts = np.bincount(data.y.flatten().numpy(), minlength=data.classes) + 1.0
    chances = np.log(counts / counts.sum())
    return float(np.mean([math.exp(-chances[data.test_y[data.test_rows(k)].flatten().numpy()].mean())
                          for k in range(data.clients)]))  # fmt: skip


class Arm(NamedTuple):
    """What is trained, under which privacy; `best`: the figure is that of its best evaluation, to its advantage."""

    name: str
    method: tacit.Method
    private: bool = True
    rate: float = 0.25
    best: bool = False


LOCAL: Final = tacit.LocalSgd(0.6)
ARMS: Final = (
    Arm("shared, with personal adapters", tacit.KeepLocal(("adapter",), tacit.FedAvg(LOCAL), pace=0.5)),
    Arm("shared", tacit.FedAvg(LOCAL)),
    Arm("trained alone, at its best round", tacit.LocalOnly(LOCAL), private=False, rate=0.5, best=True),
)


def measure(arm: Arm, data: tacit.FederatedDataset, seed: int, rounds: int) -> dict[str, float]:
    """The mean over clients of the perplexity of what each predicts with, and what was spent."""
    torch.manual_seed(seed)  # the same start for all
    level = tacit.Level("private", epsilon=EPSILON, delta=DELTA)
    privacy = tacit.Privacy(tacit.Central(tacit.Fixed(1.0)), (level,)) if arm.private else tacit.Privacy()
    training = tacit.Training(rounds, tacit.Poisson(arm.rate), batch=4, epochs=2, seed=seed)
    began = time.perf_counter()
    result = tacit.train(
        data, Transformer(), arm.method, privacy, training, progress=False,
        metrics=["perplexity", "token-accuracy"], schedule=tacit.Schedule(evaluate_every=max(1, rounds // 8)),
    )  # fmt: skip
    found = {}
    for name, metric, better in (("perplexity", "personal_mean", min), ("hits", "token-accuracy:personal_mean", max)):
        values = result.findings.series("all", metric)[1]
        found[name] = better(values) if arm.best else values[-1]
    spent = result.findings.epsilons.get("private", {})
    return found | {"epsilon": next(iter(spent.values()), math.nan), "seconds": time.perf_counter() - began}


def page(found: list[list[dict[str, float]]], data: tacit.FederatedDataset, rounds: int, floor: float) -> str:
    """`found` by seed and arm."""
    perplexity = np.array([[each["perplexity"] for each in seed] for seed in found])
    hits = np.array([[each["hits"] for each in seed] for seed in found]).mean(0)
    lines = [
        f"| {arm.name} | {_told(perplexity[:, at])} | {_told(perplexity[:, at] - perplexity[:, 0])} | {hits[at]:.3f} |"
        for at, arm in enumerate(ARMS)
    ]
    spent = max(each["epsilon"] for seed in found for each in seed if not math.isnan(each["epsilon"]))
    return f"""# A language model of documentation

Written by `python -m benchmarks.language_model` (Python {sys.version.split()[0]}, torch {torch.__version__}); see
[its text](../language_model.py). {data.clients} clients, each one module of Python's standard library, with its
docstrings: up to {ROWS} rows of {LENGTH} characters, a third of them held out. A transformer of two layers,
{sum(leaf.numel() for leaf in Transformer().parameters()):,} parameters, {rounds} rounds, client-level privacy:
epsilon {spent:.2f} at delta {DELTA:g} (the noise is seeded: nobody is protected by a simulation).

Perplexity of the next character on a client's own test rows, mean over clients; mean ± standard error over
{len(found)} seeds. The difference is to the first line, of the same seed (rows, start, cohorts): positive is worse.

| | perplexity | difference | characters right |
|---|---:|---:|---:|
{chr(10).join(lines)}
| letters by how common they are | {floor:.2f} | | |
"""


def _told(values: np.ndarray) -> str:
    error = float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan
    return f"{values.mean():.2f} ± {error:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--clients", type=int, default=None)
    parser.add_argument("--page", type=Path, default=PAGE)
    given = parser.parse_args()
    found, floors = [], []
    for seed in range(given.seeds):
        data = federation(seed, given.clients)
        floors.append(unigram(data))
        found.append([measure(arm, data, seed, given.rounds) for arm in ARMS])
        sys.stdout.write(f"{found[-1]}\n")
        sys.stdout.flush()
        given.page.write_text(page(found, data, given.rounds, float(np.mean(floors))))


if __name__ == "__main__":
    main()
