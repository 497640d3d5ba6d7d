"""Membership by losses and by reference models."""

import numpy as np
import pytest
from scipy.special import ndtr

from tacit.errors import TacitError
from tacit.evidence.membership import ATTACKS, Attacked, membership
from tacit.experiments.build import build
from tests.experiments.tiny import tiny


def attacked(mu: float, models: int = 100, clients: int = 800) -> Attacked:
    draw = np.random.default_rng(0)
    inside = draw.random((models, clients)) < 0.5
    return Attacked(clients, dict.fromkeys(ATTACKS, draw.normal(size=inside.shape) + mu * inside), inside)


@pytest.mark.parametrize("mu", [0.0, 1.0, 2.0])
def test_scores_of_known_mu_have_the_area_and_the_curve_of_their_closed_form(mu: float) -> None:
    found = attacked(mu)
    mean, error = found.auc("loss")
    assert mean == pytest.approx(float(ndtr(mu / 2**0.5)), abs=4 * error)
    alarms, hits = map(np.array, found.curve("loss"))
    assert np.interp(0.1, alarms, hits) == pytest.approx(float(ndtr(mu - 1.2816)), abs=0.03)


def test_every_level_is_attacked_with_half_of_its_clients_in_each_model() -> None:
    found = membership(build(tiny("rounds=1")), models=4)
    assert list(found) == ["private", "open"]
    for level in found.values():
        assert level.inside.shape == (4, level.clients)
        assert (level.inside.sum(0) == 2).all()  # each a member of as many models as it is an outsider to
        assert all(np.isfinite(level.scores[kind]).all() for kind in ATTACKS)
        assert all(0 <= level.auc(kind)[0] <= 1 for kind in ATTACKS)


def test_too_few_models_are_refused() -> None:
    with pytest.raises(TacitError, match="at least 4"):
        membership(build(tiny("rounds=1")), models=2)
