"""pFedMe (Dinh et al. 2020): personal models by Moreau envelopes; the shared one is moved towards them."""

from dataclasses import dataclass, field

from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.optimizers import LocalSgd, ServerSgd, check, plain


@checked
@dataclass(frozen=True)
class PFedMe(Method):
    """In each step: theta = argmin f_i(theta) + lambda/2 |theta - w|^2 by `inner_steps` of gradient descent, eq. (6);
    then w <- w - eta lambda (w - theta), eq. (7).

    theta stays on the client and predicts. `strength` is lambda, `rate` eta; the server's rate is the paper's beta.
    theta starts each round at w, and each further step where it was.

    Args:
        personal: of the steps towards theta.
        optimizer: the server's step; its rate is the paper's beta.
        strength: lambda, 0 or more.
        rate: eta, of the step of w to theta; above 0.
        inner_steps: gradient steps towards theta in each step of w.

    Raises:
        TacitError: a number outside its range, or a momentum.

    Example:
        >>> import tacit
        >>> tacit.PFedMe(strength=1.0, inner_steps=5).inner_steps
        5
    """

    personal: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)
    optimizer: ServerSgd = field(default_factory=ServerSgd)
    strength: float = 0.5
    rate: float = 0.2
    inner_steps: int = 3

    def __post_init__(self) -> None:
        plain("pFedMe", self.personal)
        check("pFedMe's strength", self.strength)
        check("rate", self.rate, positive=True)
        check("inner_steps", self.inner_steps, positive=True)

    def init(self, params: Tree) -> Server:
        return Server(Shared(params), self.optimizer.start(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return view.model

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        theta = w = view.model
        for step in range(site.steps):
            near = self.prox(theta, w, site, step)
            moved = tree.axpy(self.rate * self.strength, tree.sub(near, w), w)
            w = site.advance(step, site.guard(view.model, w, moved), w)
            theta = site.advance(step, near, theta)
        return Reply(Shared(tree.sub(w, view.model)), tree.where(site.live.any(), theta, state))

    def prox(self, theta: Tree, w: Tree, site: Site, step: int) -> Tree:
        """The minimiser of the step's loss + lambda/2 |theta - w|^2, as near as `inner_steps` come."""
        for _ in range(self.inner_steps):
            gradient = site.private_grad(theta, step)
            pulled = tree.axpy(self.strength, tree.sub(theta, w), gradient)
            theta = self.personal.step(theta, pulled, site.round)
        return theta

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        move, memory = self.optimizer.step(server.memory, mean.model)
        return Server(Shared(tree.add(server.view.model, move)), memory)

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)
