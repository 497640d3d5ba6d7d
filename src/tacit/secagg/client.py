"""A member of a round: secrets stay in its state, and one message of the server moves it one stage on.

`answer` is all of it. States are values: `freeze` and `thaw` keep them where a process ends between two messages.
*Whoever keeps a state must replace it by the next one, durably, before the answer is sent*: a state that is used twice
could mask two inputs alike, or reveal both secrets of one member. A member that lost its state drops out.
"""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from tacit.errors import TacitError
from tacit.secagg import messages, primitives
from tacit.secagg.identity import (
    Directory,
    Identity,
    check_confirmations,
    checked_offers,
    enough,
    of_offer,
    of_survivors,
    transcript_of,
)
from tacit.secagg.messages import Refused, Terms, add_signed, dump, load, pack, residues
from tacit.secagg.primitives import Source


@dataclass(frozen=True)
class Offered:
    """Has sent its keys."""

    terms: Terms
    member: int
    seal_private: bytes
    mask_private: bytes
    seed: bytes


@dataclass(frozen=True)
class Shared:
    """Has sent shares of its mask key and its seed; `own_...` are those it keeps."""

    terms: Terms
    member: int
    seal_private: bytes
    mask_private: bytes
    seed: bytes
    own_key: bytes
    own_seed: bytes
    offers: tuple[messages.Offer, ...]


@dataclass(frozen=True)
class Held:
    """Shares of the two secrets of `owner`."""

    owner: int
    key: bytes
    seed: bytes


@dataclass(frozen=True)
class Sent:
    """Has sent its masked input, and has forgotten its secrets; it holds shares of others'."""

    terms: Terms
    member: int
    transcript: bytes
    participants: tuple[int, ...]
    held: tuple[Held, ...]


@dataclass(frozen=True)
class Confirmed:
    """Has signed one set of survivors, and will help to unmask their sum and no other."""

    terms: Terms
    member: int
    transcript: bytes
    participants: tuple[int, ...]
    held: tuple[Held, ...]
    survivors: tuple[int, ...]


@dataclass(frozen=True)
class Done:
    """Has nothing left to tell."""

    terms: Terms


State = Offered | Shared | Sent | Confirmed | Done
STATES: tuple[type, ...] = (Offered, Shared, Sent, Confirmed, Done)
AnyState = TypeVar("AnyState", Offered, Shared, Sent, Confirmed)


def answer(
    identity: Identity,
    state: State | None,
    message: messages.FromServer,
    vector: np.ndarray | None = None,
    source: Source = primitives.system,
) -> tuple[State, messages.FromClient]:
    """The next state, and what the server is told. Raises `Refused` for what an honest server would not
    send now, and `TooFew` where fewer members are left than the terms demand; in both cases nothing is told.

    `state` None: a new round begins with its `Terms`. `vector`: the input, `terms.size` integers, with a `Delivery`.
    The caller checks terms against what it has agreed to take part in: run, a round it has not been in, size, least.
    """
    if state is not None and not isinstance(message, Terms) and message.digest != state.terms.digest:
        raise Refused(f"a {type(message).__name__} of another round, run or attempt than {_where(state.terms)}")
    match state, message:
        case None, Terms():
            return _offer(identity, message, source)
        case Offered(), messages.Offers():
            return _share(identity.directory, state, message, source)
        case Shared(), messages.Delivery():
            return _mask(state, message, vector)
        case Sent(), messages.Survivors():
            return _confirm(identity, state, message)
        case Confirmed(), messages.Confirmations():
            return _unmask(identity.directory, state, message)
    stage = "new" if state is None else type(state).__name__.lower()
    raise Refused(f"a {type(message).__name__} does not come next for a member whose state is '{stage}'")


def _offer(identity: Identity, terms: Terms, source: Source) -> tuple[Offered, messages.Offer]:
    """Stage 0, advertise keys."""
    me = identity.member
    if me not in terms.points:
        raise Refused(f"member {me} is not in the cohort of {_where(terms)}")
    seal, mask = primitives.key_pair(source), primitives.key_pair(source)
    seed = source(primitives.SECRET_BYTES)
    check = primitives.seed_check(seed, terms.digest, me)
    unsigned = messages.Offer(terms.digest, me, seal.public, mask.public, check, b"")
    signed = dataclasses.replace(unsigned, signature=identity.signer.sign(of_offer(unsigned)))
    return Offered(terms, me, seal.private, mask.private, seed), signed


