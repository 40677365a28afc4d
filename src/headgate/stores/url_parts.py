"""Splits a store's URL in such a way that no message about it can show a secret.

A malformed URL may have a password anywhere, so a message about the form of one shows its scheme alone. Nothing here
raises an error of the standard library, whose text would show the rest.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from typing import NamedTuple
from urllib.parse import unquote_plus

from headgate.errors import ConfigError

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,20}", re.ASCII)
_PLAIN = re.compile(
    r"([a-z][a-z0-9+.-]{0,20}://)[^@/?#]*@([a-z0-9.-]{1,60}(?::[0-9]{1,5})?(?:/[a-z0-9_.-]{0,30})?)", re.ASCII
)
_NAME = re.compile(r"[a-z][a-z_]{0,30}", re.ASCII)
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


_MULTILINE = ("ssl_ca_data",)
"""Options whose values may have several lines."""


class StoreUrl(NamedTuple):
    """The parts of a URL, still percent-encoded except for the options."""

    scheme: str
    credentials: str
    """The part before the @; a secret."""

    host: str
    path: str
    """With its leading /, or empty."""

    options: list[tuple[str, str]]


def split_url(url: str) -> StoreUrl:
    """Split a URL with "://" in it; raises ConfigError for any other form."""
    scheme, _, rest = url.partition("://")
    shown = scheme_of(url) or "the store's URL"
    if (control := _CONTROL.search(url)) is not None:
        raise ConfigError(f"{shown}: character {control.start() + 1} is a control character or no text")
    body, _, query = rest.partition("?")
    if "#" in rest:
        raise ConfigError(f'{shown}: a "#" in a store\'s URL is written %23')
    if "@" in query:
        raise ConfigError(f'{shown}: an "@" stands after a "?": in a user or password, "?" is written %3F and "@" %40')
    host, slash, path = body.partition("/")
    credentials, _, host = host.rpartition("@")
    return StoreUrl(scheme.lower(), credentials, host, slash + path, _options(query, shown))


def scheme_of(url: str) -> str:
    """The scheme with "://" for a message; empty where the URL has none, or something else may stand there."""
    scheme, mark, _ = url.partition("://")
    return scheme.lower() + mark if mark and _SCHEME.fullmatch(scheme.lower()) else ""


def masked(url: str) -> str:
    """A URL of the simplest form without its user and password, of any other form its scheme, which may be empty."""
    match = _PLAIN.fullmatch(url)
    return scheme_of(url) if match is None else f"{match[1]}***@{match[2]}"


def check_options(options: Sequence[tuple[str, str]], known: Collection[str], whose: str) -> None:
    """Raise ConfigError for an unknown or repeated option; `whose` is the subject of the message."""
    names = [name for name, _ in options]
    for number, name in enumerate(names, 1):
        if name not in known:
            # Text that does not look like a name may be a part of a password.
            mismatch = f'not "{name}"' if _NAME.fullmatch(name) else f'and option {number} after "?" is none of them'
            near = get_close_matches(name.lower(), known, n=1, cutoff=0.6)
            hint = f': did you mean "{near[0]}"?' if near else ""
            *most, last = known
            raise ConfigError(f"{whose} has the options {', '.join(most)} and {last}, {mismatch}{hint}")
        if names.count(name) > 1:
            raise ConfigError(f'the store option "{name}" is given twice')


def _options(query: str, shown: str) -> list[tuple[str, str]]:
    options = []
    for number, part in enumerate(query.split("&") if query else (), 1):
        name, mark, value = part.partition("=")
        if not name or not mark:
            raise ConfigError(f'cannot read the options of {shown}: option {number} after "?" is not name=value')
        name, value = unquote_plus(name), unquote_plus(value)
        if _CONTROL.search(name + (value.replace("\r", "").replace("\n", "") if name in _MULTILINE else value)):
            raise ConfigError(f'{shown}: option {number} after "?" has a control character in it')
        options.append((name, value))
    return options
