"""FedProx (Li et al. 2020): FedAvg whose clients are held near the model that they received."""

from dataclasses import dataclass

from tacit.core import tree
from tacit.core.checked import checked
from tacit.core.contract import Reply, Shared, Site, Tree
from tacit.methods.fedavg import FedAvg
from tacit.methods.optimizers import check


@checked
@dataclass(frozen=True)
class FedProx(FedAvg):
    """Algorithm 2: each client minimises h_k(w; w^t) = F_k(w) + mu/2 |w - w^t|^2, eq. (2), by its local steps.

    `strength` is mu; with 0 it is FedAvg. How near the steps come to the minimum is the paper's gamma-inexactness:
    devices that do less (`Availability`) send what they have, as there.

    Args:
        local: of the shared model on a client: rate, momentum, weight decay.
        optimizer: the server's step on the mean update; by default the mean itself.
        strength: mu, 0 or more.

    Raises:
        TacitError: a negative strength.

    Example:
        >>> import tacit
        >>> tacit.FedProx(strength=0.01).strength
        0.01
    """

    strength: float = 0.1

    def __post_init__(self) -> None:
        check("FedProx's strength", self.strength)

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        def pull(gradient: Tree, w: Tree) -> Tree:
            return tree.axpy(self.strength, tree.sub(w, view.model), gradient)  # grad F_k(w) + mu (w - w^t)

        trained = self.local.run(view.model, site, site.private_grad, pull, guarded=True)
        return Reply(Shared(tree.sub(trained, view.model)), state)
