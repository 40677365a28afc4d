"""The body of a call: what it says, read in one way only, and the question for usage that is added to it.

What passes the proxy is what the client sent, to the byte, so a provider's reader must understand what this one does.
What readers understand in different ways (a field twice, in other letters, another encoding) is refused.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, NoReturn

from headgate.errors import ArgumentError
from headgate.llm.call_subject import check_model
from headgate.llm.deciding_fields import check_letters
from headgate.llm.dialects.paths import Dialect

_STREAMED = ("chat", "completions", "responses", "messages")
_ASKING = b'"stream_options":{"include_usage":true},'

_MOST_LEVELS = 200
"""A body is nested no deeper, so that whatever is done with it ends; no tool's schema comes near."""


class CallBody(NamedTuple):
    """What a body says."""

    raw: bytes
    told: dict[str, Any]
    model: str
    is_stream: bool
    asks_usage: bool
    """Whether the client itself asked for usage, and so expects an event that tells it."""

    def to_send(self, dialect: Dialect, *, ask: bool) -> bytes:
        """What is sent to the provider; with `ask` a stream of chat completions or completions tells its usage."""
        if not ask or not self.is_stream or self.asks_usage or not dialect.tells_usage_if_asked:
            return self.raw
        options = self.told.get("stream_options")
        if "stream_options" not in self.told:
            start = self.raw.index(b"{") + 1
            return self.raw[:start] + _ASKING + self.raw[start:]
        options = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return json.dumps({**self.told, "stream_options": options}, ensure_ascii=False).encode("utf-8", "surrogatepass")

    def dropped(self) -> CallBody:
        """The same without what was sent."""
        return CallBody(b"", {}, self.model, self.is_stream, self.asks_usage)


def read_body(raw: bytes, dialect: Dialect) -> CallBody:
    """What the body of a call says. Raises ArgumentError for what is no call, or can be read in several ways."""
    try:
        told = _decoder.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise ArgumentError(f"the body is no UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        raise ArgumentError(f"the body is no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ArgumentError("the body is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise ArgumentError(f"the body is no JSON that can be read: {error}") from None
    if raw.count(b"[") + raw.count(b"{") > _MOST_LEVELS and _is_deeper(told, _MOST_LEVELS):
        raise ArgumentError("the body is nested too deeply")
    if not isinstance(told, dict):
        raise ArgumentError(f'the body is an object such as {{"model": ...}}, not {_kind(told)}')
    check_letters(told)
    model = told.get("model")
    if not isinstance(model, str) or not model:
        raise ArgumentError(f"model is the name of a model, not {_kind(model)}")
    check_model(model)  # also of what costs nothing: it is kept, as the name of what a provider says of its limits
    stream = told.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ArgumentError(f"stream is true or false, not {_kind(stream)}")
    options = told.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ArgumentError(f"stream_options is an object, not {_kind(options)}")
    asks = (options or {}).get("include_usage")
    if asks is not None and not isinstance(asks, bool):
        raise ArgumentError(f"stream_options.include_usage is true or false, not {_kind(asks)}")
    return CallBody(raw, told, model, bool(stream) and dialect.name in _STREAMED, bool(asks))


def _is_deeper(told: Any, levels: int) -> bool:
    """Whether lists and objects are in one another on more than so many levels."""
    level = [told]
    for _ in range(levels):
        level = [
            inner
            for each in level
            for inner in (each.values() if type(each) is dict else each)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        name = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ArgumentError(f"the body has the field {name[:40]!r} twice in one object")
    return made


def _no_constant(name: str) -> NoReturn:
    raise ArgumentError(f"the body holds {name}, which is no JSON")


_decoder = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_no_constant)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    names = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return "an empty text" if value == "" else names.get(type(value), "something else")
