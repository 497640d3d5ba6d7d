"""Some parameters stay on the client: FedBN and FedGN (norms), FedPer and FedRep (head), PrivateFL (transform)."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.errors import TacitError
from tacit.methods.fedavg import FedAvg
from tacit.methods.optimizers import check


@checked
@dataclass(frozen=True)
class KeepLocal(Method):
    """`base`, with every parameter whose name contains one of `names` kept on the client.

    For them the client is a federation of one: the base's own server program moves them by the client's own update.
    They are absent from broadcast and upload. Compose with `KeepLocal` outermost.

    `first` is FedRep's schedule (Collins et al. 2021): in this share of a client's steps, rounded down, what is kept
    moves alone, and in the rest what is shared moves alone. With 0 all of it moves in every step.

    `pace` is the learning rate of what is kept, as a share of the base's. Below 1 where gradients are private: nobody
    else's noise averages out what a client keeps for itself, so that it wants smaller steps than what is shared.

    Args:
        names: parts of parameters' names; whatever contains one of them stays on the client.
        base: the method for everything else.
        first: the share of a round's steps in which only what is kept moves, from 0 to below 1.
        pace: the rate of what is kept, as a share of the base's.

    Raises:
        TacitError: no names, a share outside [0, 1), or a negative pace.

    Example:
        >>> import tacit
        >>> fedper = tacit.KeepLocal(("head",), tacit.FedAvg())
        >>> fedrep = tacit.KeepLocal(("head",), tacit.FedAvg(), first=0.5)
        >>> fedper.first, fedrep.first
        (0.0, 0.5)
    """

    names: tuple[str, ...] = ("norm",)
    base: Method = field(default_factory=FedAvg, metadata=INLINE)
    first: float = 0.0
    pace: float = 1.0

    def __post_init__(self) -> None:
        check("first", self.first, below=1.0)
        check("pace", self.pace)
        if not self.names:
            raise TacitError("KeepLocal keeps no parameter: give a part of their names, for example 'norm'")

    def init(self, params: Tree) -> Server:
        for name in self.names:
            if not any(name in leaf for leaf in params):
                raise TacitError(f"no parameter has '{name}' in its name: the model has {', '.join(params)}")
        shared = tree.drop(params, self._kept(params))
        if not shared:
            raise TacitError(f"keeping {self.names} keeps every parameter and shares none: use LocalOnly instead")
        return self.base.init(shared)

    def join(self, view: Shared, start: Tree) -> Tree:
        kept = self.base.init(self._kept(start))
        return self._pack(kept, self.base.join(_merge(view, kept), start))

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        holding, inner = _unpack(state)
        reply = self.base.client(_merge(view, holding), inner, self._in_turns(self._paced(site)))
        upload, model = reply.upload, holding.view
        mine = Shared(tree.pick(upload.model, model.model), tree.pick(upload.extra, model.extra))
        moved = self.base.server(holding, mine, rate=1.0)
        upload = Shared(*(tree.drop(part, self._kept(part)) for part in reply.upload))
        kept = tree.where(site.live.any(), self._pack(moved, {}), self._pack(holding, {}))
        return Reply(upload, kept | tree.prefix("base", reply.state))

    def _paced(self, site: Site) -> Site:
        if self.pace == 1:
            return site

        def advance(step: int, new: Tree, old: Tree) -> Tree:
            moved = site.advance(step, new, old)
            return moved | {n: old[n] + self.pace * (moved[n] - old[n]) for n in self._kept(moved)}

        return site._replace(advance=advance)

    def _in_turns(self, site: Site) -> Site:
        if not self.first:
            return site
        turn = (self.first * site.live.sum()).floor()

        def advance(step: int, new: Tree, old: Tree) -> Tree:
            moved, kept, early = site.advance(step, new, old), self._kept(new), step < turn
            return {n: torch.where(early if n in kept else ~early, moved[n], old[n]) for n in moved}

        return site._replace(advance=advance)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return self.base.server(server, mean, rate)

    @property
    def adapt_epochs(self) -> int:
        return self.base.adapt_epochs

    def adapt(self, view: Shared, state: Tree, site: Site) -> Tree:
        kept, inner = _unpack(state)
        return self._pack(kept, self.base.adapt(_merge(view, kept), inner, site))

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        kept, inner = _unpack(state)
        return self.base.predict(task, _merge(view, kept), inner, x)

    def _kept(self, leaves: Tree) -> Tree:
        return tree.pick(leaves, [leaf for leaf in leaves if any(name in leaf for name in self.names)])

    def _pack(self, holding: Server, inner: Tree) -> Tree:
        kept = tree.prefix("kept", tree.join(holding.view)) | tree.prefix("memory", holding.memory)
        return kept | tree.prefix("base", inner)


def _unpack(state: Tree) -> tuple[Server, Tree]:
    kept = Server(tree.split(tree.strip("kept", state)), tree.strip("memory", state))
    return kept, tree.strip("base", state)


def _merge(view: Shared, kept: Server) -> Shared:
    """The whole model, as the base knows it; what the server sent wins."""
    return Shared(kept.view.model | view.model, kept.view.extra | view.extra)
