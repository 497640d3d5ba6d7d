"""What a server may say to its members in an experiment: every key is named here, and members refuse any other.

No key of `PERMITTED` opens a file, calls a network, starts a process or chooses a device; values are numbers, or names
that Tacit's own registries know. A key that is new to experiments is refused until somebody has looked at it.
"""

from collections.abc import Mapping
from typing import Any, Final

from tacit.errors import TacitError

PERMITTED: Final[Mapping[str, tuple[str, ...]]] = {
    "": (
        "name", "rounds", "seed", "rate", "cohort", "times", "batch", "epochs", "steps",
        "model", "method", "privacy", "levels", "evaluate", "run",
    ),
    "model": ("name", "hidden", "norm", "activation", "transform"),
    "model.transform": ("function", "scale", "shift", "alpha", "beta"),
    "method": (
        "name", "lr", "momentum", "weight_decay", "decay", "strength", "personal_lr", "prior", "spread", "psi",
        "psi_lr", "floor", "most", "distil", "distillation", "alpha", "beta", "adaptive", "rate", "inner",
        "inner_steps", "hessian", "components", "keep", "first", "pace", "base", "loss", "covariance", "ridge",
        "start", "xi", "solver", "finish", "intercept", "noisy", "server",
    ),
    "method.server": ("name", "lr", "momentum", "beta1", "beta2", "epsilon"),
    "privacy": (
        "plan", "clip", "ratio", "horizon", "project", "participations", "bound", "extra_bound", "seen", "least",
        "bits", "budget", "threshold", "accountant", "allow_large_delta",
    ),
    "privacy.clip": ("start", "target", "speed", "thrift"),
    "levels.*": ("epsilon", "delta", "noise"),
    "evaluate": ("every", "deployment", "share"),
    "run": ("dtype",),
}  # fmt: skip
"""By table. A level may have any name."""
LEFT_OUT: Final[Mapping[str, tuple[str, ...]]] = {
    "": ("data", "choices", "federation", "changes", "devices"),
    "privacy": ("secure_sum", "noise"),
    "evaluate": ("sample", "heterogeneity"),
    "run": ("checkpoint_every", "chunk", "threads", "engine", "device", "compile"),
}
"""By table, what concerns simulations or the server alone."""


def for_members(content: Mapping[str, Any], table: str = "") -> dict[str, Any]:
    """An experiment without what members are not sent."""
    kept = {key: value for key, value in content.items() if key not in LEFT_OUT.get(table, ())}
    return {key: for_members(value, key) if isinstance(value, Mapping) else value for key, value in kept.items()}


def check_keys(content: Mapping[str, Any], table: str = "") -> None:
    """Refuses an experiment with a key that a server may not set for its members."""
    known = PERMITTED.get("levels.*" if table.startswith("levels.") else table, ())
    for key, value in content.items():
        where = f"{table}.{key}" if table else key
        if table != "levels" and key not in known:
            raise TacitError(f"the experiment has '{where[:60]}', which a server may not set for its members")
        if isinstance(value, Mapping):
            check_keys(value, where)
