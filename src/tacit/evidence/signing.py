# pyright: reportMissingImports=false
"""Signatures on certificates: Ed25519, or the key that a member of a federation signs with anyway.

What is signed is one text for one content: JSON with sorted keys and no blanks, without the signatures themselves.
Needs the package `cryptography` (extra `evidence`).
"""

import base64
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tacit.core.files import storage
from tacit.errors import TacitError

SIGNATURES: Final = ("signature", "countersignatures")


def canonical(content: Mapping[str, Any]) -> bytes:
    """The bytes that stand for a certificate: all of it but its signatures."""
    plain = {name: value for name, value in content.items() if name not in SIGNATURES}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def digest(content: Mapping[str, Any]) -> str:
    """SHA-256 of a certificate: what members countersign."""
    return hashlib.sha256(canonical(content)).hexdigest()


def make_key(path: Path) -> Path:
    """An Ed25519 key in OpenSSH's form, for its owner alone, unless there is one."""
    if path.exists():
        return path
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    private = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    with storage(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(private)
    return path


def sign(message: bytes, path: Path) -> dict[str, str]:
    """A signature by the private key in a file, with the public key that belongs to it."""
    _need_cryptography()
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    from tacit.secagg.identity import KeySigner

    try:
        signer = KeySigner.of(path)
    except (OSError, ValueError) as error:
        raise TacitError(f"{path} holds no private key in OpenSSH's form ({error}): ssh-keygen -t ed25519") from error
    public = signer.key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return {"key": public, "value": base64.b64encode(signer.sign(message)).decode()}


def signed(message: bytes, signature: Mapping[str, str]) -> bool:
    """Whether the key that a signature names made it over this message."""
    _need_cryptography()
    from tacit.secagg.identity import KeyRing

    try:
        value = base64.b64decode(signature["value"], validate=True)
        return KeyRing.of({0: signature["key"]}).signed(0, message, value)
    except (KeyError, ValueError, TypeError, AttributeError, TacitError):
        return False


def fingerprint(key: str) -> str:
    """Of a public key in OpenSSH's form, as `ssh-keygen -l` shows it: what people read to each other."""
    try:
        blob = base64.b64decode(key.split()[1], validate=True)
    except (IndexError, ValueError):
        raise TacitError(f"'{key[:40]}' is no public key in OpenSSH's form") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def expected_fingerprint(text: str) -> str:
    """What a user gives to say whose signature it must be: a fingerprint, a public key, or a file that holds one."""
    if text.startswith("SHA256:"):
        return text
    return fingerprint(text if text.startswith(("ssh-", "ecdsa-")) else Path(text).read_text())


def _need_cryptography() -> None:
    try:
        import cryptography  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise TacitError("signatures need the package cryptography: pip install 'tacit-fl[evidence]'") from None
