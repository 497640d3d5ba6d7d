"""`tacit demo`: private federated learning beside training alone, in under a minute, with a page to look at."""

from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

from rich.console import Console

from tacit.experiments import run_dir
from tacit.experiments.config import Config, load, with_overrides
from tacit.experiments.result import Result
from tacit.experiments.train import run_config
from tacit.report.html import write_html
from tacit.report.tables import comparison

_INTRODUCTION = """\
200 clients hold about seven handwritten digits each, of one or two classes.
Nine in ten are private: the server clips what they send and adds noise, calibrated to the whole run.
One in ten opted out. Every client ends with a model of its own (Ditto), which stays on the client.
"""


def demo_config() -> Config:
    with as_file(files("tacit.experiments") / "demo.toml") as path:
        return load(path)


def alone(config: Config) -> Config:
    """The baseline: the same clients, rounds and local passes, and nothing ever leaves a client."""
    changes = ["name=local-only", "method.name=local-only", "method.strength=", "privacy.plan=open", "privacy.clip="]
    return with_overrides(config, changes)


def demo(out: Path, console: Console) -> bool:
    """Runs both, prints what came of it, and writes the page. True if it was interrupted."""
    config = demo_config()
    console.print(_INTRODUCTION)
    results: list[Result] = []
    for each in (config, alone(config)):
        results.append(run_config(each, run_dir.next_free(out, f"{each.name}-{each.seed}")))
        if results[-1].interrupted:
            console.print("Interrupted: run `tacit demo` again.")
            return True
    private, baseline = (result.findings for result in results)
    runs = [replace(private, title="Ditto"), replace(baseline, title="local only")]
    console.print(comparison(runs))
    console.print("What each group is guaranteed:")
    for line in private.guarantees():
        console.print(f"  {line}")
    gain = (private.value("all", "personal_mean") or 0) - (baseline.value("all", "personal_mean") or 0)
    console.print(f"\nPersonal models are {100 * gain:+.1f} points beside training alone (mean over clients).")
    folder = results[0].folder or out
    console.print(f"Page:   {write_html(runs, folder / 'demo.html')}")
    console.print(f"Ledger: tacit ledger {folder}")
    return False
