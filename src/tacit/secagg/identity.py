# pyright: reportMissingImports=false
"""Who is who: long-lived keys that sign a member's messages, and what others know of them.

Signed keys stop a server that puts itself between members only if the members know each other's public keys from
elsewhere. `KeyRing` is what they know; where it came from is the transport's affair, and its responsibility.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from tacit.errors import TacitError

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
