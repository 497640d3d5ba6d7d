"""Certificates and keys of a federation: a certificate authority of its own, the server's certificate, node keys."""
# pyright: reportMissingImports=false

import base64
import hashlib
import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tacit.core.files import write_atomically
from tacit.errors import TacitError

_LIFE = timedelta(days=825)
_CURVE = ec.SECP384R1()


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """`ca.crt`, `server.pem` and `server.key`, unless they are there. The authority's own key is not kept."""
    if (folder / "server.key").exists():
        return
    authority, server = ec.generate_private_key(_CURVE), ec.generate_private_key(_CURVE)
    ca = _certificate("Tacit federation", authority, authority, None, [])
    leaf = _certificate(hosts[0], server, authority, ca, hosts)
    write_atomically(folder / "ca.crt", _pem(ca))
    write_atomically(folder / "server.pem", _pem(leaf) + _pem(ca))
    _secret(folder / "server.key", _private(server))


def fingerprint(certificate: bytes) -> str:
    return hashlib.sha256(
        x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
    ).hexdigest()


def key_fingerprint(public_key: str) -> str:
    """Of a public key in OpenSSH's form, as `ssh-keygen -l` shows it: what people read to each other."""
    try:
        blob = base64.b64decode(public_key.split()[1], validate=True)
    except (IndexError, ValueError):
        raise TacitError(f"'{public_key[:40]}' is no public key in OpenSSH's form") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def make_node_key(path: Path) -> bytes:
    """A node's private key at `path`, made if it is not there; its public key in OpenSSH's form."""
    if not path.exists():
        _secret(path, _openssh(ec.generate_private_key(_CURVE)))
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def make_secret(path: Path) -> None:
    """32 random bytes as text, unless the file is there."""
    if not path.exists():
        _secret(path, os.urandom(32).hex().encode())


def _certificate(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    signer: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    hosts: Sequence[str],
) -> x509.Certificate:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _LIFE)
        .add_extension(
            x509.BasicConstraints(ca=issuer is None, path_length=0 if issuer is None else None), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )
    if issuer is None:
        builder = builder.add_extension(_usage(signing=True), critical=True)
    else:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False
        )
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return builder.sign(signer, hashes.SHA384())


def _usage(signing: bool) -> x509.KeyUsage:
    return x509.KeyUsage(not signing, False, False, False, False, signing, signing, False, False)


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _openssh(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )


def _secret(path: Path, data: bytes) -> None:
    write_atomically(path, data)
    os.chmod(path, 0o600)


def sign(path: Path, message: bytes) -> str:
    key = serialization.load_ssh_private_key(path.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key.sign(message, ec.ECDSA(hashes.SHA384())).hex()


def signed_by(public_key: str, message: bytes, signature: str) -> bool:
    try:
        key = serialization.load_ssh_public_key(public_key.encode())
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(bytes.fromhex(signature), message, ec.ECDSA(hashes.SHA384()))
    except (InvalidSignature, ValueError, AssertionError, UnsupportedAlgorithm):
        return False
    return True
