# pyright: reportMissingImports=false
"""The protocol makes the bytes of vectors.json, and its primitives are what the standards say."""

import hashlib
import hmac
import json
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tacit.errors import TacitError
from tacit.secagg import primitives
from tacit.secagg.identity import KeyRing, KeySigner
from tacit.secagg.messages import Refused
from tests.secagg import vectors


@pytest.mark.parametrize("part", ["explanation", "terms", "shamir", "keys", "packing", "round"])
def test_the_vectors_are_what_the_protocol_makes(part: str) -> None:
    assert json.loads(json.dumps(vectors.build()[part])) == json.loads(vectors.FILE.read_text())[part]


def test_a_mask_is_the_key_stream_of_rfc_8439() -> None:
    """Appendix A.1, test vector 1: key and nonce zero, counter 0."""
    stream = "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7"
    assert primitives.mask(bytes(32), 8).astype("<u4").tobytes().hex() == stream


def test_keys_are_derived_by_rfc_5869() -> None:
    """HKDF by hand: extract with the digest as salt, expand with the purpose."""
    seed, digest = bytes(range(32)), hashlib.sha256(b"terms").digest()
    extracted = hmac.digest(digest, seed, "sha256")
    purpose = b"tacit secagg 1 self" + (12).to_bytes(8, "little")
    assert primitives.self_key(seed, digest, 12) == hmac.digest(extracted, purpose + b"\x01", "sha256")


def test_both_sides_agree_on_keys_and_directions_do_not_share_one() -> None:
    one, other = primitives.key_pair(primitives.system), primitives.key_pair(primitives.system)
    digest = bytes(32)
    assert primitives.pair_key(one.private, other.public, digest, 1, 2) == primitives.pair_key(
        other.private, one.public, digest, 2, 1
    )
    there = primitives.seal_key(one.private, other.public, digest, 1, 2)
    assert there == primitives.seal_key(other.private, one.public, digest, 1, 2)
    assert there != primitives.seal_key(one.private, other.public, digest, 2, 1)


@pytest.mark.parametrize("public", [bytes(32), (1).to_bytes(32, "little"), b"short"])
def test_a_public_key_of_low_order_is_refused(public: bytes) -> None:
    with pytest.raises(Refused, match="no secret can be agreed on"):
        primitives.pair_key(bytes(range(32)), public, bytes(32), 1, 2)


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_sealed_box_opens_whole_and_in_its_round_only(cut: int) -> None:
    key, digest = bytes(range(32)), bytes(32)
    box = primitives.seal(key, bytes(32), digest, primitives.system)
    assert primitives.unseal(key, box, digest) == bytes(32)
    assert primitives.unseal(key, box[:cut], digest) is None
    assert primitives.unseal(key, box, b"another round") is None


@pytest.mark.parametrize("key", [ec.generate_private_key(ec.SECP384R1()), Ed25519PrivateKey.generate()])
def test_identities_are_read_from_openssh_files(
    key: ec.EllipticCurvePrivateKey | Ed25519PrivateKey, tmp_path: Path
) -> None:
    """As Flower's nodes have them."""
    path = tmp_path / "node"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    ring, signature = KeyRing.of({7: line}), KeySigner.of(path).sign(b"text")
    assert ring.signed(7, b"text", signature)
    assert not ring.signed(7, b"other", signature)
    assert not ring.signed(7, b"text", signature[:-1])
    assert not ring.signed(8, b"text", signature)


def test_keys_of_other_kinds_are_refused(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 2048)
    line = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    with pytest.raises(TacitError, match="use an ECDSA or Ed25519 key"):
        KeyRing.of({7: line})
    with pytest.raises(TacitError, match="cannot be read"):
        KeyRing.of({7: "not a key"})
    (path := tmp_path / "rsa").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    with pytest.raises(TacitError, match="ECDSA or Ed25519"):
        KeySigner.of(path)


def test_masks_of_two_rounds_are_not_correlated() -> None:
    one, other = (primitives.mask(primitives.self_key(bytes(32), bytes([n]) * 32, 1), 20_000) for n in (1, 2))
    assert abs(np.corrcoef(one.astype(float), other.astype(float))[0, 1]) < 0.03
