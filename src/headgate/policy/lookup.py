"""Finds the keys that an operator of a live system means by `user=u42`, or by the parts of a key as they are stored.

A name and a value stand for a request that carries this value, so they give the key that it was counted
under: a secret's digest, an address's network. Parts alone may be of any rule that counts by such parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import product
from typing import NamedTuple
from urllib.parse import urlencode

from headgate.errors import ConfigError
from headgate.policy.client_address import UNIX, parse_address
from headgate.policy.compiled import Policy, Rule
from headgate.policy.descriptor import Descriptor
from headgate.policy.entries import entries_of_text
from headgate.policy.extract import extractor_of
from headgate.policy.identity import (
    ANONYMOUS,
    EVERYONE,
    REPEATED_IDENTITY,
    AddressIdentity,
    CookieIdentity,
    EndpointIdentity,
    EntriesIdentity,
    EntryIdentity,
    FirstOf,
    HeaderIdentity,
    HostIdentity,
    Identity,
    MethodIdentity,
    Parts,
    QueryIdentity,
    leaves,
)
from headgate.policy.request import Request
from headgate.policy.subject import Subject

_NAMED = re.compile(r"([a-z][a-z0-9_.-]{0,63})=(.*)", re.DOTALL)
_DIGEST = re.compile("[0-9a-f]{32}")
_ANY_PATH = "/**"
_SENT_ONCE = ("ip", "endpoint", "method")
"""Built-in identities of which a request has at most one value."""


class RuleKey(NamedTuple):
    """A key of a rule. `guessed` if a part was read as the digest of a secret, and may be the secret itself."""

    rule: Rule
    parts: Parts
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The keys that match, and in `incomplete` those that lack values: (rule name, names of its other identities)."""

    keys: list[RuleKey] = field(default_factory=list)
    incomplete: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


def find_keys(policy: Policy, texts: Sequence[str], *, only: str | None = None) -> Found:
    """The keys that these texts stand for, in each rule that counts by them, or only in the rule named `only`.

    Raises ConfigError where the texts give no key, or no rule has this name; its message shows no text, since a text
    may be a secret.
    """
    rules = [rule for rule in policy.rules if only is None or rule.name == only]
    if not rules:
        names = [rule.name for rule in policy.rules]
        raise ConfigError(f"no rule is named {str(only)[:60]!r}{_hint(str(only), names)}")
    if not all(texts):
        raise ConfigError("a key, or a part of one, is not empty")
    values = _values(policy, texts)
    found = Found()
    for rule in rules:
        if values is None:
            found.keys.extend(_keys_of_parts(rule, tuple(texts)))
        else:
            _add_named(found, rule, values)
    if not found.keys:
        raise ConfigError(_why_none(rules, found))
    return found


def _values(policy: Policy, texts: Sequence[str]) -> dict[str, str] | None:
    """The value of each identity that the texts name; None where the texts are the parts of a key."""
    matches = [_NAMED.fullmatch(text) for text in texts]
    values: dict[str, str] = {}
    for match in matches:
        if match is None:
            if any(matches):
                raise ConfigError("write each KEY as NAME=VALUE, or none")
            continue
        name = match[1]
        identity = policy.identities.get(name)
        if identity is None:
            hint = _hint(name, list(policy.identities))
            raise ConfigError(f"a KEY with = in it is NAME=VALUE, and no identity has this name{hint}")
        if isinstance(identity, FirstOf):
            members = [member.name for member in identity.members]
            raise ConfigError(
                f"{name} is the first of {', '.join(members)}: name the one that a request had, as {members[0]}=VALUE"
            )
        if name in values:
            raise ConfigError(f"{name} is given twice")
        values[name] = match[2]
    return values or None


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known[:20])}"


def _add_named(found: Found, rule: Rule, values: Mapping[str, str]) -> None:
    """Add the keys of a rule for requests that carry these values; "" is the value of an identity that they lack."""
    choices: list[list[Parts]] = []
    lacking: list[str] = []
    used = False
    for identity in rule.key.members:
        parts = _parts_of(identity, values)
        if parts is not None:
            used = True
            if not parts and rule.key.missing == "refuse":
                return
            choices.append([parts or (ANONYMOUS, identity.name)])
        elif isinstance(identity, EndpointIdentity):
            choices.append([(template,) for template in rule.conditions.paths or (_ANY_PATH,)])
        else:
            lacking.append(identity.name)
    if used and lacking:
        found.incomplete.append((rule.name, tuple(lacking)))
    elif used:
        found.keys.extend(RuleKey(rule, tuple(part for parts in key for part in parts)) for key in product(*choices))


