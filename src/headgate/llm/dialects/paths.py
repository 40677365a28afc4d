"""The dialect of a path. A path that is not listed has none: passing on unknown paths is how budgets get bypassed."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from headgate.errors import ArgumentError, kind_of

Family = Literal["openai", "anthropic"]


class Dialect(NamedTuple):
    """A kind of call: its name, the family of its formats, and the path and method by which a provider takes it."""

    name: str
    family: Family
    path: str
    method: Literal["GET", "POST"] = "POST"
    is_charged: bool = True
    """Whether a call costs tokens. Lists of models and counts of tokens cost none."""

    reports_usage_on_request: bool = False
    """Whether its streams report usage only where the client requests it."""


CHAT = Dialect("chat", "openai", "/v1/chat/completions", reports_usage_on_request=True)
COMPLETIONS = Dialect("completions", "openai", "/v1/completions", reports_usage_on_request=True)
RESPONSES = Dialect("responses", "openai", "/v1/responses")
EMBEDDINGS = Dialect("embeddings", "openai", "/v1/embeddings")
MESSAGES = Dialect("messages", "anthropic", "/v1/messages")
COUNT_TOKENS = Dialect("count_tokens", "anthropic", "/v1/messages/count_tokens", is_charged=False)
MODELS = Dialect("models", "openai", "/v1/models", "GET", is_charged=False)

DIALECTS = {
    dialect.path: dialect
    for dialect in (CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, MESSAGES, COUNT_TOKENS, MODELS)
}  # fmt: skip

_NAMES = tuple(dialect.name for dialect in DIALECTS.values())

_VERSION = re.compile(r"/v[0-9]+[a-z0-9]*(?=/|$)")
"""A version in the path of a base URL, as in `/v1beta/openai` and `/api/paas/v4`."""

_ONE_MODEL = re.compile(r"/v1/models/[A-Za-z0-9][A-Za-z0-9_.:@-]{0,199}")


def dialect_of(path: str, *, family: Family = "openai") -> Dialect | None:
    """The dialect of a path, with or without `/v1` and a query; None for a path that is not served.

    Both families list models by one path: `family` is the one whose formats the caller expects, see `family_of`.
    """
    path = path.partition("?")[0]
    if not path.startswith("/v1/"):
        path = f"/v1{path}"
    dialect = DIALECTS.get(path)
    if dialect is None and _ONE_MODEL.fullmatch(path):
        dialect = MODELS._replace(path=path)
    if dialect is not None and dialect.name == MODELS.name:
        return dialect._replace(family=family)
    return dialect


def url_at(base_url: str, path: str) -> str:
    """The URL by which a provider takes the path of a dialect. Its base URL may end with `/v1` or before it.

    To one with another version in its path the path is appended without `/v1`, as OpenAI's clients do. Anthropic's
    clients append `/v1` to each.
    """
    base_url = base_url.rstrip("/")
    has_version = (
        base_url.endswith("/v1") if path.startswith(MESSAGES.path) else _VERSION.search(urlsplit(base_url).path)
    )
    return base_url + (path.removeprefix("/v1") if has_version else path)


def check_dialect(name: object) -> str:
    """The name of a dialect that a caller gives, "" for None. Raises ArgumentError for any other value."""
    if name is None or name == "":
        return ""
    if not isinstance(name, str) or name not in _NAMES:
        shown = repr(name)[:60] if isinstance(name, str) else kind_of(name)
        close = get_close_matches(name, _NAMES, n=1) if isinstance(name, str) else ()
        hint = f'; did you mean "{close[0]}"?' if close else ""
        raise ArgumentError(f"no dialect is named {shown}: there are {', '.join(_NAMES)}{hint}")
    return name


def family_of(*, has_anthropic_version: bool) -> Family:
    """The family of a caller whose path is that of both: only Anthropic's clients send `anthropic-version`."""
    return "anthropic" if has_anthropic_version else "openai"
