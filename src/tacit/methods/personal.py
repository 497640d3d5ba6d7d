"""One training loop for every prior: personal parameters pulled towards a population that is learned with them.

Priors of the personal parameters: how a client is pulled, what it tells, what the server makes of it.

Gamma, the prior's parameters, is what is shared. Each prior states -log p(theta; Gamma) up to what does not move.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol, runtime_checkable

import torch
from torch import Tensor

from tacit.core import tree
from tacit.core.checked import INLINE, checked
from tacit.core.contract import Losses, Method, Reply, Server, Shared, Site, Task, Tree
from tacit.methods.adaped import AdaPeD, personal_losses
from tacit.methods.optimizers import LocalSgd, check


@runtime_checkable
class Prior(Protocol):
    def start(self, params: Tree) -> Shared:
        """Gamma before the first round."""
        ...

    def pull(self, theta: Tree, gamma: Shared) -> Tree:
        """The gradient of -log p(theta; Gamma) in theta; zero for priors of the outputs."""
        return tree.zeros(theta)

    def losses(self, task: Task, gamma: Shared) -> Losses | None:
        """The loss of each example with a prior of the outputs in it; None: the task's own."""
        return None

    def message(self, theta: Tree, gamma: Shared, site: Site) -> Shared:
        """What a client uploads when theta is trained: a small change of Gamma, seen from this client."""
        ...

    def learn(self, gamma: Shared, mean: Shared) -> Shared:
        """Gamma after the mean of the messages."""
        return tree.split(tree.add(tree.join(gamma), tree.join(mean)))


SCALE: Final = "log_strength"  # in what is shared, where the strength is learned
_FAR: Final = 4.0  # a client's distance counts as so many times the expected one at the most


@checked
@dataclass(frozen=True)
class L2(Prior):
    """N(mu, 1 / (strength rows)): strength/2 |theta - mu|^2 beside the mean loss. mu goes to the mean of the thetas.

    With `strength_lr` the strength is learned, too, as AdaPeD learns psi. A round moves its logarithm by
    strength_lr/2 (1 - strength rows m), m the mean square of a coordinate of theta - mu: it settles where clients lie
    as far from mu as the prior says. Eq. (12) has no minimum in theta and the strength together (theta -> mu, strength
    -> infinity), so where clients differ by little more than their own noise the strength ends at `most`.

    Args:
        strength: of the pull to mu, 0 or more; 0 is training alone. Where it is learned, its start.
        strength_lr: the rate at which it is learned; 0 keeps it.
        rows: about how many rows a client has, a public number: the loss is a mean over them.
        most: a learned strength never rises above it. Steps are stable where it is below 1 / their rate.

    Raises:
        TacitError: a negative strength or rate, a limit or rows that are not positive, or a start of 0 or above `most`
            where the strength is learned.

    Example:
        >>> import tacit
        >>> tacit.Personal(tacit.L2(strength=0.1, strength_lr=0.5, rows=600)).prior.most
        1.0
    """

    strength: float = 0.1
    strength_lr: float = 0.0
    rows: float = 1.0
    most: float = 1.0

    def __post_init__(self) -> None:
        _check_scale(self.strength, self.strength_lr, self.rows, self.most)

    def start(self, params: Tree) -> Shared:
        return _with_scale(params, self.strength, self.strength_lr)

    def pull(self, theta: Tree, gamma: Shared) -> Tree:
        return tree.scale(tree.sub(theta, gamma.model), _strength(gamma, self.strength))

    def message(self, theta: Tree, gamma: Shared, site: Site) -> Shared:
        gap = tree.sub(theta, gamma.model)
        apart = _strength(gamma, self.strength) * self.rows * _mean(tree.each(torch.square, gap))
        return Shared(gap, _scale_step(gamma, apart, self.strength_lr / 2))

    def learn(self, gamma: Shared, mean: Shared) -> Shared:
        return _capped(super().learn(gamma, mean), self.most)


