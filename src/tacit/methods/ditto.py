"""Ditto (Li et al. 2021), the personalization of FeO2 and FedHDP: a personal model held near the shared one."""

from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.errors import TacitError
from tacit.methods.fedavg import FedAvg
from tacit.methods.optimizers import LocalSgd, check
from tacit.methods.proximal_solve import mean_loss, solve, solve_and_choose

_SOLVE: Final = 5  # epochs of the last solve where the strength is to be chosen


@checked
@dataclass(frozen=True)
class Ditto(Method):
    """theta_j <- theta_j - eta_p (grad f_j(theta_j) + lambda (theta_j - theta)), theta as received from the server.

    The shared model is trained by `base` and does not see theta_j, which never leaves its client: whatever is done to
    it costs no privacy. A client that has not taken part yet starts at the current shared model. Before it predicts a
    client compares both models on its own training rows, and keeps the shared one where that fits them better: a
    personal model that took few steps, long ago, does not stay behind.

    Args:
        base: what trains the shared model.
        strength: lambda; one number, one for each privacy level, or "optimal": each client chooses it on its own
            held-out training rows, for a last solve. Nothing of the choice leaves.
        personal: the personal model's own rate, momentum, weight decay and decay by rounds.
        personal_epochs: how often personal steps go over the batches of a round.
        solve_epochs: above 0 no personal steps are taken in rounds. Before it predicts a client solves Ditto's
            objective against the final shared model (FedHDP, eq. (5)), by so many epochs of its own rows, from there.

    Raises:
        TacitError: a strength below 0, or none; epochs that are negative, or of rounds where the last solve is all.

    >>> import tacit
    >>> tacit.Ditto(strength="optimal").adapt_epochs
    5
    """

    base: Method = field(default_factory=FedAvg, metadata=INLINE)
    strength: float | tuple[float, ...] | Literal["optimal"] = 1.0  # chosen with the next: docs/decisions
    personal: LocalSgd = field(default_factory=partial(LocalSgd, lr=0.1), metadata=INLINE)
    personal_epochs: int = 1
    solve_epochs: int = 0

    def __post_init__(self) -> None:
        if not self._strengths and self.strength != "optimal":
            raise TacitError("Ditto's strength is (): give one number, or one for each privacy level")
        for value in self._strengths:
            check("Ditto's strength", value)
        check("personal_epochs", self.personal_epochs, positive=True)
        check("solve_epochs", self.solve_epochs)
        if self._solves and self.personal_epochs != 1:
            raise TacitError(
                f"personal_epochs is {self.personal_epochs}, and with a last solve rounds take no personal steps: "
                "leave it out"
            )

    @property
    def levels(self) -> int | None:
        return len(self._strengths) if len(self._strengths) > 1 else None

    @property
    def _strengths(self) -> tuple[float, ...]:
        if self.strength == "optimal":
            return ()
        return self.strength if isinstance(self.strength, tuple) else (self.strength,)

    @property
    def _solves(self) -> bool:
        return self.solve_epochs > 0 or self.strength == "optimal"

    @property
    def adapt_epochs(self) -> int:
        return (self.solve_epochs or _SOLVE) if self._solves else 1

    def init(self, params: Tree) -> Server:
        return self.base.init(params)

    def join(self, view: Shared, start: Tree) -> Tree:
        own = {} if self._solves else tree.prefix("personal", view.model)
        return tree.prefix("base", self.base.join(view, start)) | own

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        reply = self.base.client(view, tree.strip("base", state), site)
        kept = tree.prefix("base", reply.state)
        if self._solves:
            return Reply(reply.upload, kept)
        strength, personal = self._strength(site.level), tree.strip("personal", state)

        def pull(gradient: Tree, params: Tree) -> Tree:
            return tree.axpy(strength, tree.sub(params, view.model), gradient)

        for _ in range(self.personal_epochs):
            personal = self.personal.run(personal, site, site.grad, pull)
        return Reply(reply.upload, kept | tree.prefix("personal", personal))

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return self.base.server(server, mean, rate)

    def adapt(self, view: Shared, state: Tree, site: Site) -> Tree:
        """A last solve if it was asked for; else the personal model, or the shared one where that fits better."""
        kept = tree.prefix("base", tree.strip("base", state))
        if self.strength == "optimal":
            own = solve_and_choose(view.model, site, self.personal)
        elif self._solves:
            own = solve(view.model, self._strength(site.level), site, self.personal)
        else:
            own = tree.strip("personal", state)
            own = tree.where(mean_loss(own, site) <= mean_loss(view.model, site), own, view.model)
        return kept | tree.prefix("personal", own)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        personal = Shared(tree.strip("personal", state) or view.model, view.extra)
        return self.base.predict(task, personal, tree.strip("base", state), x)

    def _strength(self, level: Tensor) -> float | Tensor:
        strengths = self._strengths
        return strengths[0] if len(strengths) == 1 else torch.tensor(strengths)[level]
