"""Parses the limits that a server announces in its responses: the counterpart of `dialects`.

The fields are Retry-After (RFC 9110, 10.2.3), the RateLimit fields of every draft, and `X-RateLimit-*` and
`X-Rate-Limit-*` as GitHub, GitLab, Discord, Reddit, OpenAI, Anthropic and Kong send them. Malformed fields are
ignored. Of several dialects in one response the most exact is read: the drafts since -07, then
`RateLimit-Remaining`, then the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, cast

from headgate.clock import SYSTEM_CLOCK
from headgate.http.fields.dates import US, http_date_us, seconds_us, until_us
from headgate.http.fields.structured import Parameters, parse_dictionary, parse_list

Headers = Mapping[str, str] | Iterable[tuple[str, str]]
"""The header fields of a response, names in any case; a field of several lines is one list."""

LONGEST_WAIT = 86_400.0
"""Seconds: an announced wait is believed up to a day."""

_DIGITS = re.compile(r"[0-9]{1,40}")
_REMAINING = re.compile(r"([0-9]{1,40})(?:\.[0-9]{1,40})?")
_BETWEEN_WAITS = re.compile(r",(?=[ \t]*(?:[0-9.]+[ \t]*(?:,|\Z)|[A-Z]))")
"""A comma that ends a Retry-After before another one; an HTTP date has a comma of its own, before the day."""

_NAME = re.compile(r"(?P<x>x-)?rate-?limit-(?P<what>limit|remaining|reset-after|reset)(?:-(?P<of>.+))?")
_NAME_LAST = re.compile(r"(?P<x>[a-z0-9]+-)rate-?limit-(?P<of>.+)-(?P<what>remaining|reset)")
_READ = frozenset(("retry-after", "retry-after-ms", "date", "age"))


class AnnouncedLimit(NamedTuple):
    """One limit, as far as a response announces it."""

    name: str
    """The policy's name, or the end of the field's name (`tokens`, `minute`); empty for a limit without one."""

    remaining: int | None
    """Units that are left; None if only the reset is announced."""

    reset_after_us: int | None
    """Microseconds until more units are available; None if that is not announced."""

    @property
    def reset_after(self) -> float | None:
        """Seconds until more units are available."""
        return _seconds(self.reset_after_us)


class AnnouncedLimits(NamedTuple):
    """The limits that a response announces; times count from the moment at which it was received."""

    retry_after_us: int | None
    """Microseconds of Retry-After; None where there is none."""

    limits: tuple[AnnouncedLimit, ...]

    @property
    def retry_after(self) -> float | None:
        """Seconds of Retry-After."""
        return _seconds(self.retry_after_us)

    @property
    def remaining(self) -> int | None:
        """The units that the scarcest limit has left; None where that is not announced."""
        return min((limit.remaining for limit in self.limits if limit.remaining is not None), default=None)

    @property
    def exhausted(self) -> bool:
        """Whether some limit has nothing left."""
        return self.remaining == 0

    @property
    def exhausted_for_us(self) -> int | None:
        """Microseconds until every limit has units left; None where all have, or it is not announced.

        Retry-After takes precedence.
        """
        return self._wait_us(0) if self.exhausted else None

    @property
    def refused_for_us(self) -> int | None:
        """Microseconds that a refusal asks to wait; None where it does not."""
        return self._wait_us(0, None)

    @property
    def refused_for(self) -> float | None:
        """Seconds that a refusal asks to wait."""
        return _seconds(self.refused_for_us)

    def _wait_us(self, *remaining: int | None) -> int | None:
        if self.retry_after_us is not None:
            return self.retry_after_us
        resets = [limit.reset_after_us for limit in self.limits if limit.remaining in remaining]
        return max((reset for reset in resets if reset is not None), default=None)


def read_limit_fields(
    headers: Headers, *, now_us: int | None = None, cap: float = LONGEST_WAIT
) -> AnnouncedLimits | None:
    """Return the limits that the header fields of a response announce; None if there are none.

    Moments are relative to the response's Date, without one to `now_us` [the system's clock]. Waits are in
    [0, `cap`] seconds. Of a response from a cache (Age above 0) only Retry-After counts, less its age.
    """
    fields = _announcing_fields(headers)
    if not fields:
        return None
    now_us = SYSTEM_CLOCK.now_us() if now_us is None else now_us
    sent_us = http_date_us(fields.get("date", ""), now_us)
    server_us = now_us if sent_us is None else sent_us
    cap_us = int(cap * US)
    age_us = int(fields["age"]) * US if _DIGITS.fullmatch(fields.get("age", "")) else 0
    retry_after_us = _retry_after_us(fields, server_us)
    limits = [] if age_us else _limits(fields, server_us)
    if retry_after_us is None and not limits:
        return None
    return AnnouncedLimits(
        None if retry_after_us is None else min(max(retry_after_us - age_us, 0), cap_us),
        tuple(
            limit if limit.reset_after_us is None else limit._replace(reset_after_us=min(limit.reset_after_us, cap_us))
            for limit in limits
        ),
    )


told, Told, ToldLimit = read_limit_fields, AnnouncedLimits, AnnouncedLimit
"""The former names."""


def _announcing_fields(headers: Headers) -> dict[str, str]:
    """Return the fields that are read, by name in lower case; empty if none of them announces a limit."""
    fields: dict[str, str] = {}
    announces_limit = False
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    for name, value in cast(Iterable[tuple[str, str]], pairs):
        lower = name.lower()
        limited = "ratelimit" in lower or "rate-limit" in lower
        if limited or lower in _READ:
            announces_limit = announces_limit or limited or lower.startswith("retry-after")
            fields[lower] = f"{fields[lower]}, {value.strip()}" if lower in fields else value.strip()
    return fields if announces_limit else {}


def _retry_after_us(fields: dict[str, str], server_us: int) -> int | None:
    """Parse Retry-After: delay-seconds, also with a fraction, or an HTTP date; if sent several times, the longest one.

    `retry-after-ms`, which Azure and OpenAI send as well, is more exact.
    """
    thousandths_us = seconds_us(fields.get("retry-after-ms", ""))
    if thousandths_us is not None:
        return -(-thousandths_us // 1000)
    texts = _BETWEEN_WAITS.split(fields.get("retry-after", ""))
    waits_us = [_wait_us(text.strip(" \t"), server_us) for text in texts]
    return max((wait_us for wait_us in waits_us if wait_us is not None), default=None)


def _wait_us(text: str, server_us: int) -> int | None:
    delay_us = seconds_us(text)
    if delay_us is not None:
        return delay_us
    moment_us = http_date_us(text, server_us)
    return None if moment_us is None else max(0, moment_us - server_us)


def _limits(fields: dict[str, str], server_us: int) -> list[AnnouncedLimit]:
    drafted = _parse_draft_field(fields["ratelimit"]) if "ratelimit" in fields else []
    return (
        drafted or _limits_by_name(fields, server_us, with_x=False) or _limits_by_name(fields, server_us, with_x=True)
    )


def _parse_draft_field(text: str) -> list[AnnouncedLimit]:
    """Parse `"api";r=5;t=3` since draft -08, `api;a=5;w=3` in the next, `limit=9, remaining=5, reset=3` in -07."""
    members = parse_list(text)
    if members is not None:
        limits = [
            _limit_of_parameters(name, parameters, *("rt" if "r" in parameters else "aw"))
            for name, parameters in members
        ]
        return [limit for limit in limits if limit is not None]
    dictionary = parse_dictionary(text)
    limit = None if dictionary is None else _limit_of_parameters("", dictionary, "remaining", "reset")
    return [] if limit is None else [limit]


def _limit_of_parameters(name: str, parameters: Parameters, remaining: str, reset: str) -> AnnouncedLimit | None:
    """Return a limit of two Integers from 0; the second may be missing, and any other value is malformed."""
    remaining_units, seconds = parameters.get(remaining), parameters.get(reset)
    if not isinstance(remaining_units, int) or remaining_units < 0:
        return None
    if seconds is None:
        return AnnouncedLimit(name, remaining_units, None)
    return AnnouncedLimit(name, remaining_units, seconds * US) if isinstance(seconds, int) and seconds >= 0 else None


def _limits_by_name(fields: dict[str, str], server_us: int, *, with_x: bool) -> list[AnnouncedLimit]:
    """Parse fields of a number each: `X-RateLimit-Remaining`, `x-ratelimit-reset-tokens`, `RateLimit-Reset`.

    Where they are lists, as `X-RateLimit-Remaining: 1, 14523` of a second and a month is, each member is a limit. Brave
    Search, which sends them, means no limit by a 0 in the list `X-RateLimit-Limit`.
    """
    remaining: dict[tuple[str, int], int] = {}
    resets: dict[tuple[str, int], int] = {}
    unlimited: set[tuple[str, int]] = set()
    for name, text in fields.items():
        match = _NAME.fullmatch(name) or _NAME_LAST.fullmatch(name)
        if match is None or bool(match["x"]) != with_x:
            continue
        of = match["of"] or ""
        if match["what"] == "limit":
            read = _members(text, _units)
            unlimited.update((of, place) for place, units in enumerate(read) if not units and len(read) > 1)
        elif match["what"] == "remaining":
            read = _members(text, _units)
            remaining.update(((of, place), units) for place, units in enumerate(read))
        else:
            read = _members(text, lambda member: until_us(member, server_us))
            is_exact = match["what"] == "reset-after"
            resets.update(
                ((of, place), reset_us) for place, reset_us in enumerate(read) if is_exact or (of, place) not in resets
            )
    names = [*remaining, *(name for name in resets if name not in remaining)]
    return [
        AnnouncedLimit(of, remaining.get((of, place)), resets.get((of, place), resets.get(("", place))))
        for of, place in names
        if (of, place) not in unlimited
    ]


def _members(text: str, read: Callable[[str], int | None]) -> list[int]:
    """Read a value, or each member of a list; empty if anything is malformed. An HTTP date has a comma of its own."""
    whole = read(text)
    if whole is not None:
        return [whole]
    members = [read(member.strip(" \t")) for member in text.split(",")]
    known = [member for member in members if member is not None]
    return known if len(known) == len(members) else []


def _units(text: str) -> int | None:
    number = _REMAINING.fullmatch(text)
    return None if number is None else int(number[1])


def _seconds(duration_us: int | None) -> float | None:
    return None if duration_us is None else duration_us / US