@checked
@dataclass(frozen=True)
class L1(Prior):
    """Laplace around mu: strength |theta - mu|_1, which leaves most coordinates at mu. mu goes to the median.

    A message moves no coordinate further than `reach`: with a small one only the sign counts, as for a median. With
    `strength_lr` the strength is learned as in `L2`: the density is strength rows / 2 exp(-strength rows |theta - mu|),
    and the logarithm moves by strength_lr (1 - strength rows m), m the mean of |theta - mu| over coordinates.

    Args:
        strength: of the pull to mu, 0 or more. Where it is learned, its start.
        reach: how far a message moves a coordinate at the most, above 0.
        strength_lr: the rate at which the strength is learned; 0 keeps it.
        rows: about how many rows a client has, a public number.
        most: a learned strength never rises above it.

    Raises:
        TacitError: as in `L2`, or a reach that is not positive.

    Example:
        >>> import tacit
        >>> tacit.Personal(tacit.L1(strength=0.01)).prior.reach
        0.01
    """

    strength: float = 0.001
    reach: float = 0.01
    strength_lr: float = 0.0
    rows: float = 1.0
    most: float = 1.0

    def __post_init__(self) -> None:
        _check_scale(self.strength, self.strength_lr, self.rows, self.most)
        check("reach", self.reach, positive=True)

    def start(self, params: Tree) -> Shared:
        return _with_scale(params, self.strength, self.strength_lr)

    def pull(self, theta: Tree, gamma: Shared) -> Tree:
        return tree.scale(tree.each(torch.sign, tree.sub(theta, gamma.model)), _strength(gamma, self.strength))

    def message(self, theta: Tree, gamma: Shared, site: Site) -> Shared:
        gap = tree.sub(theta, gamma.model)
        apart = _strength(gamma, self.strength) * self.rows * _mean(tree.each(torch.abs, gap))
        near = tree.each(lambda leaf: leaf.clamp(-self.reach, self.reach), gap)
        return Shared(near, _scale_step(gamma, apart, self.strength_lr))

    def learn(self, gamma: Shared, mean: Shared) -> Shared:
        return _capped(super().learn(gamma, mean), self.most)


def _check_scale(strength: float, rate: float, rows: float, most: float) -> None:
    check("strength", strength, positive=rate > 0, most=most if rate > 0 else math.inf)
    check("strength_lr", rate)
    check("rows", rows, positive=True)
    check("most", most, positive=True)


def _with_scale(params: Tree, strength: float, rate: float) -> Shared:
    """The prior at its start; the strength is shared only where it is learned."""
    if rate == 0:
        return Shared(params)
    return Shared(params, {SCALE: torch.full((), math.log(strength), dtype=next(iter(params.values())).dtype)})


def _strength(gamma: Shared, fixed: float) -> float | Tensor:
    return gamma.extra[SCALE].exp() if SCALE in gamma.extra else fixed


def _scale_step(gamma: Shared, apart: float | Tensor, rate: float) -> Tree:
    """What a client says of the scale: `apart` is its distance in units of the expected one, bounded for all."""
    return {SCALE: rate * (1 - torch.as_tensor(apart).clamp(max=_FAR))} if SCALE in gamma.extra else {}


def _capped(gamma: Shared, most: float) -> Shared:
    extra = {name: leaf.clamp(max=math.log(most)) if name == SCALE else leaf for name, leaf in gamma.extra.items()}
    return Shared(gamma.model, extra)


def _mean(params: Tree) -> Tensor:
    """Over all coordinates of all leaves."""
    return torch.stack([leaf.sum() for leaf in params.values()]).sum() / tree.size(params)


@checked
@dataclass(frozen=True)
class KL(Prior):
    """D_KL(p_mu || p_theta) / (2 psi) + log(2 psi) / 2: AdaPeD's, eq. (23). (mu, psi) learn from the trained theta.

    Args:
        of: AdaPeD, with its options.

    Example:
        >>> import tacit
        >>> tacit.Personal(tacit.KL(tacit.AdaPeD(psi=2.0))).prior.of.psi
        2.0
    """

    of: AdaPeD = field(default_factory=AdaPeD)

    def start(self, params: Tree) -> Shared:
        return self.of.init(params).view

    def losses(self, task: Task, gamma: Shared) -> Losses | None:
        return personal_losses(task, tree.join(gamma))

    def message(self, theta: Tree, gamma: Shared, site: Site) -> Shared:
        start = now = tree.join(gamma)
        for step in range(site.steps):
            now = site.advance(step, self.of.shared_step(theta, start, now, site, step), now)
        return tree.split(tree.sub(now, start))

    def learn(self, gamma: Shared, mean: Shared) -> Shared:
        return self.of.server(Server(gamma), mean, 1.0).view


