"""The problems of a policy: all at once, each with its place and what would be right."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from headgate.errors import ConfigError, without_credentials

Path = tuple[str | int, ...]
_MOST_SHOWN = 200
_MOST_HINTS = 50
"""How many unknown names are compared with all known ones, which takes long where there are thousands of both."""

_LONGEST_SHOWN = 60
_LONG_NUMBER = 10**_LONGEST_SHOWN
_PLAIN = re.compile(r"[A-Za-z_<][A-Za-z0-9_<-]*")


class FieldFaults(ValueError):
    """Faults in several fields of one value, by the field's name or its place in a list."""

    def __init__(self, faults: Mapping[Any, str]) -> None:
        super().__init__("; ".join(faults.values()))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. `path` is its place in the policy, `line` and `column` (from 1) its place in the file."""

    path: Path
    message: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        place = path_text(self.path)
        return f"{place}: {self.message}" if place else self.message


class PolicyError(ConfigError):
    """A policy cannot be used; `problems` has everything that is wrong with it."""

    code: ClassVar[str] = "policy"

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(sorted(problems, key=lambda problem: (problem.line, problem.column)))
        super().__init__("\n".join(self._lines()))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.problems), self.__dict__

    def _lines(self) -> Iterable[str]:
        for problem in self.problems[:_MOST_SHOWN]:
            yield place_text(self.source, problem)
        if len(self.problems) > _MOST_SHOWN:
            yield f"{self.source}: {len(self.problems) - _MOST_SHOWN:,} more problems"


class KnownNames:
    """The names of one kind that a policy has, and what to say of any other name that it refers to."""

    def __init__(self, kind: str, names: Iterable[object]) -> None:
        self._kind = kind
        self._names = frozenset(names)
        self._sorted = sorted(map(str, self._names))  # names in a mapping need not be text
        self._hints = _MOST_HINTS

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def unknown(self, name: str) -> str:
        """Return the message for a name that is none of these, with what may have been meant by the first ones."""
        message = f"no {self._kind} is named {shown(name)}"
        if not self._hints:
            return message
        self._hints -= 1
        close = get_close_matches(name, self._sorted, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(self._sorted[:20]) or 'none'}"
        return f"{message}; {hint}"


def place_text(source: str, problem: Problem, kind: str = "") -> str:
    """A problem with its place in a file, and its kind: `policy.yaml:3:5: rules[0].by: is missing`."""
    place = f"{source}:{problem.line}:{problem.column}" if problem.line else source
    return f"{place}: {kind}{problem}"


def path_text(path: Path) -> str:
    """A path in its usual notation: `rules[2].limits.free`."""
    text = ""
    for part in path:
        if not isinstance(part, str):  # an index in a list, or a name that is no text
            text += f"[{part}]"
        elif _PLAIN.fullmatch(part):
            text += f".{part}" if text else part
        else:
            text += f"[{part[:60]!r}]"
    return text


def shown(value: object) -> str:
    """A value as text for a message: short; a map or a list is described, not shown."""
    if value is None or isinstance(value, bool):
        return {None: "nothing", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "a map"
    if isinstance(value, list):
        return "a list" if value else "an empty list"
    if isinstance(value, float) and math.isinf(value):
        return "a number of more than 308 digits"  # what a float cannot hold
    if isinstance(value, int) and abs(value) >= _LONG_NUMBER:
        # Python refuses to print the longest numbers.
        return f"a {'negative ' if value < 0 else ''}number of more than {_LONGEST_SHOWN} digits"
    text = without_credentials(repr(value))
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:56]}...'"
