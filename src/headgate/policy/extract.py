"""The parts of a key that identities give for a subject.

Identities are data; an `Extractor` is prepared from one, so that a request pays only for reading its own values.
A part is text of bounded length. A value that is marked secret is replaced by a digest before any other code
sees it. A missing identity is never a free pass: it is `None` here, and the rule decides what happens.
An identity that was sent several times, with different values, gives the same parts whatever the values are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, assert_never

from headgate.policy.client_address import AddressRules
from headgate.policy.compiled import ANY_TIER, Tiers
from headgate.policy.entries import extractor_of_entries
from headgate.policy.identity import (
    ANONYMOUS,
    EVERYONE,
    REPEATED_IDENTITY,
    AddressIdentity,
    AttributeIdentity,
    CallableIdentity,
    Combination,
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
    is_repeated,
)
from headgate.policy.key_parts import (
    BEGIN_TOKENS,
    CREDENTIALS,
    LONGEST_VALUE,
    bounded,
    digest,
    hosts_of,
    is_list,
    one_spelling,
    plain_token,
)
from headgate.policy.subject import REPEATED, Subject

Extractor = Callable[[Subject], Parts | None]
"""Gives the parts of a key from one identity; None where the subject lacks it."""

_ADDRESSES_CACHED = 65536


class KeyExtractor(NamedTuple):
    """The key of a rule: an extractor for each of its identities, and one for the whole key.

    Where all members give parts, the key is their concatenation. Otherwise `whole` replaces a missing identity, or
    gives None where the rule refuses instead.
    """

    members: tuple[Extractor, ...]
    whole: Extractor


class Extractors:
    """The extractors of one policy: equal identities share one extractor, and its cache."""

    def __init__(self) -> None:
        self._extractors: dict[tuple[Identity, str, bool], Extractor] = {}

    def of(self, identity: Identity, template: str = "", *, unrepeated: bool = False) -> Extractor:
        """The extractor of an identity. If `unrepeated`, it gives () for an identity that was sent several times.

        `template` is the endpoint of a request whose framework gave none.
        """
        name = (identity, template if isinstance(identity, EndpointIdentity) else "", unrepeated)
        extractor = self._extractors.get(name)
        if extractor is None:
            extractor = _unrepeated(self.of(identity, template)) if unrepeated else self._make(identity, template)
            self._extractors[name] = extractor
        return extractor

    def of_key(self, key: Combination, template: str) -> KeyExtractor:
        """The extractor of a rule's key, for requests whose path matched `template`."""
        unrepeated = key.repeated == "refuse"
        members = tuple(self.of(member, template, unrepeated=unrepeated) for member in key.members)
        if not members:
            return KeyExtractor((_everyone,), _everyone)
        return KeyExtractor(members, partial(_whole_key, key.names, members, key.missing == "refuse"))

    def of_tier(self, tiers: Tiers | None) -> Callable[[Subject], str]:
        """A function that gives the tier of a subject; `ANY_TIER` for a value that the map does not contain."""
        if tiers is None:
            return _any_tier
        extract, tier_names = self.of(tiers.source), tiers.map

        def tier_of(subject: Subject) -> str:
            parts = extract(subject)
            if parts is None or is_repeated(parts):
                return ANY_TIER
            return parts[-1] if tier_names is None else tier_names.get(parts[-1], ANY_TIER)

        return tier_of

    def _make(self, identity: Identity, template: str) -> Extractor:
        match identity:
            case HeaderIdentity():
                return _of_header(identity)
            case CookieIdentity():
                return _of_cookie(identity)
            case QueryIdentity():
                return _of_query(identity)
            case AddressIdentity():
                return _of_address(identity.rules)
            case MethodIdentity():
                return _of_method
            case HostIdentity():
                return _of_host
            case EndpointIdentity():
                return _of_endpoint(template)
            case AttributeIdentity():
                return _of_attribute(identity.name)
            case EntryIdentity() | EntriesIdentity():
                return extractor_of_entries(identity)
            case FirstOf():
                return _first_of([(member.name, self.of(member)) for member in identity.members])
            case CallableIdentity():
                return _of_callable(identity)
            case _:
                assert_never(identity)


def extractor_of(identity: Identity) -> Extractor:
    """The extractor of one identity by itself."""
    return Extractors().of(identity)


