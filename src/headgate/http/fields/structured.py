"""Lists and Dictionaries of RFC 9651, as far as the RateLimit fields need them.

The parser only distinguishes an Integer from any other value. A field that breaks the grammar is None as a whole,
as the RFC requires (section 4.2); members that are Inner Lists are not part of these fields and break them, too.
A Byte Sequence may have any pad bits.
"""

from __future__ import annotations

import re

Parameters = dict[str, int | str]
"""By name: an Integer as int, any other value as it was written."""

_STRING = r'"(?:[ !#-\[\]-~]|\\["\\])*"'
_TOKEN = r"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*"
_NUMBER = r"-?[0-9]{1,12}\.[0-9]{1,3}|-?[0-9]{1,15}"
_OTHER = r":[A-Za-z0-9+/=]*:|\?[01]|@-?[0-9]{1,15}|%\"(?:[ !#-$&-~]|%[0-9a-f]{2})*\""
_ITEM = rf"(?:{_STRING}|{_TOKEN}|{_NUMBER}|{_OTHER})"
_KEY = r"[a-z*][a-z0-9_\-.*]*"
_PARAMETER = rf";[ ]*({_KEY})(?:=({_ITEM}))?"
_PARAMETERS = rf"((?:;[ ]*{_KEY}(?:={_ITEM})?)*)"

_a_parameter = re.compile(_PARAMETER)
_a_list_member = re.compile(rf"({_ITEM}){_PARAMETERS}")
_a_dictionary_member = re.compile(rf"({_KEY})(?:=({_ITEM}))?{_PARAMETERS}")
_a_comma = re.compile(r"[ \t]*,[ \t]*")
_an_end = re.compile(r"[ \t]*\Z")
_an_integer = re.compile(r"-?[0-9]{1,15}")


def parse_list(text: str) -> list[tuple[str, Parameters]] | None:
    """Return the members of a List, each a name (a String or a Token) with its parameters; None for any other text."""
    members = _members(_a_list_member, text)
    if members is None:
        return None
    return [(_name(member[1]), _parameters(member[2])) for member in members]


def parse_dictionary(text: str) -> Parameters | None:
    """Return the members of a Dictionary without their parameters; None for any other text."""
    members = _members(_a_dictionary_member, text)
    if members is None:
        return None
    return {member[1]: _value(member[2]) for member in members}


def _members(form: re.Pattern[str], text: str) -> list[re.Match[str]] | None:
    text = text.strip(" ")
    members: list[re.Match[str]] = []
    position = 0
    while position < len(text):
        member = form.match(text, position)
        if member is None:
            return None
        members.append(member)
        position = member.end()
        if _an_end.match(text, position):
            break
        comma = _a_comma.match(text, position)
        if comma is None or comma.end() == len(text):
            return None
        position = comma.end()
    return members


def _parameters(text: str) -> Parameters:
    return {match[1]: _value(match[2]) for match in _a_parameter.finditer(text)}


def _value(text: str | None) -> int | str:
    if text is None:
        return "?1"  # a bare key is Boolean true
    return int(text) if _an_integer.fullmatch(text) else text


def _name(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
