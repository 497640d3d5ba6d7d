"""What members sign, and the checks of it that client and server have in common."""

from collections.abc import Sequence
from dataclasses import replace

from tacit.secagg.codec import dump
from tacit.secagg.identity import Directory
from tacit.secagg.messages import KEY_BYTES, Confirmation, Offer, Survivors
from tacit.secagg.primitives import checksum
from tacit.secagg.terms import Refused, Terms, TooFew


def of_offer(offer: Offer) -> bytes:
    """Says: in the round with this digest, these are my keys."""
    return checksum(b"offer", dump(replace(offer, signature=b"")))


def transcript(terms: Terms, offers: Sequence[Offer], participants: Sequence[int]) -> bytes:
    """The whole round up to the masked inputs: everybody's keys and who shared them."""
    keys = [dump(offer) for offer in sorted(offers, key=lambda offer: offer.sender)]
    return checksum(b"transcript", terms.digest, b"".join(keys), dump(Survivors(b"", tuple(participants))))


def of_survivors(terms: Terms, transcript: bytes, survivors: tuple[int, ...]) -> bytes:
    """Says: I saw this transcript, and will unmask the sum of these members' inputs and no other."""
    return checksum(b"survivors", terms.digest, transcript, dump(Survivors(b"", survivors)))


def check_offer(terms: Terms, offer: Offer, directory: Directory) -> None:
    if offer.digest != terms.digest or offer.sender not in terms.points:
        raise Refused(f"an offer of keys by member {offer.sender} that does not belong to round {terms.round}")
    if any(len(key) != KEY_BYTES for key in (offer.seal_key, offer.mask_key, offer.seed_check)):
        raise Refused(f"member {offer.sender} offers something that does not have the {KEY_BYTES} bytes of a key")
    if not directory.signed(offer.sender, of_offer(offer), offer.signature):
        raise Refused(f"the keys of member {offer.sender} are not signed by it, or its identity is not known here")


def checked_offers(terms: Terms, offers: Sequence[Offer], directory: Directory) -> dict[int, Offer]:
    """By member; enough of them, all signed, no key twice."""
    for offer in offers:
        check_offer(terms, offer, directory)
    found = {offer.sender: offer for offer in offers}
    keys = {key for offer in offers for key in (offer.seal_key, offer.mask_key)}
    if len(found) < len(offers) or len(keys) < 2 * len(offers):
        raise Refused("a member or a key is offered twice")
    enough(terms, len(found), terms.threshold, "offered keys")
    return dict(sorted(found.items()))


def check_confirmations(
    terms: Terms,
    transcript: bytes,
    survivors: tuple[int, ...],
    confirmations: Sequence[Confirmation],
    directory: Directory,
) -> None:
    """At least a threshold of survivors signed this very transcript and these very survivors."""
    statement = of_survivors(terms, transcript, survivors)
    senders = [each.sender for each in confirmations]
    if len(set(senders)) < len(senders) or not set(senders) <= set(survivors):
        raise Refused("a confirmation came twice, or of somebody who did not survive")
    for each in confirmations:
        if not directory.signed(each.sender, statement, each.signature):
            raise Refused(f"member {each.sender} did not sign these survivors: the server told it something else")
    enough(terms, len(senders), terms.threshold, "confirmed the survivors")


def enough(terms: Terms, several: int, least: int, what: str) -> None:
    if several < least:
        raise TooFew(
            f"round {terms.round}: {several} of {len(terms.members)} members {what}, but {least} are needed: "
            "the round is discarded, and charged"
        )
