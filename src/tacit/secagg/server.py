"""The server of a round: five stages, each of which collects one message a member and is then closed.

    stage = open_round(terms, directory)      # broadcast terms
    stage = stage.receive(sender, message)    # for each message; `Refused` leaves the stage as it was
    stage, outgoing = stage.close()           # at the deadline, or when `missing` is empty; `Discarded` ends the round
    ... and so on until `close` of the last stage returns a `Sum`, with nothing to send

Stages are values. The server holds no secret of its own until members hand it their shares.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np

from tacit.secagg import messages, primitives
from tacit.secagg.identity import Directory, check_offer, enough, of_survivors, transcript_of
from tacit.secagg.messages import Refused, Spoiled, Terms, TooFew, add_signed, residues, unpack

Outgoing = Mapping[int, messages.FromServer]
"""What is to be sent to whom."""


@dataclass(frozen=True, eq=False)
class Sum:
    """The sum of the survivors' inputs modulo 2^b, exactly, as numbers of 0 to 2^b - 1."""

    total: np.ndarray
    survivors: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Stage:
    """Collects what `asked` members send. Nothing is kept of a message that is refused."""

    terms: Terms
    directory: Directory
    asked: tuple[int, ...]
    came: Mapping[int, Any] = field(default_factory=dict)
    awaits: ClassVar[type]

    @property
    def missing(self) -> tuple[int, ...]:
        return tuple(member for member in self.asked if member not in self.came)

    def receive(self, sender: int, message: messages.FromClient) -> Self:
        """With this message counted. `sender`: whom the transport has authenticated.

        Raises `Refused` for a message of another kind, stage, round, run or sender, for a second one, and for content
        that no honest member sends.
        """
        if not isinstance(message, self.awaits):
            raise Refused(f"a {type(message).__name__} of member {sender} while waiting for {self.awaits.__name__}")
        if message.digest != self.terms.digest:
            raise Refused(f"a {type(message).__name__} of member {sender} is of another round, run or attempt")
        if message.sender != sender:
            raise Refused(f"member {sender} sent a {type(message).__name__} in the name of member {message.sender}")
        if sender not in self.asked:
            raise Refused(f"member {sender} is not asked for a {type(message).__name__}: it is unknown or dropped out")
        if sender in self.came:
            raise Refused(f"a second {type(message).__name__} of member {sender}")
        return self.accept(sender, message)

    def accept(self, sender: int, message: Any) -> Self:
        return replace(self, came={**self.came, sender: message})

    def close(self) -> tuple["Stage | Sum", Outgoing]:
        """The next stage and what is to be sent. Raises `Discarded` if too few members came."""
        raise NotImplementedError

    def present(self, least: int, what: str) -> tuple[int, ...]:
        enough(self.terms, len(self.came), least, what)
        return tuple(sorted(self.came))


@dataclass(frozen=True, eq=False)
class Advertising(Stage):
    came: Mapping[int, messages.Offer] = field(default_factory=dict)
    awaits: ClassVar[type] = messages.Offer

    def accept(self, sender: int, message: messages.Offer) -> Self:
        check_offer(self.terms, message, self.directory)
        taken = {key for offer in self.came.values() for key in (offer.seal_key, offer.mask_key)}
        if message.seal_key == message.mask_key or taken & {message.seal_key, message.mask_key}:
            raise Refused(f"member {sender} offers a key that was offered before")
        return super().accept(sender, message)

    def close(self) -> tuple["Sharing", Outgoing]:
        present = self.present(self.terms.threshold, "offered keys")
        offers = tuple(self.came[member] for member in present)
        message = messages.Offers(self.terms.digest, offers)
        return Sharing(self.terms, self.directory, present, offers=offers), dict.fromkeys(present, message)


@dataclass(frozen=True, eq=False)
class Sharing(Stage):
    came: Mapping[int, messages.Shares] = field(default_factory=dict)
    offers: tuple[messages.Offer, ...] = ()
    awaits: ClassVar[type] = messages.Shares

    def accept(self, sender: int, message: messages.Shares) -> Self:
        if [each.other for each in message.sealed] != [member for member in self.asked if member != sender]:
            raise Refused(f"member {sender} sent shares to others than the {len(self.asked)} who offered keys")
        return super().accept(sender, message)

    def close(self) -> tuple["Masking", Outgoing]:
        present = self.present(self.terms.threshold, "sent shares")
        boxes = {sender: {each.other: each.box for each in shares.sealed} for sender, shares in self.came.items()}
        outgoing = {
            member: messages.Delivery(
                self.terms.digest,
                member,
                tuple(messages.Sealed(other, boxes[other][member]) for other in present if other != member),
            )
            for member in present
        }
        total = np.zeros(self.terms.size, np.uint32)
        return Masking(self.terms, self.directory, present, offers=self.offers, total=total), outgoing


