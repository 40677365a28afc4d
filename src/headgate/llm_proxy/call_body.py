"""The body of a call, parsed in one way only, and the request for usage that is added to it.

The proxy passes on the client's bytes as they are, so a provider's parser must read the same in them as this one.
Whatever parsers read in different ways (a field twice, in another case, another encoding) is refused.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple, NoReturn

from headgate.errors import ArgumentError
from headgate.llm.call_subject import check_model
from headgate.llm.deciding_fields import check_field_case
from headgate.llm.dialects.paths import Dialect

_STREAMED = ("chat", "completions", "responses", "messages")
_USAGE_OPTION = b'"stream_options":{"include_usage":true},'

_MOST_LEVELS = 200
"""The deepest nesting of a body, so that all work on it is bounded; the schemas of tools are far less deep."""


class CallBody(NamedTuple):
    """A parsed body."""

    raw: bytes
    fields: dict[str, Any]
    model: str
    is_stream: bool
    asks_usage: bool
    """Whether the client itself asked for usage, and so expects an event that contains it."""

    def to_send(self, dialect: Dialect, *, request_usage: bool) -> bytes:
        """The bytes for the provider; with `request_usage` they request the usage of a stream of (chat) completions."""
        if not request_usage or not self.is_stream or self.asks_usage or not dialect.reports_usage_on_request:
            return self.raw
        options = self.fields.get("stream_options")
        if "stream_options" not in self.fields:
            start = self.raw.index(b"{") + 1
            return self.raw[:start] + _USAGE_OPTION + self.raw[start:]
        options = {**(options if isinstance(options, dict) else {}), "include_usage": True}
        return json.dumps({**self.fields, "stream_options": options}, ensure_ascii=False).encode(
            "utf-8", "surrogatepass"
        )

    def dropped(self) -> CallBody:
        """The same body without its bytes and fields."""
        return CallBody(b"", {}, self.model, self.is_stream, self.asks_usage)


def read_body(raw: bytes, dialect: Dialect) -> CallBody:
    """Parse the body of a call. Raises ArgumentError for an invalid or ambiguous body."""
    try:
        fields = _decoder.decode(raw.decode())
    except UnicodeDecodeError as error:
        raise ArgumentError(f"the body is no UTF-8: byte {error.start} is {raw[error.start]:#04x}") from None
    except json.JSONDecodeError as error:
        raise ArgumentError(f"the body is no JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise ArgumentError("the body is nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise ArgumentError(f"the body is no JSON that can be read: {error}") from None
    if raw.count(b"[") + raw.count(b"{") > _MOST_LEVELS and _is_deeper(fields, _MOST_LEVELS):
        raise ArgumentError("the body is nested too deeply")
    if not isinstance(fields, dict):
        raise ArgumentError(f'the body is an object such as {{"model": ...}}, not {_kind(fields)}')
    check_field_case(fields)
    model = fields.get("model")
    if not isinstance(model, str) or not model:
        raise ArgumentError(f"model is the name of a model, not {_kind(model)}")
    check_model(model)  # also of free calls: a provider's limits are stored under this name
    stream = fields.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise ArgumentError(f"stream is true or false, not {_kind(stream)}")
    options = fields.get("stream_options")
    if options is not None and not isinstance(options, dict):
        raise ArgumentError(f"stream_options is an object, not {_kind(options)}")
    include_usage = (options or {}).get("include_usage")
    if include_usage is not None and not isinstance(include_usage, bool):
        raise ArgumentError(f"stream_options.include_usage is true or false, not {_kind(include_usage)}")
    return CallBody(raw, fields, model, bool(stream) and dialect.name in _STREAMED, bool(include_usage))


def _is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are nested on more than this number of levels."""
    level = [value]
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return True


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        earlier_names: set[str] = set()
        name = next(name for name, _ in pairs if name in earlier_names or earlier_names.add(name))  # type: ignore[func-returns-value]
        raise ArgumentError(f"the body has the field {name[:40]!r} twice in one object")
    return fields


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
