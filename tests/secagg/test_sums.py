"""The sum is that of the survivors, exactly, whoever drops out and whenever; with too few of them there is none."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.secagg.messages import Discarded, Terms, TooFew, threshold_of
from tests.secagg.rounds import STAGES, Round, inputs, plain, terms


def survivors_of(of: Terms, drop: dict[int, int]) -> tuple[int, ...] | None:
    """By the rules: who sent an input; None where too few are left at any stage."""
    left = [[m for m in of.members if drop.get(m, STAGES) > stage] for stage in range(STAGES)]
    needed = [of.threshold, of.threshold, of.least, of.threshold, of.threshold]
    return tuple(left[2]) if all(len(who) >= n for who, n in zip(left, needed, strict=True)) else None


@settings(max_examples=150, deadline=None)
@given(
    st.integers(1, 6).flatmap(lambda n: st.lists(st.integers(0, STAGES), min_size=n, max_size=n)),
    st.integers(1, 32),
    st.integers(0, 9),
    st.integers(0, 2**30),
)
def test_the_sum_is_exact_for_every_pattern_of_drop_out(stages: list[int], bits: int, size: int, seed: int) -> None:
    of = terms(len(stages), bits=bits, size=size)
    drop = dict(zip(of.members, stages, strict=True))
    vectors = inputs(of, seed)
    expected = survivors_of(of, drop)
    if expected is None:
        with pytest.raises(TooFew, match="discarded, and charged"):
            Round(of, vectors, drop).sum()
    else:
        found = Round(of, vectors, drop).sum()
        assert found.survivors == expected
        assert np.array_equal(found.total, plain(of, vectors, expected))


@pytest.mark.parametrize("stage", range(STAGES))
def test_one_drop_out_at_each_stage(stage: int) -> None:
    of = terms(5)
    found = Round(of, vectors := inputs(of), {12: stage}).sum()
    assert np.array_equal(found.total, plain(of, vectors, found.survivors))
    assert (12 in found.survivors) == (stage > 2)


def test_several_drop_outs_at_once() -> None:
    of = terms(11)
    drop = {10: 0, 11: 1, 12: 2, 13: 3, 14: 4}
    found = Round(of, vectors := inputs(of), drop).sum()
    assert found.survivors == tuple(range(13, 21))
    assert np.array_equal(found.total, plain(of, vectors, found.survivors))


def test_fewer_survivors_than_the_noise_needs_are_refused_by_server_and_members() -> None:
    of = terms(5, least=5)
    with pytest.raises(Discarded, match="4 of 5 members survived, but 5 are needed"):
        Round(of, inputs(of), {12: 2}).sum()


def test_a_share_of_the_members_is_rounded_up_and_never_less_than_a_majority() -> None:
    assert [threshold_of(n) for n in (1, 2, 3, 4, 5, 20)] == [1, 2, 2, 3, 3, 11]
    assert [threshold_of(n, 0.7) for n in (1, 2, 3, 10, 11)] == [1, 2, 3, 7, 8]
    assert threshold_of(10, 1.0) == 10
    made = Terms.of("run", 0, tuple(range(20)), size=1, bits=8, least=3, share=0.7)
    assert (made.threshold, made.least) == (14, 14)
