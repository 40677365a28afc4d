"""The Lua scripts for holds, assembled like those that decide: for any limits, and for a few limits of one key.

The usual limiter has a few limits of one key. Its scripts have no loop and no table, and read and write the key's hash
at once; the scripts for any limits do the same step by step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

from headgate.algorithms.table import REDIS_FORMS, is_in_flight
from headgate.made_once import made_once
from headgate.stores.redis.scripts import (
    MARKS,
    Script,
    assembled,
    included,
    script_of,
    section_of,
    sections_of,
    with_placeholders,
)

_ENTRY = 34
"""Bytes of an entry of a limit in each part of a record."""

_NUL = r"\0"

_HOLD_REPLACEMENTS = {"sliding_log.adopt_list": "sliding_log.adopt_list_before_holds"}
"""The sections that replace others in scripts that hold."""

_SETTLE_REPLACEMENTS = {
    "concurrent.next": "steps.no_next",
    "sliding_log.next": "steps.no_next",
    "sliding_window.next": "steps.no_next",
    "token_bucket.next": "steps.no_next",
    "concurrent.stay": "concurrent.left",
    "hash_io.put": "hash_io.gather_changed",
}
"""The sections that replace others in scripts that settle."""

_BEFORE_FIELD = 6
"""Bytes of a limit in a record before the name of its field: group, name, kind and a length."""


@made_once
def reserve() -> Script:
    """The script that decides limits and holds what they charge."""
    return script_of("reserve")


@made_once
def settle() -> Script:
    """The script that settles what is held."""
    return script_of("settle")


@made_once
def extend() -> Script:
    """The script that extends a hold."""
    return script_of("extend")


@made_once
def reserve_few(limits: tuple[tuple[str, str], ...]) -> Script:
    """The script that holds the charges of a few limits of one hash, of these algorithms and fields in this order."""
    return _few_of_one_hash("reserve_few", limits, _HOLD_REPLACEMENTS)


@made_once
def settle_few(limits: tuple[tuple[str, str], ...]) -> Script:
    """The script that settles a hold of a few limits of one hash."""
    return _few_of_one_hash("settle_few", limits, _SETTLE_REPLACEMENTS)


def _few_of_one_hash(
    shell: str, limits: tuple[tuple[str, str], ...], replacements: Mapping[str, str] = MappingProxyType({})
) -> Script:
    """A shell around a few limits, one inside the other, that reads their hash at once and writes it at once.

    `replacements` are sections that it has in place of others.
    """
    swaps = {
        "hash_io.fetch": "hash_io.fetched",
        "hash_io.put": "hash_io.gather",
        "hash_io.drop": "hash_io.dropped",
        "hash_io.fetch_refunds": "hash_io.fetched_refunds",
        "hash_io.put_refunds": "hash_io.gather_refunds",
        **replacements,
    }
    sections = sections_of(shell)
    refills = [number for number, (algorithm, _) in enumerate(limits, 1) if REDIS_FORMS[algorithm].refills]
    with_borders = [number for number, (algorithm, _) in enumerate(limits, 1) if "borders" in sections_of(algorithm)]
    calendars = {number: index for index, number in enumerate(with_borders)}
    numbers = range(1, len(limits) + 1)
    marks = list(_marks_in(limits))

    def render(lines: list[str], chosen: Iterable[int]) -> list[str]:
        rendered: list[str] = []
        for number in chosen:
            algorithm, field = limits[number - 1]
            placeholders = {
                "FIELD": f"'{field}'",
                "CODE": str(REDIS_FORMS[algorithm].code),
                "ENTRY_OF": _entry_of(algorithm, first=number == 1),
                "VALUE": str(number + 1),
                "REFUNDED": str(1 + len(limits) + refills.index(number) + 1) if number in refills else "0",
                "MARK_AT": str(marks[number - 1][0]),
                "MARK_END": str(marks[number - 1][1]),
                "ENTRY_AT": str(10 + _ENTRY * (number - 1)),
                "BORDERS": f".. sub(ARGV[4], {48 * calendars[number] + 1}, {48 * calendars[number] + 48})"
                if number in calendars
                else "",
            }
            limit_lines = with_placeholders(included(lines, algorithm, "", swaps), placeholders)
            rendered += re.sub(r"NUMBER\b", str(number), "\n".join(limit_lines)).split("\n")
        return rendered

    def render_around(lines: list[str], name: str) -> list[str]:
        at = next(index for index, line in enumerate(lines) if name in line)
        return [
            *included(lines[:at], "", ""),
            *render(section_of(*name.split(".")), numbers),
            *included(lines[at + 1 :], "", ""),
        ]

    lines = included(sections[""], "", "")
    lines += render(sections["open"], numbers) + render(sections["close"], reversed(numbers))
    lines += render_around(sections["write"], f"{shell}.each")
    fields = [f"'{field}'" for _, field in limits] + [f"'+{limits[number - 1][1]}'" for number in refills]
    states = [f"state{number}" for number in numbers]
    written = [*states, *(f"refunds{number}" for number in refills)] if shell == "settle_few" else states
    placeholders = {
        "COUNT": str(len(limits)),
        "FIELDS": ", ".join(fields),
        "STATES": ", ".join(states),
        "ALL": " and ".join(written),
        "CHANGES": ", ".join(f"{field}, {value}" for field, value in zip(fields, written, strict=False)),
        "REFUNDS": ", ".join(f"refunds{number}" for number in numbers),
        "STANDING": ", ".join(f"remaining{number}, reset_after{number}" for number in numbers),
        "REPLY_FORMAT": f"'<c1HdH{'Hdd' * len(limits)}'",
        "REPLY": ", ".join(f"{number}, remaining{number}, reset_after{number}" for number in numbers),
        "ENTRIES": ", ".join(f"entry{number}" for number in numbers),
        "JOINED": " .. ".join(f"entry{number}" for number in numbers),
        "PART_SIZE": str(8 + _ENTRY * len(limits)),
    }
    return assembled(with_placeholders(lines, placeholders))


def _entry_of(algorithm: str, *, first: bool) -> str:
    """The entry of a limit in a part of a record, after the cost for the first; places in flight have only the kind."""
    code = REDIS_FORMS[algorithm].code
    if is_in_flight(algorithm):
        return ("pack('<d', cost) .. " if first else "") + f"'\\{code}{_NUL * (_ENTRY - 1)}'"
    head, cost = ("<d", "cost, ") if first else ("<", "")
    return f"pack('{head}BBdddd', {cost}{code}, 0, marked, missing_then, times, refunds)"


def _marks_in(limits: tuple[tuple[str, str], ...]) -> Iterator[tuple[int, int]]:
    """The start and end of each limit's numbers in the limits of a record."""
    end = 0
    for algorithm, field in limits:
        start = end + _BEFORE_FIELD + len(field) + 1
        end = start + MARKS[REDIS_FORMS[algorithm].refills]
        yield start + 1, end
