"""Simulation and federation side by side: five nodes over Flower's own processes, three rounds, the same seeds."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.federation.worlds import METHODS, PLANS, World, compare, config_of, federation, note, noted
from tacit.federation.protocol.client_store import ClientStore
from tacit.federation.service.serve import Local

ATTEMPTS = 3


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.parity", description=__doc__)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--plans", default=",".join(PLANS))
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--results", type=Path, default=Path("runs/federation/parity.json"))
    options = parser.parse_args()
    wanted = {
        plan: [m for m in options.methods.split(",") if _key(m, plan, options) not in noted(options.results)]
        for plan in options.plans.split(",")
    }
    wanted = {plan: methods for plan, methods in wanted.items() if methods}
    if not wanted:
        return
    with tempfile.TemporaryDirectory(prefix="tacit-parity-") as name:
        first = next(iter(wanted))
        with federation(Path(name), World(config_of(wanted[first][0], first, dtype=options.dtype))) as fed:
            for attempt in range(ATTEMPTS):
                for plan, methods in wanted.items():
                    left = [method for method in methods if _key(method, plan, options) not in noted(options.results)]
                    if left:
                        _one(fed, plan, left, attempt, options)


def _key(method: str, plan: str, options: argparse.Namespace) -> str:
    return f"{method}/{plan}/{options.dtype}"


def _one(fed: Local, plan: str, methods: list[str], attempt: int, options: argparse.Namespace) -> None:
    """All methods under a plan in one run of Flower; then what clients keep is put aside, and the next plan begins.

    Where somebody dropped out, because the machine was busy with other things, there is nothing to compare.
    """
    worlds = {method: World(config_of(method, plan, dtype=options.dtype)) for method in methods}
    for agreement, rows in worlds[methods[0]].agreements():
        fed.home(agreement.name).settle(agreement, rows)
    folder = fed.folder / "server" / "runs" / f"{plan}-{attempt}"
    run_folders = {method: world.run_folder(folder, f"{method}-{plan}", fed) for method, world in worlds.items()}
    fed.site.conduct(list(run_folders.values()), 1800)
    stores = {name: ClientStore(fed.home(name).folder) for name in fed.nodes}
    for method, world in worlds.items():
        found = compare(world, run_folders[method], stores)
        if found["whole"]:
            note(options.results, _key(method, plan, options), found)
    for store in stores.values():
        aside = store.folder / "done" / f"{plan}-{attempt}"
        aside.mkdir(parents=True)
        for path in [*store.folder.glob("*.sqlite*"), store.folder / "runs"]:
            path.rename(aside / path.name)


if __name__ == "__main__":
    main()
