"""How far a run of `Multitask` is from its optimum: primal, dual, and the gap between them. Simulation only.

Personal linear models of any per-client arrays, in scikit-learn's manner; trained by the engine, under any plan.

Who learns from whom: the learned correlation with like devices side by side, and where a model comes from.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from tacit.core.dual_losses import LOSSES, targets, with_intercept
from tacit.core.files import write_atomically
from tacit.data.dataset import FederatedDataset, as_input, features, offsets_of
from tacit.errors import TacitError
from tacit.methods.multitask.covariance import correlation
from tacit.methods.multitask.method import Multitask
from tacit.models import SoftmaxRegression
from tacit.privacy.ledger.ledger import Ledger
from tacit.privacy.ledger.statement import statement
from tacit.report.figures import DIVERGING, Figure, Heat, Panel, write_png
from tacit.report.page import Table, document, sections
from tacit.rounds.assemble import Privacy, Training, assemble
from tacit.rounds.loop import Run, Schedule
from tacit.rounds.predict import outputs as outputs_of
from tacit.sampling.availability import Availability
from tacit.sampling.cohorts import Poisson


class Objective(NamedTuple):
    """After `round` rounds, for the covariance in force. The gap is never negative but for rounding."""

    round: int
    primal: float
    dual: float

    @property
    def gap(self) -> float:
        return self.primal - self.dual

    @property
    def relative_gap(self) -> float:
        return self.gap / abs(self.primal) if self.primal else 0.0


def objective(run: Run) -> Objective:
    """P(W) (4) of the models in force, noise included, and D(alpha) (5) of what the devices hold, its sign turned."""
    method = multitask_of(run)
    view, loss = run.progress.server.view, LOSSES[method.loss]
    sums, omega = view.extra["sums"].double(), view.extra["covariance"].double()
    weights, alphas = method.weights(sums, omega), _alphas(run)
    losses, conjugates, held = 0.0, 0.0, torch.zeros_like(sums)
    for t, alpha in enumerate(alphas):
        x, y = _rows(run, t, sums.shape[1])
        duals = alpha[: len(x)]
        losses += float(loss.value(x @ weights[t].T, y).sum())
        conjugates += float(loss.conjugate(duals, y).sum())
        held[t] = duals.T @ x
    penalty, dual_penalty = (_penalty(v, omega, method.strength) for v in (sums, held))
    return Objective(run.progress.round, losses + penalty, -conjugates - dual_penalty)


def multitask_of(run: Run) -> Multitask:
    method = run.engine.method
    if not isinstance(method, Multitask):
        raise TacitError(f"the run trained {type(method).__name__}, which has no covariance of tasks: train Multitask")
    return method


def _penalty(sums: Tensor, omega: Tensor, strength: float) -> float:
    """lambda tr(W Omega^-1 W') for W = Omega V / (2 lambda): no inverse is needed."""
    flat = sums.flatten(1)
    return float((flat * (omega @ flat)).sum()) / (4 * strength)


def _alphas(run: Run) -> Tensor:
    everybody = np.arange(run.engine.federation.clients)
    first = run.engine.method.join(run.progress.server.view, run.engine.start)
    return run.store.read(everybody, first)["alpha"].double()


def _rows(run: Run, client: int, columns: int) -> tuple[Tensor, Tensor]:
    data = run.engine.federation
    rows = data.rows(client)
    x = with_intercept(as_input(data.x[rows]), multitask_of(run).intercept).double()
    return x, targets(data.y[rows], columns, x.dtype)


_NAMED = 40  # devices up to which axes name them


@dataclass(frozen=True, eq=False)
class Sharing:
    """`correlation` [devices, devices]; `origin[t, s]`: which share of t's model comes from what s has sent.

    A model is a weighted sum of messages, w_t = 1/(2 lambda) sum_s Omega_ts v_s: shares are by the norms of its terms.
    """

    ids: Sequence[str]
    correlation: np.ndarray
    origin: np.ndarray

    @classmethod
    def of(cls, run: Run) -> "Sharing":
        multitask_of(run)
        extra = run.progress.server.view.extra
        omega, sums = extra["covariance"].double(), extra["sums"].double()
        terms = omega.abs() * sums.flatten(1).norm(dim=1)
        origin = terms / terms.sum(1, keepdim=True).clamp(min=1e-300)
        return cls(run.engine.federation.ids, correlation(omega).numpy(), origin.numpy())

    def order(self) -> np.ndarray:
        """Devices with their likes side by side: leaves of a clustering of 1 - correlation."""
        from scipy.cluster.hierarchy import leaves_list, linkage
        from scipy.spatial.distance import squareform

        if len(self.ids) < 3:
            return np.arange(len(self.ids))
        distance = np.clip(1 - (self.correlation + self.correlation.T) / 2, 0, 2)
        np.fill_diagonal(distance, 0)
        return leaves_list(linkage(squareform(distance, checks=False), "average", optimal_ordering=True))

    def table(self, most: int = 3) -> list[list[str]]:
        """For each device: the share of its model from its own messages, and from those it learns most from."""
        rows = []
        for t, name in enumerate(self.ids):
            others = [s for s in np.argsort(-self.origin[t], kind="stable") if s != t][:most]
            sources = ", ".join(f"{self.ids[s]} {100 * self.origin[t, s]:.0f}%" for s in others)
            rows.append([str(name), f"{100 * self.origin[t, t]:.0f}%", sources])
        return rows

    def panel(self) -> Panel:
        """The correlation, like devices side by side."""
        order = self.order()
        names = {at: str(self.ids[int(t)]) for at, t in enumerate(order)} if len(order) <= _NAMED else {}
        heat = Heat(self.correlation[np.ix_(order, order)], DIVERGING, -1, 1)
        return Panel("learned correlation of tasks", "", "", x_names=names, y_names=names, heat=heat, height=4.4)

    def figure(self) -> Figure:
        note = (
            "Learned correlation of tasks, like devices side by side. A model is a weighted sum of what devices sent; "
            "the table has the share of each."
        )
        return Figure("sharing", note, [self.panel()])

    def save_png(self, path: Path | str) -> Path:
        return write_png([self.figure()], Path(path))

    def save_html(self, path: Path | str) -> Path:
        """One page that needs no other and no network: the heat map, and who learns from whom."""
        origins = Table("Where models come from", ["device", "from itself", "most from others"], self.table(), words=3)
        body = f"<h1>Who learns from whom</h1>{sections([self.figure()])}{origins.html()}"
        write_atomically(Path(path), document("Who learns from whom", body).encode())
        return Path(path)


Arrays = Mapping[Any, Sequence[Any]]
_NEVER = 2**31


class MultitaskModels:
    """A linear model for each client, of `id -> (x, y)`; whoever is alike learns from one another.

    Classes may have any names; with `loss="squared"` and real y it is a regression. `options` are those of
    `tacit.Multitask`: strength (lambda), covariance, solver, ... After `fit`, `coef_` is [clients, columns, features]
    (one column for two classes or a regression, else one a class), and `history_` has primal, dual and gap before
    every change of the covariance. Everything learned is simulation only but for what `statement_` accounts for.
    """

    def __init__(
        self,
        loss: str = "hinge",
        *,
        rounds: int = 50,
        privacy: Privacy = Privacy(),
        devices: Availability = Availability(),
        rate: float = 1.0,
        batch: int = 64,
        epochs: int = 1,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.method = Multitask(loss=loss, **options)
        self.privacy, self.seed = privacy, seed
        self._training = Training(rounds, Poisson(rate), batch, epochs, seed=seed, devices=devices)

    def fit(self, clients: Arrays) -> Self:
        """Trains until the last round, or until no budget is left."""
        self.classes_, data = _federation(clients, self.method.loss)
        model = SoftmaxRegression(data.x.shape[1], data.classes)
        assembled = assemble(data, model, self.method, self.privacy, self._training)
        self._ledger = Ledger.open(":memory:")
        self.run_ = Run(*assembled, self._ledger, Schedule(_NEVER, _NEVER))
        self.history_ = list(_rounds(self.run_, self.method.inner))
        self.ids_ = data.ids
        return self

    @property
    def coef_(self) -> np.ndarray:
        return self._own()[..., :-1]

    @property
    def intercept_(self) -> np.ndarray:
        return self._own()[..., -1] * self.method.intercept

    @property
    def covariance_(self) -> np.ndarray:
        return self._fitted().progress.server.view.extra["covariance"].double().numpy()

    @property
    def correlation_(self) -> np.ndarray:
        return correlation(torch.from_numpy(self.covariance_)).numpy()

    @property
    def statement_(self) -> Sequence[Any]:
        """What was spent by whom: the ledger's own lines."""
        self._fitted()
        return statement(self._ledger)

    @property
    def never_took_part_(self) -> list[str]:
        """Clients that sent nothing in any round: their model is the mean of the others'."""
        return [name for name, seen in zip(self.ids_, self._fitted().store.touched, strict=True) if not seen]

    def decision_function(self, client: Any, x: Any) -> np.ndarray:
        """Outputs of a client's own model, [rows, classes]; a single column for a regression."""
        return outputs_of(self._fitted(), str(client), x).double().numpy()

    def predict(self, client: Any, x: Any) -> np.ndarray:
        outputs = self.decision_function(client, x)
        return outputs[:, 0] if self.classes_ is None else self.classes_[outputs.argmax(1)]

    def score(self, clients: Arrays) -> dict[str, float]:
        """Accuracy of each client's own model on its own rows; for a regression the share of variance explained."""
        return {str(who): self._score(self.predict(who, x), np.asarray(y)) for who, (x, y) in clients.items()}

    def _score(self, guess: np.ndarray, y: np.ndarray) -> float:
        if self.classes_ is not None:
            return float((guess == y).mean())
        return float(1 - np.square(guess - y).sum() / max(np.square(y - y.mean()).sum(), 1e-300))

    def _own(self) -> np.ndarray:
        view = self._fitted().progress.server.view
        return self.method.weights(view.extra["sums"], view.extra["covariance"]).double().numpy()

    def _fitted(self) -> Run:
        if not hasattr(self, "run_"):
            raise TacitError("the models are not fitted yet: call fit with id -> (x, y)")
        return self.run_


def _rounds(run: Run, inner: int) -> list[Objective]:
    history = []
    while run.progress.round < run.plan.setting.rounds and not run.budget.exhausted():
        run.step()
        if run.progress.round % inner == inner - 1 or run.progress.round == run.plan.setting.rounds:
            history.append(objective(run))
    return history


def _federation(clients: Arrays, loss: str) -> tuple[np.ndarray | None, FederatedDataset]:
    """The classes by name, or None for a regression, and the arrays as a federation without test rows."""
    if not clients:
        raise TacitError("there are no clients: give id -> (x, y)")
    x = [features(rows[0], f"client '{who}'") for who, rows in clients.items()]
    y = [np.asarray(rows[1]) for rows in clients.values()]
    for who, part, labels in zip(clients, x, y, strict=True):
        if part.dim() != 2 or labels.shape != (len(part),):
            shapes = f"x of shape {tuple(part.shape)} and y of shape {labels.shape}"
            raise TacitError(f"client '{who}' has {shapes}: give [rows, features] and one label a row")
        if part.shape[1] != x[0].shape[1]:
            raise TacitError(
                f"client '{who}' has {part.shape[1]} features and others {x[0].shape[1]}: give all the same"
            )
    flat, names, kinds = np.concatenate(y), None, 1
    real = loss == "squared" and flat.dtype.kind == "f"
    if not real:
        names, flat = np.unique(flat, return_inverse=True)
        kinds = len(names)
        if kinds < 2:
            raise TacitError(f"all labels are {names[0]!r}: give at least two classes")
    target = torch.from_numpy(flat.astype(np.float32 if real else np.int64))
    rows, offsets = torch.cat(x), offsets_of([len(part) for part in x])
    ids = tuple(str(who) for who in clients)
    held = FederatedDataset("clients", rows, target, offsets, rows[:0], target[:0], offsets * 0, None, None, ids, kinds)
    return names, held
