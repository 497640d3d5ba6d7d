"""One node of five lies, each turn in another way: every lie is rejected and counted, and the round completes."""

import argparse
import tempfile
from pathlib import Path

from benchmarks.federation.evil import SEEN_AS, kinds
from benchmarks.federation.worlds import World, config_of, federation, finite, note, noted
from tacit.federation.flower.processes import end, environment
from tacit.federation.service.owned_processes import start
from tacit.federation.service.serve import Local

VILLAIN = "1"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.federation.hostile", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("runs/federation/hostile.json"))
    parser.add_argument("--plan", default="central")
    options = parser.parse_args()
    if f"{options.plan}/end" in noted(options.results):
        return
    world = World(config_of("fedavg", options.plan, rounds=len(kinds(options.plan)), rate=1.0), fresh=True)
    with tempfile.TemporaryDirectory(prefix="tacit-hostile-") as name, federation(Path(name), world) as fed:
        turn_evil(fed)
        run_folder = world.run_folder(Path(name) / "runs", "hostile", fed, 60)
        fed.site.conduct([run_folder], 3000, fed.revive)
        door = (fed.site.link.folder / "logs" / "door.log").read_text() if _has_log(fed) else ""
        for kind, row in zip(kinds(options.plan), run_folder.told(), strict=False):
            seen = {"took part": row["took_part"], "rejected": row["rejected"], "expected": SEEN_AS[kind]}
            note(options.results, f"{options.plan}/{kind}", seen)
        refused = sum("too large" in line for line in door.splitlines())
        end_ = run_folder.outcome or {}
        note(
            options.results,
            f"{options.plan}/end",
            {"rounds": end_.get("round"), "finite": finite(run_folder), "door": refused},
        )


def turn_evil(fed: Local) -> None:
    node, running = fed.node(VILLAIN), fed.running[VILLAIN].running
    end(running["nursery"], kill=True)
    here = {"folder": node.home, "env": environment(node.flower), "log": node.log}
    running["nursery"] = start("benchmarks.federation.evil", str(node.door), node.server, **here)


def _has_log(fed: Local) -> bool:
    return (fed.site.link.folder / "logs" / "door.log").exists()


if __name__ == "__main__":
    main()