@dataclass(frozen=True, eq=False)
class Masking(Stage):
    """Adds masked inputs up as they come: `total` is all that is kept of them."""

    came: Mapping[int, None] = field(default_factory=dict)
    offers: tuple[messages.Offer, ...] = ()
    total: np.ndarray = field(default_factory=lambda: np.zeros(0, np.uint32))
    awaits: ClassVar[type] = messages.Masked

    def accept(self, sender: int, message: messages.Masked) -> Self:
        values = unpack(message.body, self.terms.size, self.terms.bits)
        if values is None:
            raise Refused(
                f"member {sender} sent {len(message.body):,} bytes that are not {self.terms.size:,} integers of "
                f"{self.terms.bits} bits"
            )
        return replace(self, came={**self.came, sender: None}, total=self.total + values)

    def close(self) -> tuple["Confirming", Outgoing]:
        survivors = self.present(self.terms.least, "survived")
        transcript = transcript_of(self.terms, self.offers, self.asked)
        after = Confirming(
            self.terms, self.directory, survivors, masked=self, transcript=transcript, survivors=survivors
        )
        return after, dict.fromkeys(survivors, messages.Survivors(self.terms.digest, survivors))


@dataclass(frozen=True, eq=False)
class Confirming(Stage):
    came: Mapping[int, messages.Confirmation] = field(default_factory=dict)
    masked: Masking = field(kw_only=True)
    transcript: bytes = b""
    survivors: tuple[int, ...] = ()
    awaits: ClassVar[type] = messages.Confirmation

    def accept(self, sender: int, message: messages.Confirmation) -> Self:
        statement = of_survivors(self.terms, self.transcript, self.survivors)
        if not self.directory.signed(sender, statement, message.signature):
            raise Refused(f"member {sender} did not sign the survivors that it was told")
        return super().accept(sender, message)

    def close(self) -> tuple["Unmask", Outgoing]:
        present = self.present(self.terms.threshold, "confirmed the survivors")
        message = messages.Confirmations(self.terms.digest, tuple(self.came[member] for member in present))
        after = Unmask(self.terms, self.directory, present, masked=self.masked, survivors=self.survivors)
        return after, dict.fromkeys(present, message)


@dataclass(frozen=True, eq=False)
class Unmask(Stage):
    came: Mapping[int, messages.Unmasking] = field(default_factory=dict)
    masked: Masking = field(kw_only=True)
    survivors: tuple[int, ...] = ()
    awaits: ClassVar[type] = messages.Unmasking

    @property
    def dropped(self) -> tuple[int, ...]:
        """Who sent shares, so that others masked their inputs against it, but no input."""
        return tuple(member for member in self.masked.asked if member not in self.survivors)

    def accept(self, sender: int, message: messages.Unmasking) -> Self:
        for parts, allowed in ((message.keys, self.dropped), (message.seeds, self.survivors)):
            owners = [part.owner for part in parts]
            if len(set(owners)) < len(owners) or not set(owners) <= set(allowed):
                raise Refused(f"member {sender} reveals shares that it was not asked for")
            if not all(primitives.is_share(part.share) for part in parts):
                raise Refused(f"member {sender} sent something that is not a share")
        return super().accept(sender, message)

    def close(self) -> tuple[Sum, Outgoing]:
        """The exact sum: own masks of survivors and pairwise masks with the dropped are taken off again."""
        self.present(self.terms.threshold, "helped to unmask")
        total, digest, size = self.masked.total, self.terms.digest, self.terms.size
        offers = {offer.sender: offer for offer in self.masked.offers}
        for member, shares in self._shares("seeds", self.survivors).items():
            seed = self._seed(offers[member], shares)
            total = total - primitives.mask(primitives.self_key(seed, digest, member), size)
        for gone, shares in self._shares("keys", self.dropped).items():
            private = self._mask_key(offers[gone], shares)
            for member in self.survivors:
                key = primitives.pair_key(private, offers[member].mask_key, digest, gone, member)
                total = add_signed(total, primitives.mask(key, size), member > gone)
        return Sum(residues(total, self.terms.bits).astype(np.int64), self.survivors), {}

    def _shares(self, kind: Literal["seeds", "keys"], owners: tuple[int, ...]) -> dict[int, dict[int, bytes]]:
        """By owner and point, of those who sent one."""
        shares: dict[int, dict[int, bytes]] = {owner: {} for owner in owners}
        for member in sorted(self.came):
            for part in getattr(self.came[member], kind):
                shares[part.owner][self.terms.points[member]] = part.share
        return shares

    def _seed(self, offer: messages.Offer, shares: dict[int, bytes]) -> bytes:
        def right(seed: bytes) -> bool:
            return primitives.seed_check(seed, self.terms.digest, offer.sender) == offer.seed_check

        return self._secret("seed", offer.sender, shares, right)

    def _mask_key(self, offer: messages.Offer, shares: dict[int, bytes]) -> bytes:
        def right(private: bytes) -> bool:
            return primitives.public_key(private) == offer.mask_key

        return self._secret("mask key", offer.sender, shares, right)

    def _secret(self, what: str, owner: int, shares: dict[int, bytes], right: Callable[[bytes], bool]) -> bytes:
        """From `threshold` shares; where somebody sent a wrong one, from others."""
        t, points = self.terms.threshold, tuple(shares)
        if len(points) < t:
            raise TooFew(
                f"{len(points)} shares of the {what} of member {owner} came, but {t} are needed: "
                "the round is discarded, and charged"
            )
        for first in range(len(points) if len(points) > t else 1):
            secret = primitives.combine(shares, primitives.weights((points[first:] + points[:first])[:t]))
            if secret is not None and right(secret):
                return secret
        raise Spoiled(
            f"the shares of the {what} of member {owner} do not fit together: the round is discarded, and charged"
        )


def open_round(terms: Terms, directory: Directory) -> Advertising:
    """The first stage; send `terms` to all members."""
    return Advertising(terms, directory, terms.members)
