"""Web searches that a provider makes for a call, each for a fee: how many a body allows, and an answer reports.

Unknown is not zero: where a body sets no bound a configured number is held, and where an answer does not report its
searches, as most chat completions do not, what is held counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headgate.llm.model_table import own_name
from headgate.llm.usage import Usage, field_of
from headgate.policy.llm_settings import LlmSettings

FIELDS = ("tools", "web_search_options", "plugins")
"""The fields in which a body may request searches."""

_PLUGIN = "web"
"""The plugin of OpenRouter that searches the web once for each call; `:online` after a model's name is short for it."""

_NATIVE = "native"
"""The engine of that plugin by which the model itself searches, as often as it likes."""

_TYPES = ("web_search", "browser_search", "google_search")
"""The prefixes of the types, or the fields, of tools that search the web; a router's name may precede it, as in
`openrouter:web_search`."""

_MESSAGES_TYPES = re.compile(r"web_search_[0-9]{8}")
"""Types of tools that only Anthropic's messages have."""

_SEARCHING_MODELS = re.compile(r"-search-(preview|api)(-|$)|:online$")
"""Matches the names of models that search the web for each call, whatever its body says."""

_SEARCH_ITEM = "web_search_call"
_FREE_ACTIONS = frozenset({"open_page", "find_in_page", "find"})
"""The actions of such an item that cost no fee: only searches do. An unknown action counts as a search."""

MOST_SEARCHES = 1000


def least_searches(model: str) -> int:
    """The searches of each call of a model: 1 for models that always search, such as `gpt-4o-search-preview`."""
    return 1 if _SEARCHING_MODELS.search(own_name(model)) else 0


def most_searches(body: Mapping[str, Any], settings: LlmSettings, dialect: str = "") -> int:
    """The number of searches to hold for a body of a dialect, "" where that is not known.

    Chat completions with `web_search_options` search once, as do those with OpenRouter's plugin, unless its engine is
    the model's own; a tool of messages searches as often as its `max_uses`, any other as often as `web_searches` of the
    settings; responses make at most `max_tool_calls` in all. Providers ignore these fields in other dialects, so there
    they bound nothing. An unknown dialect is inferred from the type of a tool and the absence of `messages`.
    """
    searches = 0 if body.get("web_search_options") is None else 1
    plugins = body.get("plugins")
    for plugin in plugins if isinstance(plugins, list | tuple) else ():
        if field_of(plugin, "id") == _PLUGIN and field_of(plugin, "enabled") is not False:
            searches += settings.web_searches if field_of(plugin, "engine") == _NATIVE else 1
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list | tuple) else ():
        if _is_search_tool(tool):
            most_uses = _number(field_of(tool, "max_uses")) if _has_max_uses(tool, dialect) else None
            searches += settings.web_searches if most_uses is None else most_uses
    is_response = dialect == "responses" if dialect else "messages" not in body
    bound = _number(body.get("max_tool_calls")) if is_response else None
    return min(searches, MOST_SEARCHES if bound is None else bound)


def with_searches(usage: Usage, answer: Any, held: int) -> Usage:
    """The usage that a whole answer reports, with the searches that it shows: responses have them as items."""
    if field_of(answer, "choices") is not None:
        return usage._replace(web_searches=usage.web_searches or held)
    return with_shown(usage, answer)


def with_shown(usage: Usage, response: Any) -> Usage:
    """The usage of a response, with the searches among its items."""
    items = field_of(response, "output")
    shown = sum(_is_search(item) for item in (items if isinstance(items, list) else ()))
    return usage._replace(web_searches=max(usage.web_searches, shown)) if shown else usage


def _is_search(item: Any) -> bool:
    """Whether an item of a response is a web search, rather than the opening of a page that one has found."""
    if field_of(item, "type") != _SEARCH_ITEM:
        return False
    kind = field_of(field_of(item, "action"), "type")
    return not (isinstance(kind, str) and kind in _FREE_ACTIONS)


def _is_search_tool(tool: Any) -> bool:
    kind = field_of(tool, "type")
    if isinstance(kind, str) and kind.rpartition(":")[2].startswith(_TYPES):
        return True
    return isinstance(tool, Mapping) and any(name in tool for name in _TYPES)


def _has_max_uses(tool: Any, dialect: str) -> bool:
    """Whether a tool has `max_uses`."""
    kind = field_of(tool, "type")
    return dialect == "messages" if dialect else isinstance(kind, str) and _MESSAGES_TYPES.fullmatch(kind) is not None


def _number(value: Any) -> int | None:
    """A number of uses, None for an invalid one."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return min(value, MOST_SEARCHES) if is_number else None
