"""Turns values into parts of a key: of bounded length, secrets as digests, equal for all spellings of one value."""

from __future__ import annotations

from base64 import b64decode, urlsafe_b64encode
from contextlib import suppress
from hashlib import blake2b

from headgate.policy.sent_values import sent_text

LONGEST_VALUE = 256
"""The most characters of a value that is itself a part; a longer value is replaced by its digest."""

BEGIN_TOKENS = ("eyJ", ".eJ")
"""The beginnings of base64 of a JSON object, and of a compressed one in itsdangerous, which makes Flask's sessions."""

CREDENTIALS = ("authorization", "proxy-authorization")
"""Headers whose values are a scheme and credentials, and entries that contain such a header."""

_MOST_HOSTS = 16
_STANDARD_BASE64 = str.maketrans("-_", "+/")
_MOST_TOKEN_PARTS = 8


def host_of(host: str) -> str:
    """A host without its port, in lower case."""
    name = sent_text(host).lower()
    if name.startswith("["):
        return name.partition("]")[0] + "]"
    return name.partition(":")[0].rstrip(".")


def hosts_of(host: str) -> list[str]:
    """The hosts that a request names, each once, without ports and in lower case; several if it sends a list.

    `user@host` gives two: in a URL that contains it, the part after the `@` is the host (RFC 3986, 3.2).
    """
    if "," not in host and "@" not in host:
        return [host_of(host)]
    names: list[str] = []
    for name in host.split(",", _MOST_HOSTS):
        names.append(host_of(name))
        if "@" in name:
            names.append(host_of(name.rpartition("@")[2]))
    return list(dict.fromkeys(names))


def one_spelling(credentials: str) -> str:
    """Credentials in one spelling: `Bearer x`, `bearer x` and `BEARER  x` are the same (RFC 9110, 11.1).

    Credentials of the scheme Basic have many equal spellings, too.
    """
    words = credentials.split(None, 1)
    if len(words) < 2:
        return credentials
    scheme, token = words[0].lower(), words[1]
    return f"{scheme} {_plain_base64(token) if scheme == 'basic' else plain_token(token)}"


def plain_token(value: str) -> str:
    """A token of base64 parts, such as a JWT, in one spelling; any other value unchanged.

    Most decoders ignore characters outside base64 and the last bits of a part, so a signature has many spellings.
    """
    if not value.startswith(BEGIN_TOKENS):
        return value
    return ".".join(map(_plain_base64, value.split(".", _MOST_TOKEN_PARTS)))


def _plain_base64(text: str) -> str:
    """Base64 in its canonical spelling, without padding; text that is no base64 unchanged."""
    with suppress(ValueError):
        return urlsafe_b64encode(b64decode(text.translate(_STANDARD_BASE64) + "==")).decode().rstrip("=")
    return text


def is_list(value: str) -> bool:
    """Whether a secret with a comma is a list of different values, joined from several lines on the way."""
    return len(set(map(str.strip, value.split(",")))) > 1


def bounded(value: str) -> str:
    """A value as a part of a key; a long value, or one that is no valid text, is replaced by its digest."""
    if len(value) <= LONGEST_VALUE and (value.isascii() or _is_text(value)):
        return value
    return "digest-" + digest(value)


def digest(value: str) -> str:
    """128 bits in hexadecimal, the same in every process; the value cannot be read back from it."""
    return blake2b(value.encode("utf-8", "surrogatepass"), digest_size=16, person=b"headgate").hexdigest()


def _is_text(value: str) -> bool:
    try:
        return len(value.encode()) <= 4 * LONGEST_VALUE
    except UnicodeEncodeError:
        return False
