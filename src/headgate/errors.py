"""The error tree of Headgate: one root, a stable code on every class.

Misuse is an exception, a refusal is not: a client over its limit gets a `Decision`, and only
`RateLimited` (raised by the decorator and by clients) turns one into an exception. `Held` and
`Throttled` are a client's, too: calls that were not sent. Codes never change once released; messages may.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from headgate.decision import Decision

_EXCERPT = 60
"""How many characters a message shows of a text."""

_WORD = re.compile(r"\S+")
_PASSWORD = re.compile("(password=)[^&'\"]*")


class HeadgateError(Exception):
    """Anything that Headgate raises on purpose."""

    code: ClassVar[str] = "headgate"


class ConfigError(HeadgateError, ValueError):
    """A limit, a policy, a store URL or a setting cannot be used as written.

    `path` names the place ("rules[2].limits.free"), empty where there is only one. A user and a password of a URL,
    which may stand where another setting belongs, are not in the message.
    """

    code: ClassVar[str] = "config"

    def __init__(self, message: str, *, path: str = "") -> None:
        message = without_credentials(message)
        super().__init__(f"{path}: {message}" if path else message)
        self.message = message
        self.path = path


class LimitSyntaxError(ConfigError):
    """A limit's text cannot be read; `position` is the 0-based character where it stops making sense."""

    code: ClassVar[str] = "limit-syntax"

    def __init__(self, reason: str, *, text: str, position: int, path: str = "") -> None:
        shown, column = _excerpt(without_credentials(text), position)
        pointer = "\n  " + shown + "\n  " + " " * column + "^"
        super().__init__(f'cannot read "{shown}": {reason}{pointer}', path=path)
        self.reason = reason
        self.text = text
        self.position = position

    def __reduce__(self) -> tuple[Any, ...]:
        again = partial(type(self), text=self.text, position=self.position, path=self.path)
        return again, (self.reason,), self.__dict__


class MissingExtraError(ConfigError):
    """An optional library is not installed; the message names the command that installs it.

    `why` is the error of a library that is installed, but cannot be imported.
    """

    code: ClassVar[str] = "missing-extra"

    def __init__(self, purpose: str, *, extra: str, why: ImportError | str = "") -> None:
        self.why = "" if isinstance(why, ModuleNotFoundError) else str(why)
        wrong = f"cannot be imported ({self.why})" if self.why else "are not installed"
        super().__init__(f"{purpose} needs optional parts that {wrong}: pip install 'headgate[{extra}]'")
        self.purpose = purpose
        self.extra = extra

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), extra=self.extra, why=self.why), (self.purpose,), self.__dict__


class ArgumentError(HeadgateError, ValueError):
    """An argument of a call has no meaning: a negative cost, an empty key, a timeout that is no number."""

    code: ClassVar[str] = "argument"


class ConflictingId(ArgumentError):
    """The id of a hold, or of a hit, is that of a different one: with another cost, other limits or keys.

    A repeated call has the same arguments; a new hold needs an id of its own. Nothing was charged.
    """

    code: ClassVar[str] = "conflicting-id"


class StoreError(HeadgateError):
    """The store did not answer. `transient` is whether the same call may succeed later."""

    code: ClassVar[str] = "store"
    transient: bool = False
    hold_id: str = ""
    """Where the answer to `reserve` was lost: the whole id of the hold that may exist."""

    server: str = ""
    """Of a Cluster: the address of the server that did not answer or refused; the others may answer."""

    was_sent: bool = True
    """Whether the call may have reached the store."""


class StoreTimeout(StoreError):
    """The store missed its deadline; the call may or may not have been charged."""

    code: ClassVar[str] = "store-timeout"
    transient = True


class StoreUnavailable(StoreError):
    """The store cannot be reached or refuses work."""

    code: ClassVar[str] = "store-unavailable"
    transient = True


class StoreKeyError(StoreError):
    """A store has data under one key that Headgate did not write."""

    code: ClassVar[str] = "store-key"


class RateLimited(HeadgateError):
    """A decorated call, a `with` block or a client's call was refused; `decision` states by which limit, until when.

    `hit`, `peek`, `acquire` and `reserve` do not raise it: they return the refusal.
    """

    code: ClassVar[str] = "rate-limited"

    def __init__(self, decision: Decision) -> None:
        super().__init__(_refusal(decision))
        self.decision = decision

    def __reduce__(self) -> tuple[type[RateLimited], tuple[Decision]]:
        return (type(self), (self.decision,))


class Held(HeadgateError):
    """A client did not send a call: the server asked for a wait that is longer than the call's timeout.

    `retry_after` is that wait in seconds.
    """

    code: ClassVar[str] = "held"

    def __init__(self, retry_after: float) -> None:
        super().__init__(f"not sent: the server said to wait, for {retry_after:.3f} s more")
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[type[Held], tuple[float]]:
        return (type(self), (self.retry_after,))


class Throttled(HeadgateError):
    """A client did not send a call: its server refuses most of them. `chance` is the probability of that, up to 1."""

    code: ClassVar[str] = "throttled"

    def __init__(self, chance: float) -> None:
        super().__init__(f"not sent: the server refuses most calls, and {chance:.0%} of them are not tried")
        self.chance = chance

    def __reduce__(self) -> tuple[type[Throttled], tuple[float]]:
        return (type(self), (self.chance,))


def check_flag(name: str, value: object) -> bool:
    """Check that a setting is True or False; raises ConfigError for anything else.

    Text such as "false", which an environment variable gives, would count as true.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is True or False, not {value!r:.40}")
    return value


def brief_number(value: int) -> str:
    """A number for a message: a huge one by its size, since Python refuses to print the longest."""
    return str(value) if value.bit_length() <= 128 else f"a number of {value.bit_length()} bits"


def kind_of(value: object) -> str:
    """The kind of an invalid value, for a message: "a float", "None", never the value, which may be a secret."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[:1] in 'aeioAEIO' else 'a'} {name}"


def without_credentials(text: str) -> str:
    """A text without the users and passwords of URLs in it."""
    return _WORD.sub(_word_without_credentials, text) if "://" in text else text


def _word_without_credentials(word: re.Match[str]) -> str:
    scheme, mark, rest = word[0].partition("://")
    _, at, host = rest.rpartition("@")
    return scheme + mark + _PASSWORD.sub(r"\1***", f"***@{host}" if at else rest)


def printable(text: str) -> str:
    """A text from outside, without the control characters that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def _excerpt(text: str, position: int) -> tuple[str, int]:
    """A printable window of `text` around `position`, and the column of `position` in it."""
    start = max(0, min(position - _EXCERPT // 2, len(text) - _EXCERPT))
    return printable(text[start : start + _EXCERPT]), position - start


def _refusal(decision: Decision) -> str:
    if decision.retry_after is None:
        return "rate limited: this cost can never pass, waiting does not help"
    return f"rate limited: retry after {decision.retry_after:.3f} s"
