"""Small multitask problems, and a solver of the same objective that knows nothing of ours."""

from collections.abc import Callable

import numpy as np
import torch
from scipy.optimize import minimize

from tacit.core.contract import Method
from tacit.data.dataset import FederatedDataset, offsets_of
from tacit.models import SoftmaxRegression
from tacit.privacy.ledger.ledger import Ledger
from tacit.rounds.assemble import Performance, Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import Poisson

Arrays = list[tuple[np.ndarray, np.ndarray]]


def tasks(
    kind: str = "classes", groups: tuple[int, ...] = (2, 3), features: int = 3, seed: int = 0, rows: int = 8
) -> Arrays:
    """Tasks in groups: within a group models are almost the same, between groups unrelated."""
    draw = np.random.default_rng(seed)
    found = []
    for several in groups:
        centre = draw.normal(size=features)
        for _ in range(several):
            n = int(draw.integers(rows, 2 * rows))
            x = draw.normal(size=(n, features)) / np.sqrt(features)
            score = x @ (3 * centre + 0.1 * draw.normal(size=features)) + 0.3 * draw.normal(size=n)
            found.append((x, score if kind == "real" else (score > 0).astype(np.int64)))
    return found


def federation(data: Arrays) -> FederatedDataset:
    """Every row trains; the same rows are each client's test rows."""
    x, y = (torch.from_numpy(np.concatenate([pair[at] for pair in data])) for at in (0, 1))
    offsets = offsets_of([len(pair[0]) for pair in data])
    classes = 1 if y.is_floating_point() else int(y.max()) + 1
    test = (x[:0], y[:0], offsets * 0) if classes == 1 else (x, y, offsets)
    ids = tuple(f"d{k}" for k in range(len(data)))
    return FederatedDataset("tasks", x, y, offsets, *test, None, None, ids, classes)


def trained(
    data: Arrays,
    method: Method,
    rounds: int,
    privacy: Privacy = Privacy(),
    *,
    devices: Availability = Availability(),
    chunk: int | None = 100,
    batch: int = 16,
    epochs: int = 2,
    seed: int = 0,
) -> Run:
    """A run that has not started, of everybody in every round, in double precision."""
    held = federation(data)
    model = SoftmaxRegression(held.x.shape[1], held.classes)
    training = Training(rounds, Poisson(1.0), batch, epochs, seed=seed, dtype=torch.float64, devices=devices)
    made = assemble(held, model, method, privacy, training, performance=Performance(chunk=chunk))
    return Run(*made, Ledger.open(":memory:"), Schedule(evaluate_every=10**6))


LOSS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "hinge": lambda u, y: np.maximum(0, 1 - y * u),
    "smooth-hinge": lambda u, y: np.where(
        1 - y * u < 0.5, np.maximum(0, 1 - y * u) ** 2, np.maximum(0, 1 - y * u) - 0.25
    ),
    "squared": lambda u, y: (u - y) ** 2 / 2,
    "logistic": lambda u, y: np.logaddexp(0, -y * u),
}


def primal(data: Arrays, loss: str, strength: float, omega: np.ndarray) -> Callable[[np.ndarray], float]:
    """(4) as it is printed, with the inverse of the covariance; models are rows, the intercept comes last."""
    inverse = np.linalg.inv(omega)
    signed = [y if y.dtype.kind == "f" else 2.0 * y - 1 for _, y in data]
    rows = [np.hstack([x, np.ones((len(x), 1))]) for x, _ in data]

    def value(flat: np.ndarray) -> float:
        w = flat.reshape(len(data), -1)
        fit = sum(LOSS[loss](x @ own, y).sum() for x, y, own in zip(rows, signed, w, strict=True))
        return float(fit + strength * np.trace(w.T @ inverse @ w))

    return value


def centralised(data: Arrays, loss: str, strength: float, omega: np.ndarray) -> tuple[np.ndarray, float]:
    """The optimal models and value: by quasi-Newton, for the hinge as a quadratic programme with slacks."""
    size = (len(data), data[0][0].shape[1] + 1)
    value = primal(data, loss, strength, omega)
    if loss != "hinge":
        found = minimize(value, np.zeros(size).ravel(), method="BFGS", options={"gtol": 1e-8})
        return found.x.reshape(size), float(found.fun)
    return _by_slacks(data, strength, omega, size)


def _by_slacks(data: Arrays, strength: float, omega: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, float]:
    """min sum of slacks + penalty, where slack >= 0 and slack >= 1 - y w.x."""
    several, inverse = int(np.prod(size)), np.linalg.inv(omega)
    blocks = [(2.0 * y - 1)[:, None] * np.hstack([x, np.ones((len(x), 1))]) for x, y in data]
    rows = sum(map(len, blocks))
    signed = np.zeros((rows, several))
    at = 0
    for t, block in enumerate(blocks):
        signed[at : at + len(block), t * size[1] : (t + 1) * size[1]] = block
        at += len(block)
    metric = 2 * strength * np.kron(inverse, np.eye(size[1]))

    def cost(z: np.ndarray) -> tuple[float, np.ndarray]:
        w, slack = z[:several], z[several:]
        return float(slack.sum() + w @ metric @ w / 2), np.concatenate([metric @ w, np.ones(rows)])

    short = {
        "type": "ineq",
        "fun": lambda z: signed @ z[:several] + z[several:] - 1,
        "jac": lambda z: np.hstack([signed, np.eye(rows)]),
    }
    begin = np.concatenate([np.zeros(several), np.ones(rows)])
    bounds = [(None, None)] * several + [(0, None)] * rows
    found = minimize(
        cost, begin, jac=True, method="SLSQP", bounds=bounds, constraints=[short],
        options={"maxiter": 500, "ftol": 1e-12},
    )  # fmt: skip
    return found.x[:several].reshape(size), float(found.fun)
