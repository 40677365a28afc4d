"""A store's URL, taken apart so that no message about it can show a secret.

A password may stand anywhere in a URL that is written wrongly, so a message about the form of one shows its
scheme alone. Nothing here raises an error of the standard library, whose text would show the rest.
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
_NO_TEXT = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


_LINES = ("ssl_ca_data",)
"""Options that have several lines."""


class StoreUrl(NamedTuple):
    """The parts of a URL, percent-encoded as they were but for the options."""

    scheme: str
    credentials: str
    """What stands before the @; a secret."""

    host: str
    path: str
    """With the / that it begins with, or nothing."""

    options: list[tuple[str, str]]


def split_url(url: str) -> StoreUrl:
    """The parts of a URL with "://" in it; raises ConfigError where it has another form."""
    scheme, _, rest = url.partition("://")
    shown = scheme_of(url) or "the store's URL"
    if (odd := _NO_TEXT.search(url)) is not None:
        raise ConfigError(f"{shown}: character {odd.start() + 1} is a control character or no text")
    body, _, query = rest.partition("?")
    if "#" in rest:
        raise ConfigError(f'{shown}: a "#" in a store\'s URL is written %23')
    if "@" in query:
        raise ConfigError(f'{shown}: an "@" stands after a "?": in a user or password, "?" is written %3F and "@" %40')
    host, slash, path = body.partition("/")
    credentials, _, host = host.rpartition("@")
    return StoreUrl(scheme.lower(), credentials, host, slash + path, _options(query, shown))


def scheme_of(url: str) -> str:
    """The scheme with "://" for a message; nothing where there is none, or it may be something else."""
    scheme, mark, _ = url.partition("://")
    return scheme.lower() + mark if mark and _SCHEME.fullmatch(scheme.lower()) else ""


def masked(url: str) -> str:
    """A URL of the plainest form without its user and password, of any other form its scheme; perhaps nothing."""
    match = _PLAIN.fullmatch(url)
    return scheme_of(url) if match is None else f"{match[1]}***@{match[2]}"


def check_options(options: Sequence[tuple[str, str]], known: Collection[str], whose: str) -> None:
    """Raise ConfigError for an option that is not known, or is given twice."""
    names = [name for name, _ in options]
    for number, name in enumerate(names, 1):
        if name not in known:
            # What is nothing like a name may be a part of a password.
            told = f'not "{name}"' if _NAME.fullmatch(name) else f'and option {number} after "?" is none of them'
            near = get_close_matches(name.lower(), known, n=1, cutoff=0.6)
            hint = f': did you mean "{near[0]}"?' if near else ""
            *most, last = known
            raise ConfigError(f"{whose} has the options {', '.join(most)} and {last}, {told}{hint}")
        if names.count(name) > 1:
            raise ConfigError(f'the store option "{name}" is given twice')


def _options(query: str, shown: str) -> list[tuple[str, str]]:
    options = []
    for number, part in enumerate(query.split("&") if query else (), 1):
        name, mark, value = part.partition("=")
        if not name or not mark:
            raise ConfigError(f'cannot read the options of {shown}: option {number} after "?" is not name=value')
        name, value = unquote_plus(name), unquote_plus(value)
        if _NO_TEXT.search(name + (value.replace("\r", "").replace("\n", "") if name in _LINES else value)):
            raise ConfigError(f'{shown}: option {number} after "?" has a control character in it')
        options.append((name, value))
    return options
