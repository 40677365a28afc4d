"""A certificate and its key that a client shows to a server: what can never be used is told before it is."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

from headgate.errors import ConfigError


def check_tls_files(options: Mapping[str, Any], form: str) -> None:
    """Raise ConfigError for a key without a certificate, one that is not its, or one that the password does not open.

    A file that is not there is left to the connection: it may come later.
    """
    certificate, key, password = (options.get(name) for name in ("ssl_certfile", "ssl_keyfile", "ssl_password"))
    if certificate is None:
        if key is not None:
            raise ConfigError(f"{form}: ssl_keyfile is the key of a certificate: ssl_certfile is missing")
        return
    try:
        # With an empty password an encrypted key is an error; without one OpenSSL would ask the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, lambda: password or "")
    except ssl.SSLError as error:
        raise ConfigError(f"{form}: {_reason(error, key, password)}") from error
    except (OSError, ValueError):
        return


def _reason(error: ssl.SSLError, key: str | None, password: str | None) -> str:
    file = "ssl_certfile" if key is None else "ssl_keyfile"
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"the key in {file} is not that of the certificate"
    if password is None:
        return f"{file} has no key that can be read: it is no PEM file, or needs ssl_password"
    return f"{file} has no key that can be read: ssl_password is wrong, or it is no PEM file"
