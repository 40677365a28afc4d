"""Certificates for tests: an authority made for one test, what it signs, and clients that know it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

LOOPBACK = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))])


class Pair(NamedTuple):
    """The files of a certificate and its key."""

    certificate: Path
    key: Path

    @property
    def options(self) -> tuple[str, ...]:
        return ("--tls-certificate", str(self.certificate), "--tls-key", str(self.key))

    def take(self, other: Pair) -> None:
        """Hold what another pair holds, each file replaced at once."""
        for own, new in zip(self, other, strict=True):
            copy = own.with_suffix(".new")
            copy.write_bytes(new.read_bytes())
            copy.replace(own)

    @property
    def serial_number(self) -> int:
        return x509.load_pem_x509_certificate(self.certificate.read_bytes()).serial_number


class Authority:
    """Signs certificates, whose files are in a folder."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        own = self._builder(self._name, self._key, days=(-1, 30))
        own = own.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        self.file = folder / f"{name}.pem"
        self.file.write_bytes(own.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))

    def sign(self, name: str, *, days: tuple[int, int] = (-1, 30), password: bytes | None = None) -> Pair:
        """A certificate for the loopback that is valid between these days from now, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        signed = self._builder(subject, key, days=days).add_extension(LOOPBACK, critical=False)
        pair = Pair(self.folder / f"{name}.pem", self.folder / f"{name}.key")
        pair.certificate.write_bytes(signed.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password)
        pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return pair

    def known(self, client: Pair | None = None) -> ssl.SSLContext:
        """What a client has that knows this authority, and perhaps a certificate of its own."""
        context = ssl.create_default_context(cafile=self.file)
        if client is not None:
            context.load_cert_chain(*client)
        return context

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, days: tuple[int, int]
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC)
        return x509.CertificateBuilder(
            issuer_name=self._name,
            subject_name=subject,
            public_key=key.public_key(),
            serial_number=x509.random_serial_number(),
            not_valid_before=now + timedelta(days=days[0]),
            not_valid_after=now + timedelta(days=days[1]),
        )
