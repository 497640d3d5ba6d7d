"""What one masked input tells by itself: nothing. What two rounds have in common: no key."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chisquare

from tacit.secagg import primitives
from tacit.secagg.messages import Terms, add_signed, residues, unpack
from tests.secagg.rounds import Round, plain, seeded, terms

SIZE, BITS = 40_000, 18
LIMIT = 1e-4  # the secrets are fixed, so that this test says the same every time


def least_likely(values: np.ndarray, bits: int = BITS) -> float:
    """The smallest p-value of: low bits, high bits, and neighbours, each uniform."""
    low, high = values & 63, values >> (bits - 6)
    pairs = 8 * (values[:-1:2] >> (bits - 3)) + (values[1::2] >> (bits - 3))
    return min(chisquare(np.bincount(each, minlength=64)).pvalue for each in (low, high, pairs))


def masked(one: Round) -> dict[int, np.ndarray]:
    found = {m: unpack(message.body, SIZE, BITS) for m, message in one.sent[2].items()}
    return {m: values for m, values in found.items() if values is not None}


@pytest.fixture(scope="module")
def full_round() -> Round:
    """Five members whose inputs are far from uniform: all zero, all one, all largest, a ramp, a normal curve."""
    of = terms(5, size=SIZE, bits=BITS)
    curve = np.rint(np.random.default_rng(0).normal(0, 30, SIZE)).astype(np.int64)
    shapes = [np.zeros(SIZE, np.int64), np.ones(SIZE, np.int64), np.full(SIZE, -1), np.arange(SIZE), curve]
    one = Round(of, dict(zip(of.members, shapes, strict=True)), source=lambda m: seeded(f"secrecy/{m}"))
    one.sum()
    return one


def test_each_masked_input_alone_is_uniform(full_round: Round) -> None:
    assert len(masked(full_round)) == 5
    for values in masked(full_round).values():
        assert least_likely(values) > LIMIT


def test_the_uniformity_test_notices_what_is_not_masked(full_round: Round) -> None:
    for vector in full_round.vectors.values():
        assert least_likely(residues(vector, BITS)) < LIMIT


def test_no_sum_of_fewer_than_all_masked_inputs_shows_anything(full_round: Round) -> None:
    """Nor does that of all, before survivors' own masks are taken off."""
    found = list(masked(full_round).values())
    for several in range(2, 6):
        assert least_likely(residues(sum(found[:several], np.zeros(SIZE, np.uint32)), BITS)) > LIMIT


def test_an_input_that_came_late_stays_masked_when_its_pairwise_masks_are_known() -> None:
    """The server calls a member dropped, gets its mask key, and has its input after all: its own mask is left."""
    of = terms(5, size=SIZE, bits=BITS)
    one = Round(of, dict.fromkeys(of.members, np.zeros(SIZE, np.int64)), source=lambda m: seeded(f"late/{m}"))
    one.until(1).close()
    late, offers = of.members[0], one.stage.offers
    mask_private = one.states[late].mask_private
    one.collect()
    values = masked(one)[late]
    for offer in offers[1:]:
        key = primitives.pair_key(mask_private, offer.mask_key, of.digest, late, offer.sender)
        values = add_signed(values, primitives.mask(key, SIZE), late > offer.sender)
    assert least_likely(residues(values, BITS)) > LIMIT


def derived_keys(of: Terms, monkeypatch: pytest.MonkeyPatch, label: str) -> list[bytes]:
    """All keys of a whole round in which somebody drops out, made of the same secrets whatever the terms are."""
    found: list[bytes] = []
    original = primitives._derive

    def noted(secret: bytes, digest: bytes, purpose: bytes) -> bytes:
        found.append(original(secret, digest, purpose))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(primitives, "_derive", noted)
        vectors = dict.fromkeys(of.members, np.zeros(of.size, np.int64))
        Round(of, vectors, {of.members[0]: 2}, lambda m: seeded(f"{label}/{m}")).sum()
    return found


@pytest.mark.parametrize("change", [{"run": "other"}, {"round": 4}, {"attempt": 1}, {"bits": 21}, {"least": 4}])
def test_two_rounds_share_no_key_even_if_all_their_secrets_were_the_same(
    change: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = derived_keys(terms(), monkeypatch, "same")
    other = derived_keys(replace(terms(), **change), monkeypatch, "same")
    assert len(one) > 30
    assert not set(one) & set(other)


def test_every_key_has_one_purpose(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key is derived by those who need it: two members (and perhaps the server), never for two purposes or pairs."""
    counts = Counter(derived_keys(terms(), monkeypatch, "purpose"))
    assert max(counts.values()) == 2
    seals, pairs, selves = 5 * 4, 5 * 4 // 2, 5
    checks = selves
    assert len(counts) == seals + pairs + selves - 1 + checks  # the one who dropped out never masks with its own seed


def test_two_runs_of_the_operating_systems_generator_share_no_public_key() -> None:
    of = terms()
    vectors = dict.fromkeys(of.members, np.zeros(of.size, np.int64))
    keys = [
        key
        for _ in range(2)
        for offer in Round(of, vectors).until(0).sent[0].values()
        for key in (offer.seal_key, offer.mask_key)
    ]
    assert len(set(keys)) == 20


def test_a_member_keeps_no_secret_of_its_own_once_its_input_is_sent() -> None:
    of = terms()
    one = Round(of, vectors := dict.fromkeys(of.members, np.arange(of.size))).until(1)
    one.close()
    secrets = {m: (state.seed, state.mask_private, state.seal_private) for m, state in one.states.items()}
    one.collect()
    for member, state in one.states.items():
        assert not any(secret in repr(state).encode("latin-1", "ignore") for secret in secrets[member])
        assert not {"seed", "mask_private", "seal_private"} & set(vars(state))
    assert np.array_equal(one.sum().total, plain(of, vectors, of.members))
