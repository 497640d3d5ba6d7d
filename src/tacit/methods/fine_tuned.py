"""A shared model, tuned on each client's own data before it predicts."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.errors import TacitError
from tacit.methods.fedavg import FedAvg
from tacit.methods.optimizers import LocalSgd


@checked
@dataclass(frozen=True)
class FineTuned(Method):
    """`base`, and on top a local training that starts at the current broadcast and is thrown away after predicting.

    Args:
        base: the method that trains the shared model.
        tuning: of the local training before a client predicts.
        only: tuned are parameters with one of these in their name, for example a personal transform; () tunes all.
        passes: how often the tuning goes through a round's steps.

    Raises:
        TacitError: no pass; and in a run, a name in `only` that no parameter has.

    Example:
        >>> import tacit
        >>> tacit.FineTuned(tuning=tacit.LocalSgd(lr=0.05)).tuning.lr
        0.05
    """

    base: Method = field(default_factory=FedAvg, metadata=INLINE)
    tuning: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    only: tuple[str, ...] = ()
    passes: int = 1

    def __post_init__(self) -> None:
        if self.passes < 1:
            raise TacitError(f"passes must be at least 1, not {self.passes}")

    def init(self, params: Tree) -> Server:
        return self.base.init(params)

    def join(self, view: Shared, start: Tree) -> Tree:
        for name in self.only:
            if not any(name in leaf for leaf in start):
                raise TacitError(f"no parameter has '{name}' in its name: the model has {', '.join(start)}")
        return self.base.join(view, start)

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        return self.base.client(view, state, site)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return self.base.server(server, mean, rate)

    @property
    def adapt_epochs(self) -> int:
        return self.base.adapt_epochs

    def adapt(self, view: Shared, state: Tree, site: Site) -> Tree:
        tuned, here = view.model, self._held(site)
        for _ in range(self.passes):
            tuned = self.tuning.run(tuned, here, site.grad)
        return tree.prefix("base", self.base.adapt(view, state, site)) | tree.prefix("tuned", tuned)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        tuned = Shared(tree.strip("tuned", state), view.extra)
        return self.base.predict(task, tuned, tree.strip("base", state), x)

    def _held(self, site: Site) -> Site:
        """A site whose steps move what is tuned alone."""
        if not self.only:
            return site

        def advance(step: int, new: Tree, old: Tree) -> Tree:
            moved = site.advance(step, new, old)
            return {n: moved[n] if any(part in n for part in self.only) else old[n] for n in moved}

        return site._replace(advance=advance)