def _of_header(identity: HeaderIdentity) -> Extractor:
    """Extract a header. A secret has no comma: a value with one is a list, joined from several lines on the way."""
    name, repeated = identity.header, _repeated(identity.name)
    credentials = name in CREDENTIALS

    def secret_header(subject: Subject) -> Parts | None:
        value = subject.header(name)
        if not value:
            return None
        if value is REPEATED or ("," in value and is_list(value)):
            return repeated
        return (digest(one_spelling(value) if credentials else plain_token(value)),)

    def header(subject: Subject) -> Parts | None:
        value = subject.header(name)
        if not value:
            return None
        if value is REPEATED:
            return repeated
        if credentials:
            value = one_spelling(value)
        elif value.startswith(BEGIN_TOKENS):
            value = plain_token(value)
        return (value,) if value.isascii() and len(value) <= LONGEST_VALUE else (bounded(value),)

    return secret_header if identity.secret else header


def _of_cookie(identity: CookieIdentity) -> Extractor:
    name, part_of = identity.cookie, _token_parts(identity)

    def cookie(subject: Subject) -> Parts | None:
        return part_of(subject.cookie(name))

    return cookie


def _of_query(identity: QueryIdentity) -> Extractor:
    name, part_of = identity.parameter, _token_parts(identity)

    def query(subject: Subject) -> Parts | None:
        return part_of(subject.query(name))

    return query


def _token_parts(identity: CookieIdentity | QueryIdentity) -> Callable[[Any], Parts | None]:
    """A function from a cookie's or a query parameter's value, which may be missing or repeated, to parts of a key."""
    repeated, part_of = _repeated(identity.name), digest if identity.secret else bounded

    def parts(value: Any) -> Parts | None:
        if value is REPEATED:
            return repeated
        return (part_of(plain_token(value)),) if value else None

    return parts


def _of_address(rules: AddressRules) -> Extractor:
    header = rules.header

    @lru_cache(maxsize=_ADDRESSES_CACHED)
    def parts_of(peer: str, value: str) -> Parts | None:
        client = rules.client(peer, value)
        return (bounded(client),) if client else None

    def peer(subject: Subject) -> Parts | None:
        return parts_of(subject.client_ip, "")

    def peer_or_header(subject: Subject) -> Parts | None:
        return parts_of(subject.client_ip, subject.headers.get(header, ""))

    return peer_or_header if header else peer


def _of_method(subject: Subject) -> Parts | None:
    return (bounded(subject.method),) if subject.method else None


def _of_host(subject: Subject) -> Parts | None:
    hosts = hosts_of(subject.host)
    if len(hosts) > 1:
        return _repeated("host")
    return (bounded(hosts[0]),) if hosts[0] else None


def _of_endpoint(template: str) -> Extractor:
    parts = (template,) if template else None
    return lambda subject: (subject.endpoint,) if subject.endpoint else parts


def _of_attribute(name: str) -> Extractor:
    def attribute(subject: Subject) -> Parts | None:
        value = subject.attribute(name)
        if not value:
            return None
        return (value,) if value.isascii() and len(value) <= LONGEST_VALUE else (bounded(value),)

    return attribute


def _first_of(members: Sequence[tuple[str, Extractor]]) -> Extractor:
    """Extract the first identity that is present. One that was sent several times is present: the rest is not read."""

    def first(subject: Subject) -> Parts | None:
        for name, extract in members:
            parts = extract(subject)
            if parts is not None:
                return parts if is_repeated(parts) else (name, *parts)
        return None

    return first


def _of_callable(identity: CallableIdentity) -> Extractor:
    function = identity.function

    def called(subject: Subject) -> Parts | None:
        result = function(subject)
        if not result:
            return None
        return tuple(map(bounded, (result,) if isinstance(result, str) else result))

    return called


def _whole_key(names: Sequence[str], members: Sequence[Extractor], refuse: bool, subject: Subject) -> Parts | None:
    """The key of a rule: `anonymous` and the name replace a missing identity, unless the rule refuses that."""
    key: list[str] = []
    for name, extract in zip(names, members, strict=True):
        parts = extract(subject)
        if not parts:
            if refuse or parts is not None:
                return None
            parts = (ANONYMOUS, name)
        key.extend(parts)
    return tuple(key)


def _unrepeated(extract: Extractor) -> Extractor:
    """An extractor of the same identity that gives () where it was sent several times."""

    def unrepeated(subject: Subject) -> Parts | None:
        parts = extract(subject)
        return () if parts is not None and is_repeated(parts) else parts

    return unrepeated


def _everyone(subject: Subject) -> Parts:
    return EVERYONE


def _any_tier(subject: Subject) -> str:
    return ANY_TIER


def _repeated(name: str) -> Parts:
    return (REPEATED_IDENTITY, name)
