"""Which keys an operator of a live system means: `user=u42`, or the parts of a key as they are kept.

A name and a value stand for a request that carries this value, so they give the key that it was counted
under: a secret's digest, an address's network. Parts alone are a guess at which rule they may be of.
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
from headgate.policy.client_address import parse_address
from headgate.policy.compiled import Policy, Rule
from headgate.policy.identity import ANONYMOUS, BUILT_IN, EVERYONE, REPEATED_IDENTITY, Parts
from headgate.policy.request import Request

_NAMED = re.compile(r"([a-z][a-z0-9_.-]{0,63})=(.*)", re.DOTALL)
_DIGEST = re.compile("[0-9a-f]{32}")
_ANY_PATH = "/**"


class RuleKey(NamedTuple):
    """A key of a rule. `guessed` where a part was taken for the digest of a secret, and may be the secret itself."""

    rule: Rule
    parts: Parts
    guessed: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The keys that are meant, and what is not told of others: the name of a rule and of its other identities."""

    keys: list[RuleKey] = field(default_factory=list)
    open: list[tuple[str, tuple[str, ...]]] = field(default_factory=list)


def find_keys(policy: Policy, texts: Sequence[str], *, only: str | None = None) -> Found:
    """The keys that these texts stand for, in each rule that counts by them, or `only` in the rule of this name.

    Raises ConfigError where a text, or the rule, cannot be meant; it shows no text, since one may be a secret.
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
            found.keys.extend(_keys_of_parts(policy, rule, tuple(texts)))
        else:
            _add_named(found, policy, rule, values)
    if not found.keys:
        raise ConfigError(_why_none(policy, rules, found))
    return found


def _values(policy: Policy, texts: Sequence[str]) -> dict[str, str] | None:
    """The value of each identity that is named; None where the texts are the parts of a key."""
    matches = [_NAMED.fullmatch(text) for text in texts]
    known = [*BUILT_IN, *policy.model.identities]
    values: dict[str, str] = {}
    for match in matches:
        if match is None:
            if any(matches):
                raise ConfigError("write each KEY as NAME=VALUE, or none")
            continue
        name = match[1]
        model = policy.model.identities.get(name)
        if name not in known:
            raise ConfigError(f"a KEY with = in it is NAME=VALUE, and no identity has this name{_hint(name, known)}")
        if model is not None and model.first_of is not None:
            members = ", ".join(model.first_of)
            raise ConfigError(
                f"{name} is the first of {members}: name the one that a request had, as {model.first_of[0]}=VALUE"
            )
        if name in values:
            raise ConfigError(f"{name} is given twice")
        values[name] = match[2]
    return values or None


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    return f"; did you mean {close[0]}?" if close else f"; there are {', '.join(known[:20])}"


def _add_named(found: Found, policy: Policy, rule: Rule, values: Mapping[str, str]) -> None:
    """The keys of a rule for requests that carry these values, "" for one that they lack."""
    choices: list[list[Parts]] = []
    lacking: list[str] = []
    used = False
    for name in rule.by:
        parts = _parts_of(policy, rule, name, values)
        if parts is not None:
            used = True
            if not parts and rule.refuse_missing:
                return
            choices.append([parts or (ANONYMOUS, name)])
        elif name == "endpoint":
            choices.append([(template,) for template in rule.conditions.paths or (_ANY_PATH,)])
        else:
            lacking.append(name)
    if used and lacking:
        found.open.append((rule.name, tuple(lacking)))
    elif used:
        found.keys.extend(RuleKey(rule, tuple(part for parts in key for part in parts)) for key in product(*choices))


def _parts_of(policy: Policy, rule: Rule, name: str, values: Mapping[str, str]) -> Parts | None:
    """The parts that an identity gives of these values, () where they say that it is missing, None if nothing."""
    model = policy.model.identities.get(name)
    if model is None or model.first_of is None:
        return _carried(policy, rule, name, values[name]) if name in values else None
    members = [(member, _parts_of(policy, rule, member, values)) for member in model.first_of]
    for member, parts in members:
        if parts:
            return (member, *parts)
    return None if any(parts is None for _, parts in members) else ()


def _carried(policy: Policy, rule: Rule, name: str, value: str) -> Parts:
    """The parts that an identity gives of a request that carries this value, () if it takes that for none."""
    model = policy.model.identities.get(name)
    request = Request()
    if name == "ip" or (model is not None and model.ip is not None):
        request = Request(client_ip=value)
    elif name == "endpoint":
        request = Request(endpoint=value)
    elif name == "host":
        request = Request(host=value)
    elif name == "method":
        request = Request(value)
    elif model is not None and model.header is not None:
        request = Request(headers={model.header: value})
    elif model is not None and model.cookie is not None:
        request = Request(headers={"cookie": f"{model.cookie}={value}"})
    elif model is not None and model.query is not None:
        request = Request(path=f"/?{urlencode({model.query: value})}")
    return rule.identities[name](request) or ()


def _keys_of_parts(policy: Policy, rule: Rule, texts: Parts) -> Iterator[RuleKey]:
    """The keys of a rule that have these parts."""
    if texts == EVERYONE or not rule.by:
        if texts == EVERYONE and not rule.by:
            yield RuleKey(rule, EVERYONE)
        return
    keys: list[tuple[Parts, Parts, bool]] = [((), texts, False)]
    for name in rule.by:
        keys = [
            (parts + taken, rest, guessed or guess)
            for parts, left, guessed in keys
            for taken, rest, guess in _taken(policy, rule, name, left)
        ]
    yield from (RuleKey(rule, parts, guessed) for parts, rest, guessed in keys if not rest)


def _taken(policy: Policy, rule: Rule, name: str, texts: Parts) -> Iterator[tuple[Parts, Parts, bool]]:
    """What an identity may have given of these texts: its parts, the texts that are left, whether it is a guess."""
    model = policy.model.identities.get(name)
    if texts[:2] in ((ANONYMOUS, name), *((REPEATED_IDENTITY, own) for own in _sent(policy, name))):
        yield texts[:2], texts[2:], False
        return
    if not texts:
        return
    text, rest = texts[0], texts[1:]
    if model is not None and model.first_of is not None:
        if text in model.first_of:
            for taken, left, guess in _taken(policy, rule, text, rest):
                yield (text, *taken), left, guess
        return
    if (name == "ip" or (model is not None and model.ip is not None)) and not parse_address(text.partition("/")[0]):
        return
    parts = _carried(policy, rule, name, text)
    if parts:
        yield parts, rest, False
    if model is not None and model.secret and _DIGEST.fullmatch(text):
        yield (text,), rest, True


def _sent(policy: Policy, name: str) -> Iterator[str]:
    """The names of the identities of which a client can send several: this one, or members of it."""
    model = policy.model.identities.get(name)
    if model is not None and model.first_of is not None:
        for member in model.first_of:
            yield from _sent(policy, member)
    elif model is not None or name == "host":
        yield name


def _why_none(policy: Policy, rules: Sequence[Rule], found: Found) -> str:
    if found.open:
        name, lacking = found.open[0]
        return lacks(name, lacking)
    ways = "; ".join(dict.fromkeys(f"{rule.name} by {_way(policy, rule)}" for rule in rules))
    return f"no rule counts by such a key; they count: {ways}; write NAME=VALUE, as in {_example(policy, rules)}"


def lacks(rule: str, names: Sequence[str]) -> str:
    """What is to be told besides, so that the key of a rule is known."""
    return f"the rule {rule} counts by {' and '.join(names)} besides: name the value of that too, as NAME=VALUE"


def _way(policy: Policy, rule: Rule) -> str:
    return " and ".join(_spelled(policy, name) for name in rule.by) or "everyone together (the KEY everyone)"


def _spelled(policy: Policy, name: str) -> str:
    model = policy.model.identities.get(name)
    return name if model is None or model.first_of is None else f"{name} ({' or '.join(model.first_of)})"


def _example(policy: Policy, rules: Sequence[Rule]) -> str:
    names = [name for rule in rules for name in rule.by]
    if not names:
        return "everyone"
    members = [getattr(policy.model.identities.get(name), "first_of", None) for name in names]
    name = members[0][0] if members[0] else names[0]
    return f"{name}={'203.0.113.9' if name == 'ip' else 'VALUE'}"
