"""The server refuses what no honest member sends, keeps nothing of it, and the round goes on to the exact sum."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tacit.secagg import primitives
from tacit.secagg.messages import Part, Refused, Sealed, Spoiled, TooFew, Unmasking, packed_bytes
from tests.secagg.rounds import STAGES, Round, inputs, plain, terms

HOSTILE = 12
Twist = Callable[[Any], Any]


def with_one_bad(stage: int, twist: Twist, sender: int = HOSTILE) -> tuple[Round, str]:
    """A round in which one member's message of this stage is not what it should be; the server's complaint."""
    of = terms(5)
    one = Round(of, inputs(of), {HOSTILE: stage}).until(stage)
    honest = Round.answer(one, HOSTILE, one.told[-1][HOSTILE])
    before = one.stage
    with pytest.raises(Refused) as refusal:
        one.stage.receive(sender, twist(honest))
    assert one.stage is before
    return one, str(refusal.value)


def flipped(raw: bytes) -> bytes:
    return bytes([raw[0] ^ 1]) + raw[1:]


BAD: list[tuple[int, str, Twist]] = [
    (0, "not signed", lambda m: replace(m, signature=flipped(m.signature))),
    (0, "not signed", lambda m: replace(m, mask_key=flipped(m.mask_key))),
    (0, "not signed", lambda m: replace(m, seal_key=m.mask_key, mask_key=m.seal_key)),
    (0, "not signed", lambda m: replace(m, seed_check=flipped(m.seed_check))),
    (0, "32 bytes of a key", lambda m: replace(m, mask_key=b"short")),
    (1, "shares to others", lambda m: replace(m, sealed=m.sealed[:-1])),
    (1, "shares to others", lambda m: replace(m, sealed=m.sealed + m.sealed[:1])),
    (1, "shares to others", lambda m: replace(m, sealed=(Sealed(HOSTILE, b""), *m.sealed[1:]))),
    (2, "not 7 integers of 20 bits", lambda m: replace(m, body=m.body[:-1])),
    (2, "not 7 integers of 20 bits", lambda m: replace(m, body=m.body + b"\0")),
    (2, "not 7 integers of 20 bits", lambda m: replace(m, body=m.body[:-1] + b"\xff")),
    (3, "did not sign", lambda m: replace(m, signature=flipped(m.signature))),
    (4, "not asked for", lambda m: replace(m, keys=m.seeds[:1])),
    (4, "not asked for", lambda m: replace(m, seeds=m.seeds[:1] * 2)),
    (4, "not asked for", lambda m: replace(m, seeds=(*m.seeds, Part(99, m.seeds[0].share)))),
    (4, "not a share", lambda m: replace(m, seeds=(replace(m.seeds[0], share=b""), *m.seeds[1:]))),
    (4, "not a share", lambda m: replace(m, seeds=(replace(m.seeds[0], share=b"\xff" * 66), *m.seeds[1:]))),
]


@pytest.mark.parametrize(("stage", "complaint", "twist"), BAD)
def test_a_malformed_message_is_refused_and_the_round_goes_on(stage: int, complaint: str, twist: Twist) -> None:
    one, said = with_one_bad(stage, twist)
    assert complaint in said
    found = one.sum()
    assert np.array_equal(found.total, plain(one.terms, one.vectors, found.survivors))


@pytest.mark.parametrize("stage", range(STAGES))
def test_messages_of_another_round_run_or_attempt_are_refused(stage: int) -> None:
    for change in ({"run": "other"}, {"round": 2}, {"attempt": 1}):
        other = replace(terms(5), **change)
        _, said = with_one_bad(stage, lambda m, digest=other.digest: replace(m, digest=digest))
        assert "another round, run or attempt" in said


@pytest.mark.parametrize("stage", range(STAGES))
def test_whole_messages_of_an_old_round_are_refused_when_they_are_sent_again(stage: int) -> None:
    old = Round(replace(terms(5), round=2), inputs(terms(5))).until(stage)
    new = Round(terms(5), inputs(terms(5)), {HOSTILE: stage}).until(stage)
    with pytest.raises(Refused, match="another round, run or attempt"):
        new.stage.receive(HOSTILE, old.sent[stage][HOSTILE])


def test_a_relabelled_offer_of_an_old_round_is_refused_by_its_signature() -> None:
    old = Round(replace(terms(5), round=2), inputs(terms(5))).until(0).sent[0][HOSTILE]
    _, said = with_one_bad(0, lambda m: replace(old, digest=m.digest))
    assert "not signed" in said


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_second_message_of_one_member_is_refused(stage: int) -> None:
    of = terms(5)
    one = Round(of, inputs(of)).until(stage)
    with pytest.raises(Refused, match="a second"):
        one.stage.receive(HOSTILE, one.sent[stage][HOSTILE])


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_message_in_anothers_name_is_refused(stage: int) -> None:
    _, said = with_one_bad(stage, lambda m: m, sender=13)
    assert "in the name of member 12" in said


@pytest.mark.parametrize("stage", range(1, STAGES))
def test_a_message_of_an_earlier_stage_is_refused(stage: int) -> None:
    of = terms(5)
    one = Round(of, inputs(of)).until(stage)
    with pytest.raises(Refused, match="while waiting for"):
        one.stage.receive(HOSTILE, one.sent[stage - 1][HOSTILE])


def test_who_dropped_out_cannot_come_back_in_a_later_stage() -> None:
    of = terms(5)
    one = Round(of, inputs(of)).until(1)
    one.stage, _ = replace(one.stage, came={m: s for m, s in one.stage.came.items() if m != HOSTILE}).close()
    spare = Round(of, inputs(of)).until(2)
    with pytest.raises(Refused, match="unknown or dropped out"):
        one.stage.receive(HOSTILE, spare.sent[2][HOSTILE])


def test_a_key_that_another_member_offered_is_refused() -> None:
    """Signed by the hostile member itself: only the key is not its own."""
    from tacit.secagg import identity

    of = terms(5)
    one = Round(of, inputs(of), {HOSTILE: 0}).until(0)
    copied = replace(one.sent[0][10], sender=HOSTILE)
    copied = replace(copied, signature=one.people[HOSTILE].signer.sign(identity.of_offer(copied)))
    with pytest.raises(Refused, match="offered before"):
        one.stage.receive(HOSTILE, copied)


def off_by_one(part: Part) -> Part:
    """Well-formed and wrong: the field alone would not notice."""
    return replace(part, share=(primitives.element(part.share) ^ 1).to_bytes(66, "big"))


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_a_wrong_share_is_made_up_for_by_others_and_never_gives_a_wrong_sum(kind: str) -> None:
    one, sent = _unmasking({14: 2})
    one.stage = one.stage.receive(10, replace(sent, **{kind: tuple(map(off_by_one, getattr(sent, kind)))}))
    found, _ = one.stage.close()
    assert np.array_equal(found.total, plain(one.terms, one.vectors, found.survivors))
    fewer = replace(one.stage, came={m: one.stage.came[m] for m in (10, 11, 12)})
    with pytest.raises(Spoiled, match="do not fit together"):
        fewer.close()


def without(sent: Unmasking, owner: int) -> Unmasking:
    return replace(sent, seeds=tuple(part for part in sent.seeds if part.owner != owner))


def test_a_share_that_is_withheld_is_made_up_for_by_others_until_too_few_are_left() -> None:
    one, sent = _unmasking()
    one.stage = one.stage.receive(10, without(sent, 10))
    found, _ = one.stage.close()
    assert np.array_equal(found.total, plain(one.terms, one.vectors, one.terms.members))
    for member in (11, 12):  # two of five are left: 13 and 14
        one.stage = replace(one.stage, came=one.stage.came | {member: without(one.stage.came[member], 10)})
    with pytest.raises(TooFew, match="2 shares of the seed of member 10 came, but 3 are needed"):
        one.stage.close()


def _unmasking(drop: dict[int, int] | None = None) -> tuple[Round, Any]:
    """A round before the last message of member 10, and that message."""
    of = terms(5)
    one = Round(of, inputs(of), {10: 4} | (drop or {})).until(4)
    return one, one.answer(10, one.told[-1][10])


def test_a_well_formed_lie_cannot_be_seen() -> None:
    """What masking cannot do: an input that is not what the member was to send is summed like any other."""
    of = terms(5)
    lie = inputs(of) | {HOSTILE: np.full(of.size, 2**19)}
    assert np.array_equal(Round(of, lie).sum().total, plain(of, lie, of.members))
    assert packed_bytes(of.size, of.bits) == 18
