"""Mutual authentication of the gateway and its replicas, with certificates of the gateway's own authority.

Any user of a node can bind a port there, at the latest when the replica that had it has died. So a replica's address
proves nothing: the gateway connects with TLS and sends nothing until the other end has shown the certificate of that
very replica. In the same way the replica accepts requests from the gateway alone.

X.509 as in RFC 5280: replicas' certificates are valid for servers only and the gateway's for clients only, so neither
can stand in for the other.
"""

from __future__ import annotations

import datetime
import os
import shutil
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidKey, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from inference_gateway.dataplane.settings import Trust, client_context
from inference_gateway.errors import GatewayError

_AUTHORITY = "authority.pem"
_KEY = "authority.key"
_GATEWAY = "gateway.pem"
_LIFE = datetime.timedelta(days=20 * 365)
_REPLICA_LIFE = datetime.timedelta(days=2 * 365)
_CLOCKS = datetime.timedelta(days=1)
"""Tolerated difference between the clocks of nodes."""


@dataclass(frozen=True, slots=True)
class Authority:
    """The certificate authority of one gateway."""

    trust: Trust
    _certificate: x509.Certificate
    _key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def of(cls, directory: Path) -> Authority:
        """The authority in this directory; created at first use, in files that only this user may read.

        Raises `GatewayError` if its files cannot be read or written, or are not those of an authority.
        """
        try:
            if not directory.exists():
                _make(directory)
            texts = {name: (directory / name).read_text(encoding="ascii") for name in (_AUTHORITY, _KEY, _GATEWAY)}
        except OSError as error:
            raise GatewayError(f"{error.filename or directory}: {error.strerror}") from error
        try:
            certificate = x509.load_pem_x509_certificate(texts[_AUTHORITY].encode())
            key = serialization.load_pem_private_key(texts[_KEY].encode(), None)
        except (ValueError, TypeError, InvalidKey, UnsupportedAlgorithm) as error:
            raise GatewayError(f"{directory}: not the gateway's authority: {error}") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise GatewayError(f"{directory / _KEY}: not the gateway's authority: not an elliptic-curve key")
        return cls(Trust(texts[_AUTHORITY], texts[_GATEWAY]), certificate, key)

    def replica(self, name: str) -> str:
        """A new certificate and key for the replica of that name, as PEM."""
        return _issued(name, ExtendedKeyUsageOID.SERVER_AUTH, self._certificate.subject, self._key, _REPLICA_LIFE)


def gateway_context(directory: Path) -> ssl.SSLContext:
    """The TLS context with which the gateway connects to replicas. Raises `OSError`."""
    return client_context(directory / _AUTHORITY, directory / _GATEWAY)


def _make(directory: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name("explsched gateway")
    signed = (
        _builder(subject, subject, key, _LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    texts = {
        _AUTHORITY: signed.public_bytes(serialization.Encoding.PEM).decode(),
        _KEY: _private(key),
        _GATEWAY: _issued("gateway", ExtendedKeyUsageOID.CLIENT_AUTH, subject, key, _LIFE),
    }
    new = directory.with_name(f"{directory.name}.{os.getpid()}.new")
    new.mkdir(mode=0o700)
    try:
        for name, text in texts.items():
            handle = os.open(new / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(text)
                file.flush()
                os.fsync(handle)
        with suppress(FileExistsError):
            _rename(new, directory)  # or another process was first
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _rename(new: Path, directory: Path) -> None:
    """Rename a directory. Raises `FileExistsError` if the name is in use, which Linux reports as `not empty`."""
    try:
        new.rename(directory)
    except OSError as error:
        if directory.exists():
            raise FileExistsError(directory) from error
        raise


def _issued(
    name: str,
    usage: x509.ObjectIdentifier,
    issuer: x509.Name,
    issuer_key: ec.EllipticCurvePrivateKey,
    life: datetime.timedelta,
) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    signed = (
        _builder(_name(name), issuer, key, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return signed.public_bytes(serialization.Encoding.PEM).decode() + _private(key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, life: datetime.timedelta
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS)
        .not_valid_after(now + life)
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _private(key: ec.EllipticCurvePrivateKey) -> str:
    how = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return key.private_bytes(*how).decode()
