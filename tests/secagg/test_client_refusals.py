"""A member refuses what an honest server does not send, and never reveals both secrets of anybody."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tacit.secagg import client, identity
from tacit.secagg.identity import Identity, KeyRing
from tacit.secagg.messages import (
    Confirmation,
    Confirmations,
    Delivery,
    Discarded,
    Refused,
    Sealed,
    Survivors,
    Terms,
    TooFew,
    Unmasking,
)
from tests.secagg.rounds import STAGES, Round, identities, inputs, plain, terms

ME = 10


def before(stage: int, of: Terms | None = None) -> Round:
    """A round in which all have been told the message of this stage, and none has answered."""
    of = of or terms(5)
    one = Round(of, inputs(of))
    if stage:
        one.until(stage - 1).close()
    return one


def refused(one: Round, message: Any, match: str, kind: type[Exception] = Refused) -> None:
    state = one.states[ME]
    with pytest.raises(kind, match=match):
        one.answer(ME, message)
    assert one.states[ME] is state


@pytest.mark.parametrize("stage", range(1, STAGES))
def test_messages_of_another_round_run_or_attempt_are_refused(stage: int) -> None:
    one = before(stage)
    for change in ({"run": "other"}, {"round": 2}, {"attempt": 1}):
        digest = replace(one.terms, **change).digest
        refused(one, replace(one.told[-1][ME], digest=digest), "another round, run or attempt")


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_message_is_answered_once(stage: int) -> None:
    one = before(stage)
    one.answer(ME, one.told[-1][ME])
    refused(one, one.told[-1][ME], "does not come next")


@pytest.mark.parametrize("stage", range(1, STAGES))
def test_stages_cannot_be_left_out_or_repeated(stage: int) -> None:
    one = before(stage)
    for other in range(stage):
        refused(one, one.told[other][ME], "does not come next")


def test_who_is_not_in_the_cohort_takes_no_part() -> None:
    with pytest.raises(Refused, match="not in the cohort"):
        client.answer(identities([99])[99], None, terms(5))


def test_a_server_that_puts_its_own_key_between_members_is_refused() -> None:
    one = before(1)
    offers = one.told[-1][ME].offers
    forged = replace(offers[1], seal_key=offers[2].seal_key)
    refused(one, replace(one.told[-1][ME], offers=(offers[0], forged, *offers[2:])), "not signed by it")


def test_a_member_whose_identity_is_unknown_is_refused() -> None:
    """Signed keys help only those who know who signs: here the server makes a member up."""
    of = terms(5)
    one, strangers = before(1), identities(of.members, "made up")
    _, forged = client.answer(strangers[11], None, of)
    offers = one.told[-1][ME].offers
    refused(one, replace(one.told[-1][ME], offers=(offers[0], forged, *offers[2:])), "identity is not known")
    alone = Identity(ME, one.people[ME].signer, KeyRing({}))
    with pytest.raises(Refused, match="identity is not known"):
        client.answer(alone, one.states[ME], one.told[-1][ME])


@pytest.mark.parametrize("several", [slice(0, 2), slice(1, 5)])
def test_offers_that_are_too_few_or_leave_the_member_out_are_refused(several: slice) -> None:
    one = before(1)
    message = replace(one.told[-1][ME], offers=one.told[-1][ME].offers[several])
    refused(one, message, "2 of 5 members offered keys|keys that member 10 sent", (Refused, TooFew))  # type: ignore[arg-type]


def test_an_offer_twice_is_refused() -> None:
    one = before(1)
    offers = one.told[-1][ME].offers
    refused(one, replace(one.told[-1][ME], offers=(*offers, offers[2])), "twice")


def test_deliveries_to_somebody_else_from_strangers_or_of_too_few_are_refused() -> None:
    one = before(2)
    told = one.told[-1][ME]
    refused(one, one.told[-1][11], "delivered to member 10")
    refused(one, replace(told, sealed=(*told.sealed, Sealed(99, b""))), "others than the 5 members")
    refused(one, replace(told, sealed=(*told.sealed, told.sealed[0])), "came twice")
    refused(one, replace(told, sealed=told.sealed[:1]), "2 of 5 members sent shares", TooFew)


def test_an_input_of_another_size_is_refused() -> None:
    one = before(2)
    one.vectors = {ME: np.zeros(8, np.int64)}
    refused(one, one.told[-1][ME], "the terms say")


def test_shares_that_the_server_changed_or_misdelivered_are_left_out_and_the_sum_is_still_exact() -> None:
    one = before(2)
    told = one.told[-1][ME]
    first, second, *rest = told.sealed
    flipped = replace(first, box=first.box[:-1] + bytes([first.box[-1] ^ 1]))
    elsewhere = replace(second, box=rest[0].box)
    one.told[-1][ME] = replace(told, sealed=(flipped, elsewhere, *rest))
    one.collect()
    assert [held.owner for held in one.states[ME].held] == [10, 13, 14]
    assert np.array_equal(one.sum().total, plain(one.terms, one.vectors, one.terms.members))


@pytest.mark.parametrize(
    ("members", "match", "kind"),
    [
        ((11, 12, 13, 14), "came too late", Refused),
        ((10, 11), "2 of 5 members survived, but 3 are needed", TooFew),
        ((10, 11, 99), "distinct participants", Refused),
        ((11, 10, 12), "rising order", Refused),
        ((10, 11, 11), "distinct", Refused),
    ],
)
def test_survivors_that_cannot_be_are_refused(members: tuple[int, ...], match: str, kind: type[Exception]) -> None:
    one = before(3)
    refused(one, Survivors(one.terms.digest, members), match, kind)


def test_a_server_that_tells_two_halves_different_survivors_unmasks_neither() -> None:
    """Six members, threshold four: no two sets of four signatures without one member in both."""
    one = before(3, terms(6))
    halves = {m: (10, 11, 12, 13) if m < 13 else (12, 13, 14, 15) for m in (10, 11, 12, 14, 15)}
    signed = [one.answer(m, Survivors(one.terms.digest, told)) for m, told in halves.items()]
    refused(one, Confirmations(one.terms.digest, tuple(signed[:3])), "3 of 6 members confirmed", TooFew)
    fourth = one.answer(13, Survivors(one.terms.digest, (12, 13, 14, 15)))
    refused(one, Confirmations(one.terms.digest, (*signed[:3], fourth)), "told it something else")


def test_members_who_saw_different_keys_do_not_confirm_each_other() -> None:
    """Member 14 is hidden from one of them: the transcripts differ although the survivors are the same."""
    of = terms(5)
    one = Round(of, inputs(of)).until(0)
    one.close()
    hidden = {m: replace(offers, offers=offers.offers[:4]) for m, offers in one.told[-1].items() if m == ME}
    one.told[-1].update(hidden)
    shares = {m: one.answer(m, one.told[-1][m]) for m in of.members}
    for m in of.members[:4]:
        boxes = {each.sender: each.sealed for each in shares.values()}
        sealed = tuple(Sealed(o, next(s.box for s in boxes[o] if s.other == m)) for o in of.members[:4] if o != m)
        one.answer(m, Delivery(of.digest, m, sealed))
    told = Survivors(of.digest, of.members[:4])
    signed = tuple(one.answer(m, told) for m in of.members[:4])
    refused(one, Confirmations(of.digest, signed), "told it something else")


def test_confirmations_twice_or_of_others_are_refused() -> None:
    one = before(4)
    told = one.told[-1][ME]
    refused(one, replace(told, confirmations=told.confirmations[:1] * 4), "came twice")
    stranger = replace(told.confirmations[0], sender=99)
    refused(one, replace(told, confirmations=(*told.confirmations, stranger)), "did not survive")


SUBSETS = st.sets(st.sampled_from([10, 11, 12, 13, 14]), min_size=1).map(lambda some: tuple(sorted(some)))
SENT = before(3)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.booleans(), SUBSETS), min_size=1, max_size=12))
def test_a_member_never_reveals_both_secrets_of_anybody(attempts: list[tuple[bool, tuple[int, ...]]]) -> None:
    """Whatever a server asks, and in whatever order, even with everybody else's signing keys in its hands."""
    of, state, revealed = SENT.terms, SENT.states[ME], []
    for asks, some in attempts:
        statement = identity.of_survivors(of, SENT.states[ME].transcript, some)
        forged = tuple(Confirmation(of.digest, m, SENT.people[m].signer.sign(statement)) for m in some)
        message = Survivors(of.digest, some) if asks else Confirmations(of.digest, forged)
        try:
            state, reply = client.answer(SENT.people[ME], state, message)
        except (Refused, Discarded):
            continue
        revealed += [reply] if isinstance(reply, Unmasking) else []
    assert len(revealed) <= 1
    for reply in revealed:
        assert not {part.owner for part in reply.keys} & {part.owner for part in reply.seeds}


@pytest.mark.parametrize("stage", range(STAGES))
def test_a_state_survives_the_end_of_its_process(stage: int) -> None:
    one = before(stage)
    one.collect()
    state = one.states[ME]
    one.states[ME] = client.thaw(client.freeze(state))
    assert one.states[ME] == state
    assert np.array_equal(one.sum().total, plain(one.terms, one.vectors, one.terms.members))


@pytest.mark.parametrize("blob", [b"", b"\x63", b"\x00short"])
def test_a_state_that_cannot_be_read_is_refused(blob: bytes) -> None:
    with pytest.raises(Refused, match="the member drops out"):
        client.thaw(blob)
