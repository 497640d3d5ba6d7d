"""Attacks on every release: they must not disprove what is true, and must disprove what is not."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import vmap

from tacit.core.contract import Batch, Shared
from tacit.privacy.accounting.accountant import answer, gaussian_epsilon
from tacit.privacy.accounting.skellam import SkellamDpEvent
from tacit.privacy.audit import audit
from tacit.privacy.mechanisms.clipping import Fixed
from tacit.privacy.mechanisms.distributed import BODY, DistributedRelease
from tacit.privacy.mechanisms.grouped import GroupedRelease
from tacit.privacy.mechanisms.integer_coding import Coding, rotate_back, solve
from tacit.privacy.mechanisms.level_weights import Weighted
from tacit.privacy.mechanisms.local import LocalRelease
from tacit.privacy.mechanisms.noise import Seeded
from tacit.privacy.mechanisms.record import Private
from tacit.privacy.mechanisms.release import Totals

DELTA, Z, TRIALS, OTHERS = 1e-3, 2.0, 20_000, 20.0
CLAIM = gaussian_epsilon(Z, DELTA)
LEVEL = torch.tensor(0)
World = Callable[[bool], Tensor]
"""The attacker's scores of many independent trials, with the canary or without."""


def shout(bound: float = 1.0, size: float = 50.0) -> float:
    """What is left of an upload that shouts in one direction, after encoding."""
    release = GroupedRelease(Fixed(bound), (Z,), (1.0,), Weighted((1.0,)))
    upload = Shared({"w": torch.tensor([size, 0.0])})
    return float(release.encode(release.start(), upload, LEVEL, Seeded.of(0, "x")).body["model/w"][0])


def central(z: float = Z, clipped: bool = True, realised: bool = False) -> World:
    """A sum of other clients' uploads; the canary adds its shout. Every coordinate is a trial of its own."""
    release = GroupedRelease(Fixed(1.0), (z,), (OTHERS,), Weighted((1.0,)))

    def scores(canary: bool) -> Tensor:
        voice = (shout() if clipped else 50.0) if canary else 0.0
        total, count = torch.full((1, TRIALS), 100 * OTHERS + voice), OTHERS + canary
        totals = Totals({"model/w": total}, torch.zeros(1), torch.zeros(1), torch.tensor([count]))
        mean, _ = release.decode(release.start(), totals, Seeded.of(1, "audit", int(canary)))
        return mean.model["w"] * (OTHERS / count if realised else 1.0)

    return scores


def local(z: float = Z) -> World:
    """One client's message; the two worlds are the two data sets that are furthest apart."""
    release = LocalRelease(Fixed(1.0), (z,), 1.0)

    def scores(canary: bool) -> Tensor:
        upload = Shared({"w": torch.tensor([50.0 if canary else -50.0])})
        keys = torch.randint(0, 2**62, (TRIALS, 2), generator=torch.Generator().manual_seed(int(canary)))
        message = vmap(lambda key: release.encode(release.start(), upload, LEVEL, Seeded(key)))(keys)
        return message.body["model/w"][:, 0]

    return scores


class Linear:
    """loss = -y w.x: the gradient of an example is -y x, as large as its row likes."""

    def apply(self, params: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return x @ params["w"]

    def losses(self, params: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return self.loss(self.apply(params, x), y)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return -y * outputs


def record(z: float = Z) -> World:
    """A private gradient over ten quiet rows; the canary is one loud row more."""

    def scores(canary: bool) -> Tensor:
        x = torch.cat([torch.full((10, 1), 0.1), torch.full((1, 1), -50.0)])
        batch = Batch(x, torch.ones(11), torch.tensor([True] * 10 + [canary]))
        keys = torch.randint(0, 2**62, (TRIALS, 2), generator=torch.Generator().manual_seed(10 + int(canary)))

        def one(key: Tensor) -> Tensor:
            query = Private(Linear(), lambda _: batch, 1.0, torch.tensor(z), torch.tensor(10.0), Seeded(key))
            return query({"w": torch.zeros(1)}, 0)["w"][0]

        return vmap(one)(keys)

    return scores


class Away(Seeded):
    """A client that rounds away from zero and does not look at the norm."""

    def round(self, values: Tensor, limit: float) -> Tensor:
        return (values.sign() * values.abs().ceil()).long()


def distributed(coding: Coding, kind: type[Seeded] = Seeded) -> World:
    """The sum of a round with as few clients as may be, as the server sees it; the attacker knows the canary."""
    release = DistributedRelease(coding, {"model/w": torch.zeros(coding.size)}, float(coding.least))
    quiet = Shared({"w": torch.zeros(coding.size)})
    loud = Shared({"w": rotate_back(torch.full((coding.size,), 50.0), torch.tensor(0))})  # even after the rotation

    def encoded(upload: Shared, keys: Tensor) -> Tensor:
        return vmap(lambda key: release.encode(release.start(), upload, LEVEL, kind(key)).body[BODY])(keys)

    def scores(canary: bool) -> Tensor:
        keys = torch.randint(0, 2**62, (2, TRIALS, 2), generator=torch.Generator().manual_seed(20 + int(canary)))
        return (encoded(loud if canary else quiet, keys[0]) + encoded(quiet, keys[1])).sum(1)

    return scores


FINE = solve(Z**2, 4, 1.0, 16, 2, 2)
COARSE = Coding(64, 16, bound=1.0, scale=1.0, share=Z**2 / 2, least=2, most=2)


def claimed(variance: float, l2: float) -> float:
    return answer({SkellamDpEvent(variance, l2, l2**2): 1}, DELTA, "zero-out").epsilon


def attack(world: World) -> float:
    inside, outside = (world(canary).numpy().astype(np.float64) for canary in (True, False))
    return audit(inside, outside, CLAIM, DELTA).lower_bound


def test_no_attack_disproves_the_distributed_epsilon() -> None:
    claim = claimed(2 * FINE.share, FINE.l2)
    assert claim / 4 < attack(distributed(FINE)) <= claim


@pytest.mark.parametrize(
    ("world", "claim"),
    [
        (distributed(replace(FINE, share=FINE.share / 4)), claimed(2 * FINE.share, FINE.l2)),
        (distributed(COARSE, Away), claimed(2 * COARSE.share, COARSE.scale * COARSE.bound)),
    ],
    ids=["noise halved", "rounding without its bound"],
)
def test_a_planted_bug_of_the_distributed_plan_is_found(world: World, claim: float) -> None:
    assert attack(world) > claim


@pytest.mark.parametrize("world", [central(), local(), record()], ids=["central", "local", "record"])
def test_no_attack_disproves_the_stated_epsilon(world: World) -> None:
    bound = attack(world)
    assert bound <= CLAIM
    assert bound > CLAIM / 4, "an attack that finds nothing would not find a bug either"


@pytest.mark.parametrize(
    "world",
    [
        central(z=Z / 2),
        central(clipped=False),
        central(realised=True),
        local(z=Z / 2),
        record(z=Z / 2),
    ],
    ids=["noise halved", "clip skipped", "count realised", "local noise halved", "record noise halved"],
)
def test_a_planted_bug_is_found(world: World) -> None:
    assert attack(world) > CLAIM
