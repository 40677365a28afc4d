"""Searches of the web that a provider makes for a call, each for a fee: how many a body allows, and an answer tells.

What is not told is not nothing: where a body sets no bound a stated number is held, and where an answer does not tell
how often was searched, as most of chat completions do not, what is held counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headgate.llm.model_table import own_name
from headgate.llm.usage import Usage, field_of
from headgate.policy.llm_settings import LlmSettings

FIELDS = ("tools", "web_search_options", "plugins")
"""What a body may ask for searches by."""

_PLUGIN = "web"
"""The plugin of OpenRouter that searches the web once for each call; `:online` after a model's name is short for it."""

_NATIVE = "native"
"""The engine of that plugin by which the model itself searches, as often as it likes."""

_TYPES = ("web_search", "browser_search", "google_search")
"""How the types of tools begin that search the web, or what they are called by; a router's name may come before it, as
in `openrouter:web_search`."""

_OF_MESSAGES = re.compile(r"web_search_[0-9]{8}")
"""Types of tools that only Anthropic's messages have."""

_SEARCHING_MODELS = re.compile(r"-search-(preview|api)(-|$)|:online$")
"""In the names of models that search the web for each call, whatever its body says."""

_CALL = "web_search_call"
_FREE_ACTIONS = frozenset({"open_page", "find_in_page", "find"})
"""Of what such a call does: only searches have a fee. What is not known counts as one."""

MOST_SEARCHES = 1000


def least_searches(model: str) -> int:
    """How many searches each call of a model makes: 1 of those that always search, such as `gpt-4o-search-preview`."""
    return 1 if _SEARCHING_MODELS.search(own_name(model)) else 0


def most_searches(body: Mapping[str, Any], settings: LlmSettings, dialect: str = "") -> int:
    """How many searches are held for a body of a dialect, "" where that is not known.

    Chat completions with `web_search_options` search once, as with OpenRouter's plugin, unless its engine is the
    model's own; a tool of messages as often as its `max_uses` says, any other `web_searches` of the settings; responses
    make no more than `max_tool_calls` of calls in all. In dialects that do not have these fields, providers pass over
    them, so they bound nothing. Where the dialect is not known, the type of a tool and the absence of `messages` tell.
    """
    found = 0 if body.get("web_search_options") is None else 1
    plugins = body.get("plugins")
    for plugin in plugins if isinstance(plugins, list | tuple) else ():
        if field_of(plugin, "id") == _PLUGIN and field_of(plugin, "enabled") is not False:
            found += settings.web_searches if field_of(plugin, "engine") == _NATIVE else 1
    tools = body.get("tools")
    for tool in tools if isinstance(tools, list | tuple) else ():
        if _searches(tool):
            most = _number(field_of(tool, "max_uses")) if _has_uses(tool, dialect) else None
            found += settings.web_searches if most is None else most
    is_response = dialect == "responses" if dialect else "messages" not in body
    bound = _number(body.get("max_tool_calls")) if is_response else None
    return min(found, MOST_SEARCHES if bound is None else bound)


def with_searches(usage: Usage, answer: Any, held: int) -> Usage:
    """The usage that a whole answer tells, with the searches that it shows: those of responses are items of it."""
    if field_of(answer, "choices") is not None:
        return usage._replace(web_searches=usage.web_searches or held)
    return with_shown(usage, answer)


def with_shown(usage: Usage, response: Any) -> Usage:
    """The usage of a response, with the searches among its items."""
    items = field_of(response, "output")
    shown = sum(_is_search(item) for item in (items if isinstance(items, list) else ()))
    return usage._replace(web_searches=max(usage.web_searches, shown)) if shown else usage


def _is_search(item: Any) -> bool:
    """Whether an item of a response is a search of the web, and not a look at a page that one has found."""
    if field_of(item, "type") != _CALL:
        return False
    kind = field_of(field_of(item, "action"), "type")
    return not (isinstance(kind, str) and kind in _FREE_ACTIONS)


def _searches(tool: Any) -> bool:
    kind = field_of(tool, "type")
    if isinstance(kind, str) and kind.rpartition(":")[2].startswith(_TYPES):
        return True
    return isinstance(tool, Mapping) and any(name in tool for name in _TYPES)


def _has_uses(tool: Any, dialect: str) -> bool:
    """Whether a tool has `max_uses`."""
    kind = field_of(tool, "type")
    return dialect == "messages" if dialect else isinstance(kind, str) and _OF_MESSAGES.fullmatch(kind) is not None


def _number(told: Any) -> int | None:
    """A number of uses, None for what is none."""
    is_number = isinstance(told, int) and not isinstance(told, bool) and told >= 0
    return min(told, MOST_SEARCHES) if is_number else None
