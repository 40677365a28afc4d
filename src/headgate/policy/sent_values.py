"""The value that applications read from a header, and all values that some may read from a cookie or a parameter.

Servers and frameworks parse cookies and query parameters in different ways, and so get different values.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from urllib.parse import unquote, unquote_plus

from headgate.policy.subject import REPEATED, Repeated

_LONGEST_COOKIES = 1 << 14
_MOST_COOKIES = 512
_MOST_FIELDS = 1000
"""Beyond these bounds a cookie or a parameter counts as repeated, so that padding cannot hide a value."""

_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(?:([0-3][0-7]{2})|(.))", re.DOTALL)
_UNDERSCORES = str.maketrans(". [", "___")


def sent_text(value: str) -> str:
    """The value of a header as text, without white space around it.

    Most servers decode all bytes as Latin-1 (PEP 3333); programs that describe a request pass the characters
    themselves. Bytes that are valid UTF-8 are decoded as such, all others as Latin-1.
    """
    if not value.isascii():
        with suppress(UnicodeError):
            value = value.encode("latin-1").decode()
    return value.strip()


def cookie_values(sent: str, name: str) -> Iterator[str]:
    """Yield all values that some application may read from a cookie, decoded.

    Most split at ";" alone; `http.cookies` also at white space, parsers of RFC 2109 at commas. Some decode
    names (PHP, Rack), more decode values (Express, Litestar), some ignore the case of names (ASP.NET).
    """
    if len(sent) > _LONGEST_COOKIES or sent.count(";") > _MOST_COOKIES:
        yield REPEATED
        return
    plain, hidden = _plain_name(name), _hidden(name)
    for line in sent.values if type(sent) is Repeated else (sent,):
        for pair in line.split(";"):
            sent_name, separator, value = pair.partition("=")
            if separator and (sent_name.strip() == name or _plain_name(sent_name) == plain):
                yield from _cookie_spellings(value)
            for hidden_match in hidden.finditer(pair):
                yield from _cookie_spellings(hidden_match[1])


def _cookie_spellings(text: str) -> Iterator[str]:
    """Yield what applications may read of a cookie's value: all of it, or only the text before white space."""
    text = sent_text(text)
    quoted = _QUOTED.match(text)
    if quoted is not None:
        yield _decoded(_ESCAPED.sub(_character, quoted[1]) if "\\" in quoted[1] else quoted[1])
        if quoted.end() == len(text):
            return
    if text.startswith('"') and '"' in text[quoted.end() if quoted else 0 :]:  # parsers disagree on where it ends
        yield REPEATED
        return
    yield _decoded(text)
    first = text.split(None, 1)[:1]
    if first and first[0] != text:
        yield _decoded(first[0])


def _decoded(text: str) -> str:
    return unquote(text, errors="replace") if "%" in text else text


def _character(escaped: re.Match[str]) -> str:
    return chr(int(escaped[1], 8)) if escaped[1] else escaped[2]


@lru_cache(256)
def _hidden(name: str) -> re.Pattern[str]:
    """A pattern for cookies that only some applications read, as in `a=b name=value`."""
    literal = re.escape(name)
    return re.compile(rf"{literal}(?<=[,\s]{literal})\s*=([^;]*)")


def query_values(query: str, name: str) -> Iterator[str]:
    """Yield all values that some application may read from a query parameter, decoded.

    A server may cut the query off at "#", an application may read ";" as "&".
    """
    spellings = [query]
    if "#" in query:
        spellings.append(query.partition("#")[0])
    spellings += [spelling.replace(";", "&") for spelling in spellings if ";" in spelling]
    plain = _plain_name(name)
    for spelling in spellings:
        if spelling.count("&") >= _MOST_FIELDS:
            yield REPEATED
            return
        for field in spelling.split("&"):
            sent_name, _, value = field.partition("=")
            if sent_name == name or _plain_name(sent_name) == plain:
                yield unquote_plus(value, errors="replace")


def _plain_name(name: str) -> str:
    """A cookie's or a parameter's name, equal for all spellings that some application reads as the same name.

    PHP reads ".", " " and "[" as "_" and ends a name at a NUL; others ignore case.
    """
    if "%" in name or "+" in name:
        name = unquote_plus(name, errors="replace")
    return name.partition("\0")[0].strip().translate(_UNDERSCORES).lower()