def _parts_of(identity: Identity, values: Mapping[str, str]) -> Parts | None:
    """The parts that an identity gives of these values; () where it is missing, None where they do not name it."""
    if not isinstance(identity, FirstOf):
        return _parts_of_value(identity, values[identity.name]) if identity.name in values else None
    members = [(member, _parts_of(member, values)) for member in identity.members]
    for member, parts in members:
        if parts:
            return (member.name, *parts)
    return None if any(parts is None for _, parts in members) else ()


def _parts_of_value(identity: Identity, value: str) -> Parts:
    """The parts that an identity gives of a request that carries this value; () if it treats the value as missing."""
    return extractor_of(identity)(_subject_with(identity, value)) or ()


def _subject_with(identity: Identity, value: str) -> Subject:
    match identity:
        case AddressIdentity():
            return Request(client_ip=value)
        case EndpointIdentity():
            return Request(endpoint=value)
        case HostIdentity():
            return Request(host=value)
        case MethodIdentity():
            return Request(value)
        case HeaderIdentity():
            return Request(headers={identity.header: value})
        case CookieIdentity():
            return Request(headers={"cookie": f"{identity.cookie}={value}"})
        case QueryIdentity():
            return Request(path=f"/?{urlencode({identity.parameter: value})}")
        case EntryIdentity():
            return Descriptor({identity.entry: value})
        case EntriesIdentity() if entries := entries_of_text(value):
            return Descriptor(entries)
        case _:  # the input of a function is not known
            return Request()


def _keys_of_parts(rule: Rule, texts: Parts) -> Iterator[RuleKey]:
    """The keys of a rule that have these parts."""
    if texts == EVERYONE or not rule.by:
        if texts == EVERYONE and not rule.by:
            yield RuleKey(rule, EVERYONE)
        return
    keys: list[tuple[Parts, Parts, bool]] = [((), texts, False)]
    for identity in rule.key.members:
        keys = [
            (parts + matched, rest, guessed or guess)
            for parts, remaining, guessed in keys
            for matched, rest, guess in _match_identity(identity, remaining)
        ]
    yield from (RuleKey(rule, parts, guessed) for parts, rest, guessed in keys if not rest)


def _match_identity(identity: Identity, texts: Parts) -> Iterator[tuple[Parts, Parts, bool]]:
    """Match the beginning of the texts with an identity; yield (its parts, the remaining texts, is it a guess)."""
    repeated = [(REPEATED_IDENTITY, leaf.name) for leaf in leaves(identity) if leaf.name not in _SENT_ONCE]
    if texts[:2] in ((ANONYMOUS, identity.name), *repeated):
        yield texts[:2], texts[2:], False
        return
    if not texts:
        return
    text, rest = texts[0], texts[1:]
    if isinstance(identity, FirstOf):
        for member in identity.members:
            if member.name == text:
                for matched, remaining, guess in _match_identity(member, rest):
                    yield (text, *matched), remaining, guess
        return
    if isinstance(identity, AddressIdentity) and text != UNIX and not parse_address(text.partition("/")[0]):
        return
    parts = _parts_of_value(identity, text)
    if parts:
        yield parts, rest, False
    if getattr(identity, "secret", False) and _DIGEST.fullmatch(text):
        yield (text,), rest, True


def _why_none(rules: Sequence[Rule], found: Found) -> str:
    if found.incomplete:
        name, lacking = found.incomplete[0]
        return missing_identities_message(name, lacking)
    ways = "; ".join(dict.fromkeys(f"{rule.name} by {_way(rule)}" for rule in rules))
    return f"no rule counts by such a key; they count: {ways}; write NAME=VALUE, as in {_example(rules)}"


def missing_identities_message(rule: str, names: Sequence[str]) -> str:
    """The message that the key of a rule is not known without the values of these identities."""
    return f"the rule {rule} counts by {' and '.join(names)} besides: name the value of that too, as NAME=VALUE"


def _way(rule: Rule) -> str:
    return " and ".join(map(_spelled, rule.key.members)) or "everyone together (the KEY everyone)"


def _spelled(identity: Identity) -> str:
    if not isinstance(identity, FirstOf):
        return identity.name
    return f"{identity.name} ({' or '.join(member.name for member in identity.members)})"


def _example(rules: Sequence[Rule]) -> str:
    first = next((member for rule in rules for member in rule.key.members), None)
    if first is None:
        return "everyone"
    name = first.members[0].name if isinstance(first, FirstOf) else first.name
    return f"{name}={'203.0.113.9' if name == 'ip' else 'VALUE'}"