@checked
@dataclass(frozen=True)
class Mixture(Prior):
    """-log sum_l p_l N(theta; mu_l, spread), Algorithm 4: clients of one kind share a centre.

    A client sends r_l (theta - mu_l) and r_l, its share in each centre, as one upload: a private plan clips the model
    and all shares together, and the server's ratios are a private clustering step. The spread stays as given: learned
    with the thetas it would fall to 0 (the objective is unbounded below). Centres start `jitter` apart.

    Args:
        components: how many centres there are.
        spread: the variance around a centre, above 0.
        jitter: how far apart centres start, above 0.

    Raises:
        TacitError: a number that is not positive.

    Example:
        >>> import tacit
        >>> tacit.Personal(tacit.Mixture(components=3)).prior.components
        3
    """

    components: int = 2
    spread: float = 1.0
    jitter: float = 0.01

    def __post_init__(self) -> None:
        check("components", self.components, positive=True)
        check("spread", self.spread, positive=True)
        check("jitter", self.jitter, positive=True)

    def start(self, params: Tree) -> Shared:
        draw, centres = torch.Generator().manual_seed(0), {}
        for at in range(self.components):
            apart = tree.each(lambda leaf: self.jitter * _normal(leaf, draw), params)
            centres |= tree.prefix(str(at), tree.add(params, apart))
        sample = next(iter(params.values()))
        return Shared(params, centres | {"share": torch.full((self.components,), 1 / self.components).to(sample.dtype)})

    def pull(self, theta: Tree, gamma: Shared) -> Tree:
        pulls = tree.zeros(theta)
        for share, gap in zip(*self._seen(theta, gamma), strict=True):
            pulls = tree.axpy(share / self.spread, gap, pulls)
        return pulls

    def message(self, theta: Tree, gamma: Shared, site: Site) -> Shared:
        shares, gaps = self._seen(theta, gamma)
        told = {}
        for at, gap in enumerate(gaps):
            told |= tree.prefix(str(at), tree.scale(gap, shares[at]))
        return Shared(tree.zeros(gamma.model), told | {"share": shares})

    def learn(self, gamma: Shared, mean: Shared) -> Shared:
        """Centres move by the means of their own clients; a share is at least a quarter of an equal one."""
        share = mean.extra["share"].clamp(min=1 / (4 * self.components))
        moved = {"share": share / share.sum()}
        for at in range(self.components):
            step = tree.scale(tree.strip(str(at), mean.extra), 1 / share[at])
            moved |= tree.prefix(str(at), tree.add(tree.strip(str(at), gamma.extra), step))
        largest = int(share.argmax())
        return Shared(tree.strip(str(largest), moved), moved)

    def _seen(self, theta: Tree, gamma: Shared) -> tuple[Tensor, list[Tree]]:
        """r_l and theta - mu_l."""
        gaps = [tree.sub(theta, tree.strip(str(at), gamma.extra)) for at in range(self.components)]
        likely = torch.stack([-tree.norm(gap).square() / (2 * self.spread) for gap in gaps])
        return (gamma.extra["share"].log() + likely).softmax(0), gaps


def _normal(leaf: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(leaf.shape, generator=draw, dtype=leaf.dtype)


PRIORS: Final[Mapping[str, Callable[..., Prior]]] = MappingProxyType(
    {"l2": L2, "l1": L1, "kl": KL, "mixture": Mixture},
)


@checked
@dataclass(frozen=True)
class Personal(Method):
    """min over theta_i and Gamma of sum_i f_i(theta_i) - log p(theta_i; Gamma), eq. (12), by turns.

    theta stays on the client and predicts; what the prior has to say of it is uploaded, and the server learns Gamma.
    Try `L2`, `L1`, `KL` or `Mixture`: the loop is the same.

    Args:
        prior: what personal models have in common.
        personal: of the personal model on a client.

    Example:
        >>> import tacit
        >>> tacit.Personal(tacit.L2(0.1), tacit.LocalSgd(lr=0.05)).personal.lr
        0.05
    """

    prior: Prior = field(default_factory=L2)
    personal: LocalSgd = field(default_factory=LocalSgd, metadata=INLINE)

    def init(self, params: Tree) -> Server:
        return Server(self.prior.start(params))

    def join(self, view: Shared, start: Tree) -> Tree:
        return start

    def client(self, view: Shared, state: Tree, site: Site) -> Reply:
        def gradient(params: Tree, step: int, losses: Losses | None = None) -> Tree:
            return site.grad(params, step, self.prior.losses(site.task, view))

        def pull(slope: Tree, params: Tree) -> Tree:
            return tree.add(slope, self.prior.pull(params, view))

        theta = self.personal.run(state, site, gradient, pull)
        told = tree.join(self.prior.message(theta, view, site))
        heard = tree.where(site.live.any(), told, tree.zeros(told))
        return Reply(tree.split(heard), theta)

    def server(self, server: Server, mean: Shared, rate: float) -> Server:
        return Server(self.prior.learn(server.view, mean))

    def predict(self, task: Task, view: Shared, state: Tree, x: Tensor) -> Tensor:
        return task.apply(state, x)
