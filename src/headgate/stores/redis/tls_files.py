"""Certificates and keys for TLS, read from files; files that can never be used are errors of the configuration.

redis-py reads all files again for each connection, which blocks all threads and event loops for some 20 ms: many
threads that each need a connection would miss their deadlines. Here connections share one context.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headgate.errors import ConfigError

_AUTHORITY_OPTIONS = ("ssl_ca_certs", "ssl_ca_path", "ssl_ca_data")
_KEY_PAIR = ("ssl_certfile", "ssl_keyfile")
_VERIFY_MODES = {"none": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}


class TlsFileError(OSError):
    """A file that is needed to connect cannot be read; the text names the options that may have named it."""


class TlsContext:
    """The context of all connections to a target; it is made again when a file has changed."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = dict(options)
        paths = ssl.get_default_verify_paths()
        named = [options.get(name) for name in ("ssl_ca_certs", "ssl_ca_path", *_KEY_PAIR)]
        self._files = [file for file in (*named, paths.cafile, paths.capath) if file]
        self._cached: tuple[list[object], ssl.SSLContext] | None = None

    def get(self) -> ssl.SSLContext:
        """The context; raises TlsFileError where a file cannot be read."""
        versions, cached = list(map(_version_of, self._files)), self._cached
        if cached is None or cached[0] != versions:
            cached = self._cached = versions, self._make()
        return cached[1]

    def _make(self) -> ssl.SSLContext:
        option = self._options.get
        context = ssl.create_default_context()
        required = _VERIFY_MODES[option("ssl_cert_reqs", "required")]
        context.check_hostname = required != ssl.CERT_NONE and option("ssl_check_hostname", True)
        context.verify_mode = required
        if (version := option("ssl_min_version")) is not None:
            context.minimum_version = ssl.TLSVersion(version)
        if ciphers := option("ssl_ciphers"):
            context.set_ciphers(ciphers)
        certificate, key = map(option, _KEY_PAIR)
        if certificate is not None:
            password = option("ssl_password")
            self._load(_KEY_PAIR, context.load_cert_chain, certificate, key, lambda: password or "")
        authorities = list(map(option, _AUTHORITY_OPTIONS))
        if any(authorities):
            self._load(_AUTHORITY_OPTIONS, context.load_verify_locations, *authorities)
        return context

    def _load(self, names: Sequence[str], load: Callable[..., object], *files: Any) -> None:
        try:
            load(*files)
        except (OSError, ValueError) as error:
            which = " or ".join(name for name in names if name in self._options)
            reason = "it cannot be read as PEM" if isinstance(error, ssl.SSLError | ValueError) else error.strerror
            raise TlsFileError(f"{which}: {reason}") from error


def check_tls(options: Mapping[str, Any], form: str) -> None:
    """Raise ConfigError for options that can never work. A missing file is no error here: it may exist later.

    Such options are unknown ciphers, authorities that are not PEM text, a key without a certificate or for another
    certificate, and a key that the password does not decrypt.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ciphers := options.get("ssl_ciphers"):
        try:
            context.set_ciphers(ciphers)
        except ssl.SSLError as error:
            raise ConfigError(f"{form}: ssl_ciphers names no cipher that OpenSSL has here") from error
    if (authorities := options.get("ssl_ca_data")) is not None:
        try:
            context.load_verify_locations(cadata=authorities)
        except (ssl.SSLError, ValueError) as error:
            expected = "ssl_ca_data is the text of certificates as PEM, with %0A for each end of a line"
            raise ConfigError(f"{form}: {expected}") from error
    certificate, key, password = (options.get(name) for name in (*_KEY_PAIR, "ssl_password"))
    if certificate is None:
        if key is not None:
            raise ConfigError(f"{form}: ssl_keyfile is the key of a certificate: ssl_certfile is missing")
        return
    try:
        # With an empty password an encrypted key is an error; without one OpenSSL would ask the terminal.
        context.load_cert_chain(certificate, key, lambda: password or "")
    except ssl.SSLError as error:
        raise ConfigError(f"{form}: {_reason(error, key, password)}") from error
    except (OSError, ValueError):
        return


def _version_of(file: str) -> object:
    """A value that changes when a file does; None where it cannot be read."""
    try:
        stat = Path(file).stat()
    except (OSError, ValueError):
        return None
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def _reason(error: ssl.SSLError, key: str | None, password: str | None) -> str:
    file = "ssl_certfile" if key is None else "ssl_keyfile"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {file} is not that of the certificate"
    if password is None:
        return f"{file} has no key that can be read: it is no PEM file, or needs ssl_password"
    return f"{file} has no key that can be read: ssl_password is wrong, or it is no PEM file"
