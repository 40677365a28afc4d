"""The certificate of a front door: its files, read when the service begins and whenever it is told to read them again.

A file that cannot be used is refused, and what is in force stays. No message holds a byte of a key.
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
    """What the files hold, in PEM."""

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
    """Where they are."""

    certificate: Path
    """The certificate of the server, and behind it those that lead to its authority."""

    key: Path
    client_ca: Path | None = None
    """The authorities whose certificates clients must have; None lets in clients without one."""

    def read(self) -> CertificateTexts:
        """Raises ConfigError for a file that cannot be read."""
        client_ca = None if self.client_ca is None else _read("client_ca", self.client_ca)
        return CertificateTexts(_read("certificate", self.certificate), _read("key", self.key), client_ca)

    def native(self, texts: CertificateTexts) -> Any:
        """The native `Tls` of these texts; raises ConfigError that names the option and the file that is wrong."""
        assert core.native is not None
        try:
            return core.native.Tls(*texts)
        except ValueError as error:
            part, why = error.args
            raise ConfigError(f"{_OPTIONS[part]}: {getattr(self, part)} {why}") from None  # its cause may tell more


class ServerCertificate:
    """What a service proves itself with: one for all of its processes, forked after it was made."""

    def __init__(self, files: CertificateFiles) -> None:
        """Raises ConfigError for what cannot be used."""
        self.files = files
        self._in_force = files.read()
        self._warn(files.native(self._in_force))
        self._good = LastGood(self._in_force.packed())
        self._logged = ""

    def begin(self) -> Any:
        """The native `Tls` of a door that opens now: of the files or, where these are broken, of what was last good."""
        try:
            texts = self.files.read()
            native = self.files.native(texts)
        except ConfigError as error:
            self._refuse(error)
            good = self._good.text()
            texts = self._in_force if good is None else CertificateTexts.unpacked(good)
            native = self.files.native(texts)
        self._in_force = texts
        return native

    async def renew(self, put_in_force: Callable[[Any], object]) -> None:
        """Put the native `Tls` of changed files in force, if they can be used; the log says which it was."""
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
        self._good.keep(texts.packed())
        until = "" if native.validity is None else f"; it is valid until {_moment(native.validity[1])}"
        log.info("the changed certificate is in force%s", until)
        self._warn(native)

    def _refuse(self, error: ConfigError) -> None:
        """Log what is wrong, once."""
        if str(error) != self._logged:
            self._logged = str(error)
            log.error("the changed certificate is refused, the old one stays: %s", error)

    def _warn(self, native: Any) -> None:
        """Log that clients will refuse a certificate for its time."""
        if native.validity is None:
            return
        valid_from, valid_until = native.validity
        now = datetime.fromtimestamp(SYSTEM_CLOCK.now_us() / US_PER_SECOND, UTC).strftime(_TIME)
        told = f"--tls-certificate: the certificate in {self.files.certificate}"
        if now > valid_until:
            log.warning("%s has expired on %s: clients will refuse it", told, _moment(valid_until))
        elif now < valid_from:
            log.warning("%s is not valid before %s: clients will refuse it", told, _moment(valid_from))


def _read(name: str, file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{_OPTIONS[name]}: cannot read {file}: {error.strerror}; it must be a file in PEM that this user may read"
        ) from error


def _moment(time: str) -> str:
    return f"{datetime.strptime(time, _TIME):%Y-%m-%d %H:%M:%S} UTC"
