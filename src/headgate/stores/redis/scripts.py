"""The Lua scripts, assembled from the files in `lua/`.

A file of an algorithm has sections, each under a line `--@ name`; a shell includes them by
`--@ include file.section`. So every script is one sequence of statements: calling a function would cost as
much as the work in it. There is a script for each choice of a few algorithms, and one for any number of limits,
independent of their numbers: a server caches as many scripts as a policy has such choices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha1
from importlib import resources
from typing import NamedTuple

from headgate.algorithms.sliding_log import MOST_SINCE
from headgate.algorithms.table import REDIS_FORMS
from headgate.made_once import made_once
from headgate.units import LARGEST, CompiledLimit

HIT, PEEK, TIMED_HIT = 0, 1, 2
"""Modes of a script: charge, only read, or charge and reply with the moment, too."""

ID_LETTERS = 24
"""Letters of a hold's id at the end of the key of its record."""

SETTLE, FORGET, SHORTEN, TURN_BACK, CHECK, CHECKED, DROP = range(7)
"""Modes of a script that settles: settle; undo all charges of a hold; undo the last charge and restore the former end
of its lease; restore that end alone; check whether debts fit; settle after that was checked in all slots; free the
places of a hold that was reset, and forget it."""

BRIEF = 42
"""Length in bytes of a reply with a bucket's state; no other reply is as long."""

PACKED, MOST_PACKED, COPIED = 14, 16, 7
"""PACKED entries of a log are moved together into another field, once its own field would have MOST_PACKED; its own
field keeps copies of the next COPIED entries to expire."""

MOST_IN_FIELD = 8
"""Up to so many leases of places in flight are in the field of their limit; more are in sorted sets."""

_SHADOW = 8
MARKS = (15, 22)
"""Bytes of a limit's numbers."""

POWERS = (0, 3, 6)
_POWERS = {1: 0, 1_000: 3, 1_000_000: 6}

_CONSTANTS = {
    "HIT": HIT,
    "PEEK": PEEK,
    "TIMED_HIT": TIMED_HIT,
    "NEVER": -1,
    "OUTSIDE": -2,
    "LARGEST": LARGEST,
    "SUMS": 1 << 53,
    "MOST_SINCE": MOST_SINCE,
    "MOST_PACKED": MOST_PACKED,
    "PACKED": PACKED,
    "COPIED": COPIED,
    "MOST_ADOPTED": 2 * MOST_SINCE,
    "MOST_NARROW": 1 << 45,
    "MOST_SPAN": (1 << 48) - 1,
    "CORRECTED": 4,
    "MOST_SWEPT": 100,
    "LOG": REDIS_FORMS["sliding_log"].code,
    "WINDOW": REDIS_FORMS["sliding_window"].code,
    "PLACES": REDIS_FORMS["concurrent"].code,
    "CALENDAR": REDIS_FORMS["calendar_window"].code,
    "MOST_DEAD": 80,
    "MOST_PLACES": 7,
    "MOST_RESETS": (1 << 24) - 1,
    "LEASE": 33,
    "MOST_IN_FIELD": MOST_IN_FIELD,
    "DEAD_EVERY": 8,
    "NOT_CHARGED": 255,
    "ID_LETTERS": ID_LETTERS,
    "FORGET": FORGET,
    "SHORTEN": SHORTEN,
    "TURN_BACK": TURN_BACK,
    "SETTLE": SETTLE,
    "CHECK": CHECK,
    "CHECKED": CHECKED,
    "DROP": DROP,
    "NOTHING": "'" + BRIEF * r"\0" + "'",
}
_CONSTANT = re.compile(rf"\b(?:{'|'.join(_CONSTANTS)})\b")
_FUNCTIONS = {
    "call": "redis.call",
    "spread": "unpack",
    **{name: f"struct.{name}" for name in ("pack", "unpack")},
    **{name: f"string.{name}" for name in ("byte", "sub")},
}
_PLACEHOLDER = re.compile(r"\b[A-Z_]+\b")
_NO_SWAPS: Mapping[str, str] = {}
_OPTIONAL = (
    "delay", "adopt", "keep_former", "brief", "take", "request", "prolong", "free", "retake", "begin", "sweep_all",
)  # fmt: skip
_DIRECTIVE = re.compile(r"^( *)--@ (include|each|end|same) ?(\S*)$")


class Script(NamedTuple):
    """A script and the SHA-1 by which a server knows it."""

    text: str
    sha: str


@made_once
def one_limit(algorithm: str, field: str) -> Script:
    """The script that decides one limit of an algorithm with its state in a field of a hash."""
    return assembled(with_placeholders(included(sections_of("decide_one")[""], algorithm, ""), {"FIELD": f"'{field}'"}))