def _share(
    directory: Directory, state: Offered, message: messages.Offers, source: Source
) -> tuple[Shared, messages.Shares]:
    """Stage 1, share keys: everybody gets a share of this member's mask key and of the seed of its own mask."""
    terms, me = state.terms, state.member
    offers = checked_offers(terms, message.offers, directory)
    if me not in offers or offers[me].mask_key != primitives.public_key(state.mask_private):
        raise Refused(f"the offers do not have the keys that member {me} sent")
    points = {member: terms.points[member] for member in offers}
    keys = primitives.split(state.mask_private, terms.threshold, list(points.values()), source)
    seeds = primitives.split(state.seed, terms.threshold, list(points.values()), source)
    sealed = []
    for other, x in points.items():
        if other != me:
            key = primitives.seal_key(state.seal_private, offers[other].seal_key, terms.digest, me, other)
            sealed.append(messages.Sealed(other, primitives.seal(key, keys[x] + seeds[x], terms.digest, source)))
    mine = points[me]
    after = Shared(
        terms, me, state.seal_private, state.mask_private, state.seed, keys[mine], seeds[mine], tuple(offers.values())
    )
    return after, messages.Shares(terms.digest, me, tuple(sealed))


def _mask(state: Shared, message: messages.Delivery, vector: np.ndarray | None) -> tuple[Sent, messages.Masked]:
    """Stage 2, masked input: y = x + p(b_u) + sum over v > u of p(s_uv) - sum over v < u of p(s_uv), modulo 2^b."""
    terms, me = state.terms, state.member
    if vector is None or vector.shape != (terms.size,):
        raise Refused(f"the input has shape {getattr(vector, 'shape', None)}, but the terms say ({terms.size},)")
    if message.receiver != me:
        raise Refused(f"shares for member {message.receiver} were delivered to member {me}")
    boxes = {each.other: each.box for each in message.sealed}
    offers = {offer.sender: offer for offer in state.offers}
    if len(boxes) < len(message.sealed) or me in boxes or not set(boxes) <= set(offers):
        raise Refused(f"shares came twice, or from others than the {len(offers)} members whose keys are known")
    participants = tuple(sorted([*boxes, me]))
    enough(terms, len(participants), terms.threshold, "sent shares")
    total = residues(vector, terms.bits) + primitives.mask(
        primitives.self_key(state.seed, terms.digest, me), terms.size
    )
    for other in boxes:
        key = primitives.pair_key(state.mask_private, offers[other].mask_key, terms.digest, me, other)
        total = add_signed(total, primitives.mask(key, terms.size), me < other)
    held = (Held(me, state.own_key, state.own_seed), *_opened(state, offers, boxes))
    transcript = transcript_of(terms, state.offers, participants)
    body = pack(residues(total, terms.bits), terms.bits)
    return Sent(terms, me, transcript, participants, held), messages.Masked(terms.digest, me, body)


def _opened(state: Shared, offers: dict[int, messages.Offer], boxes: dict[int, bytes]) -> Iterator[Held]:
    """The shares that others sent; one that does not open is left out, which reveals less and not more."""
    digest, me = state.terms.digest, state.member
    for other, box in boxes.items():
        key = primitives.seal_key(state.seal_private, offers[other].seal_key, digest, other, me)
        plain = primitives.unseal(key, box, digest) or b""
        held = Held(other, plain[: messages.SHARE_BYTES], plain[messages.SHARE_BYTES :])
        if primitives.is_share(held.key) and primitives.is_share(held.seed):
            yield held


def _confirm(identity: Identity, state: Sent, message: messages.Survivors) -> tuple[Confirmed, messages.Confirmation]:
    """Consistency: signs the survivors, once, if there are enough of them."""
    survivors = message.members
    if list(survivors) != sorted(set(survivors)) or not set(survivors) <= set(state.participants):
        raise Refused("the survivors are not distinct participants in rising order")
    if state.member not in survivors:
        raise Refused(f"the input of member {state.member} came too late: it takes no part in unmasking")
    enough(state.terms, len(survivors), state.terms.least, "survived")
    signature = identity.signer.sign(of_survivors(state.terms, state.transcript, survivors))
    after = Confirmed(state.terms, state.member, state.transcript, state.participants, state.held, survivors)
    return after, messages.Confirmation(state.terms.digest, state.member, signature)


def _unmask(directory: Directory, state: Confirmed, message: messages.Confirmations) -> tuple[Done, messages.Unmasking]:
    """Stage 3, unmask: of each participant the share of its key or of its seed, never of both."""
    terms, survivors = state.terms, set(state.survivors)
    check_confirmations(terms, state.transcript, state.survivors, message.confirmations, directory)
    keys = tuple(messages.Part(held.owner, held.key) for held in state.held if held.owner not in survivors)
    seeds = tuple(messages.Part(held.owner, held.seed) for held in state.held if held.owner in survivors)
    return Done(terms), messages.Unmasking(terms.digest, state.member, keys, seeds)


def _where(terms: Terms) -> str:
    return f"round {terms.round} of run '{terms.run}'"


def freeze(state: State) -> bytes:
    """A state as bytes, secrets included: for the member's own disk alone."""
    return bytes([STATES.index(type(state))]) + dump(state)


def thaw(blob: bytes) -> State:
    """The state that `freeze` made these bytes of."""
    try:
        return load(STATES[blob[0]], blob[1:])
    except (IndexError, TacitError):
        raise Refused("what was kept of this round cannot be read: the member drops out of it") from None
