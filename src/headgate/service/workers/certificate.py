"""The certificate of a front door: its files, read when the service starts and at each reload.

A file that cannot be used is refused, and the certificate in force stays. No message contains a byte of a key.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from headgate import core
from headgate.clock import SYSTEM_CLOCK, US_PER_SECOND
from headgate.errors import ConfigError
from headgate.supervisor.last_good import LastGood

log = logging.getLogger("headgate")

_OPTIONS = {"certificate": "--tls-certificate", "key": "--tls-key", "client_ca": "--tls-client-ca"}
_TIME = "%Y%m%d%H%M%SZ"


class CertificateTexts(NamedTuple):
    """The contents of the files, in PEM."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None

    def packed(self) -> bytes:
        return json.dumps([None if text is None else text.decode("latin-1") for text in self]).encode()

    @classmethod
    def unpacked(cls, packed: bytes) -> CertificateTexts:
        certificate, key, client_ca = json.loads(packed)
        ca = None if client_ca is None else client_ca.encode("latin-1")
        return cls(certificate.encode("latin-1"), key.encode("latin-1"), ca)


class CertificateFiles(NamedTuple):
    """The paths of the files."""

    certificate: Path
    """The certificate of the server, followed by those that lead to its authority."""

    key: Path
    client_ca: Path | None = None
    """The authorities of which clients need a certificate; None admits clients without one."""

    def read(self) -> CertificateTexts:
        """Read the files; raises ConfigError for a file that cannot be read."""
        client_ca = None if self.client_ca is None else _read("client_ca", self.client_ca)
        return CertificateTexts(_read("certificate", self.certificate), _read("key", self.key), client_ca)

    def native(self, texts: CertificateTexts) -> Any:
        """The native `Tls` of these texts; raises ConfigError that names the option and the file that is wrong."""
        assert core.native is not None
        try:
            return core.native.Tls(*texts)
        except ValueError as error:
            part, why = error.args
            raise ConfigError(f"{_OPTIONS[part]}: {getattr(self, part)} {why}") from None  # its cause may reveal more


class ServerCertificate:
    """The certificate of a service: one object for all of its processes, which are forked after it is made."""

    def __init__(self, files: CertificateFiles) -> None:
        """Raises ConfigError for files that cannot be used."""
        self.files = files
        self._in_force = files.read()
        self._warn(files.native(self._in_force))
        self._last_good = LastGood(self._in_force.packed())
        self._logged = ""

    def load(self) -> Any:
        """The native `Tls` for a door that opens: of the files or, where these are broken, of the last good ones."""
        try:
            texts = self.files.read()
            native = self.files.native(texts)
        except ConfigError as error:
            self._refuse(error)
            packed = self._last_good.text()
            texts = self._in_force if packed is None else CertificateTexts.unpacked(packed)
            native = self.files.native(texts)
        self._in_force = texts
        return native

    async def renew(self, put_in_force: Callable[[Any], object]) -> None:
        """Put the native `Tls` of changed files in force, if they can be used; log the result."""
        try:
            texts = await asyncio.to_thread(self.files.read)
            if texts == self._in_force:
                if self._logged:
                    self._logged = ""
                    log.info("the files of the certificate are again those in force")
                return
            native = await asyncio.to_thread(self.files.native, texts)
        except ConfigError as error:
            self._refuse(error)
            return
        put_in_force(native)
        self._in_force, self._logged = texts, ""
        self._last_good.keep(texts.packed())
        until = "" if native.validity is None else f"; it is valid until {_utc_text(native.validity[1])}"
        log.info("the changed certificate is in force%s", until)
        self._warn(native)

    def _refuse(self, error: ConfigError) -> None:
        """Log an error once."""
        if str(error) != self._logged:
            self._logged = str(error)
            log.error("the changed certificate is refused, the old one stays: %s", error)

    def _warn(self, native: Any) -> None:
        """Log that clients will refuse a certificate that is expired or not yet valid."""
        if native.validity is None:
            return
        valid_from, valid_until = native.validity
        now = datetime.fromtimestamp(SYSTEM_CLOCK.now_us() / US_PER_SECOND, UTC).strftime(_TIME)
        subject = f"--tls-certificate: the certificate in {self.files.certificate}"
        if now > valid_until:
            log.warning("%s has expired on %s: clients will refuse it", subject, _utc_text(valid_until))
        elif now < valid_from:
            log.warning("%s is not valid before %s: clients will refuse it", subject, _utc_text(valid_from))


def _read(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{_OPTIONS[name]}: cannot read {file}: {error.strerror}; it must be a file in PEM that this user may read"
        ) from error


def _utc_text(time: str) -> str:
    return f"{datetime.strptime(time, _TIME):%Y-%m-%d %H:%M:%S} UTC"