@made_once
def few_limits(limits: tuple[tuple[str, str], ...], *, together: bool) -> Script:
    """The script that decides limits of these algorithms and fields, in this order, all or none.

    Each has a key of its own, or `together` all are fields of one hash.
    """
    numbered = [(str(number), *limit) for number, limit in enumerate(limits, 1)]
    swaps = {"hash_io.fetch": "hash_io.fetched", "hash_io.put": "hash_io.gather"} if together else {}
    sections = sections_of("decide_unrolled")
    brief = together and all(REDIS_FORMS[algorithm].brief for algorithm, _ in limits)

    def render(lines: list[str], chosen: Iterable[tuple[str, str, str]]) -> list[str]:
        rendered: list[str] = []
        for number, algorithm, field in chosen:
            placeholders = {"FIELD": f"'{field}'", "PLACE": "1" if together else number, "VALUE": number}
            limit_lines = with_placeholders(included(lines, algorithm, "", swaps), placeholders)
            rendered += re.sub(r"NUMBER\b", number, "\n".join(limit_lines)).split("\n")
        return rendered

    lines = included(sections[""], "", "")
    lines += sections["read"] if together else []
    lines += sections["brief_read"] if brief else []
    lines += render(sections["open"] + (sections["brief_open"] if brief else []), numbered)
    lines += render(sections["brief_close" if brief else "close"], numbered[::-1])
    if together:
        before, after = sections["write"], []
        at = next(index for index, line in enumerate(before) if "decide_unrolled.each" in line)
        before, after = before[:at], before[at + 1 :]
        lines += [*before, *render(sections["each"], numbered), *included(after, "", "")]
    lines += sections["brief_reply"] if brief else []
    lines += sections["reply"]
    placeholders = {
        "COUNT": str(len(limits)),
        "FIELDS": ", ".join(f"'{field}'" for _, _, field in numbered),
        "STATES": ", ".join(f"state{number}" for number, _, _ in numbered),
        "JOINED": " .. ".join(f"state{number}" for number, _, _ in numbered),
        "ALL": " and ".join(f"state{number}" for number, _, _ in numbered),
        "CHANGES": ", ".join(f"'{field}', state{number}" for number, _, field in numbered),
    }
    return assembled(with_placeholders(lines, placeholders))


@made_once
def several_limits() -> Script:
    """The script that decides any number of limits, all or none."""
    return script_of("decide_loop")


@made_once
def give_back() -> Script:
    """The script that gives back charges."""
    return script_of("give_back")


@made_once
def probe() -> Script:
    """The script that uses the commands of decisions and leaves nothing behind."""
    return script_of("probe")


@made_once
def forget() -> Script:
    """The script that forgets states."""
    return script_of("forget")


def mark_of(limit: CompiledLimit) -> bytes:
    """A limit's numbers in the format of the scripts; a state ends with the numbers that it was written under."""
    mark = bytes([_POWERS[limit.unit_us]]) + _bytes(limit.quota, 7) + _bytes(limit.period, 7)
    return mark + _bytes(limit.refill, 7) if limit.refill else mark


def limit_of(algorithm: str, mark: bytes) -> CompiledLimit:
    """Parse the numbers of a mark."""
    quota, period, refill = (int.from_bytes(mark[start : start + 7], "little") for start in (1, 8, 15))
    return CompiledLimit(algorithm, 10 ** mark[0], quota, period, refill)


def kind_of(algorithm: str, *, shadow: bool) -> int:
    """The code by which the script for any number of limits knows how to decide one."""
    return REDIS_FORMS[algorithm].code + (_SHADOW if shadow else 0)


def _bytes(number: int, length: int) -> bytes:
    return number.to_bytes(length, "little")


def script_of(shell: str) -> Script:
    return assembled(included(sections_of(shell)[""], "", ""))


def assembled(lines: list[str]) -> Script:
    """A script of these lines, with its constants inserted and the functions that it calls made local."""
    code = _CONSTANT.sub(lambda constant: str(_CONSTANTS[constant[0]]), "\n".join(filter(None, lines)))
    used = [name for name in _FUNCTIONS if re.search(rf"{name}\((?<![.\w]{name}\()", code)]
    text = f"local {', '.join(used)} = {', '.join(_FUNCTIONS[name] for name in used)}\n{code}\n"
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


def with_placeholders(lines: list[str], placeholders: Mapping[str, str]) -> list[str]:
    """Lines with their placeholders replaced, all at once: a limiter's scripts have thousands of lines."""
    return _PLACEHOLDER.sub(lambda word: placeholders.get(word[0], word[0]), "\n".join(lines)).split("\n")


def included(lines: list[str], algorithm: str, code: str, swaps: Mapping[str, str] = _NO_SWAPS) -> list[str]:
    """Lines with their includes replaced by the included sections, or by those in `swaps`."""
    result: list[str] = []
    repeated: list[str] | None = None
    for line in lines:
        match = _DIRECTIVE.match(line)
        if match is None:
            (result if repeated is None else repeated).append(re.sub(r"\bCODE\b", code, line) if code else line)
        elif match[2] == "each":
            repeated = []
        elif match[2] == "end":
            for number, name in _algorithms_by_code().items():
                result += included(repeated or [], name, str(number), swaps)
            repeated = None
        elif repeated is not None:
            repeated.append(line)
        else:
            file, section = swaps.get(match[3], match[3]).split(".")
            inner = section_of(algorithm if file == "ALGORITHM" else file, section)
            result += [match[1] + line for line in included(inner, algorithm, code, swaps)]
    return result


def _algorithms_by_code() -> dict[int, str]:
    """The algorithms of the scripts by code; of several with one code, which share a transition, the first."""
    algorithms: dict[int, str] = {}
    for name, form in REDIS_FORMS.items():
        algorithms.setdefault(form.code, name)
    return algorithms


def section_of(file: str, name: str) -> list[str]:
    sections = sections_of(file)
    return sections.get(name, []) if name in _OPTIONAL else sections[name]


@made_once
def sections_of(file: str) -> dict[str, list[str]]:
    """The sections of a file by name, without comments; the lines before the first section have the empty name."""
    sections: dict[str, list[str]] = {"": []}
    name = ""
    for line in (resources.files("headgate.stores.redis") / "lua" / f"{file}.lua").read_text().splitlines():
        same = re.fullmatch(r"--@ same (\w+)", line)
        begin = re.fullmatch(r"--@ (\w+)", line)
        if same is not None:
            sections |= {name: lines for name, lines in sections_of(same[1]).items() if name}
        elif begin is not None and begin[1] not in ("end",):
            name = begin[1]
            sections[name] = []
        elif _DIRECTIVE.match(line):
            sections[name].append(line)
        elif code := re.sub(r" *--.*", "", line):
            sections[name].append(code)
    return sections
