# pyright: reportMissingImports=false
"""Who is who: long-lived keys that sign a member's messages, what they sign, and what others know of them.

Signed keys stop a server that puts itself between members only if the members know each other's public keys from
elsewhere. `KeyRing` is what they know; where it came from is the transport's affair, and its responsibility.

The checks of what was signed are the same for client and server.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from tacit.errors import TacitError
from tacit.secagg.messages import KEY_BYTES, Confirmation, Offer, Refused, Survivors, Terms, TooFew, dump
from tacit.secagg.primitives import checksum

PublicKey: TypeAlias = EllipticCurvePublicKey | Ed25519PublicKey


class Signer(Protocol):
    """A member's own identity."""

    def sign(self, message: bytes) -> bytes: ...


class Directory(Protocol):
    """Whether `member` signed `message`; False for a member that is not known."""

    def signed(self, member: int, message: bytes, signature: bytes) -> bool: ...


class Identity(NamedTuple):
    """A member: its number, its key, and what it knows of the others' keys (its own included)."""

    member: int
    signer: Signer
    directory: Directory


@dataclass(frozen=True)
class KeySigner:
    """ECDSA with SHA-384 (Flower's node keys are of the curve P-384) or Ed25519."""

    key: EllipticCurvePrivateKey | Ed25519PrivateKey

    def sign(self, message: bytes) -> bytes:
        if isinstance(self.key, Ed25519PrivateKey):
            return self.key.sign(message)
        return self.key.sign(message, ECDSA(SHA384()))

    @classmethod
    def of(cls, path: Path) -> "KeySigner":
        """The OpenSSH private key in a file, as `ssh-keygen -t ecdsa -b 384` writes it."""
        key = load_ssh_private_key(path.read_bytes(), None)
        if not isinstance(key, EllipticCurvePrivateKey | Ed25519PrivateKey):
            raise TacitError(f"{path} has a {type(key).__name__}: members sign with ECDSA or Ed25519 keys")
        return cls(key)


@dataclass(frozen=True)
class KeyRing:
    keys: Mapping[int, PublicKey]

    def signed(self, member: int, message: bytes, signature: bytes) -> bool:
        key = self.keys.get(member)
        if key is None:
            return False
        try:
            _verify(key, message, signature)
        except InvalidSignature:
            return False
        return True

    @classmethod
    def of(cls, lines: Mapping[int, str]) -> "KeyRing":
        """Public keys as OpenSSH writes them: one line a member."""
        return cls({member: _public(member, line) for member, line in lines.items()})


def _verify(key: PublicKey, message: bytes, signature: bytes) -> None:
    if isinstance(key, Ed25519PublicKey):
        key.verify(signature, message)
    else:
        key.verify(signature, message, ECDSA(SHA384()))


def _public(member: int, line: str) -> PublicKey:
    try:
        key = load_ssh_public_key(line.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TacitError(f"the public key of member {member} cannot be read: {error}") from None
    if not isinstance(key, EllipticCurvePublicKey | Ed25519PublicKey):
        raise TacitError(f"member {member} has a {type(key).__name__}: use an ECDSA or Ed25519 key")
    return key


def of_offer(offer: Offer) -> bytes:
    """Says: in the round with this digest, these are my keys."""
    return checksum(b"offer", dump(replace(offer, signature=b"")))


def transcript_of(terms: Terms, offers: Sequence[Offer], participants: Sequence[int]) -> bytes:
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
    by_sender = {offer.sender: offer for offer in offers}
    keys = {key for offer in offers for key in (offer.seal_key, offer.mask_key)}
    if len(by_sender) < len(offers) or len(keys) < 2 * len(offers):
        raise Refused("a member or a key is offered twice")
    enough(terms, len(by_sender), terms.threshold, "offered keys")
    return dict(sorted(by_sender.items()))


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


def enough(terms: Terms, count: int, least: int, what: str) -> None:
    if count < least:
        raise TooFew(
            f"round {terms.round}: {count} of {len(terms.members)} members {what}, but {least} are needed: "
            "the round is discarded, and charged"
        )
