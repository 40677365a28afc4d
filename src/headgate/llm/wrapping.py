"""Clients of providers whose calls are held: `gate.wrap(OpenAI(), user="ann")` returns a client like its argument.

A client of httpx or httpx2 can be wrapped, and any client that has such a client as `_client` and a method
`copy(http_client=...)`, as those of the packages `openai` and `anthropic` do.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeVar

from headgate.errors import ConfigError
from headgate.llm.held_requests import CallerSource
from headgate.llm.held_transport import AsyncHeldTransport, HeldTransport

C = TypeVar("C")

_LIBRARIES = ("httpx", "httpx2")


def wrapped(client: C, gate: Any, caller: Mapping[str, CallerSource], *, is_async: bool) -> C:
    """The client whose calls are held by a gate. Raises ConfigError for what cannot be wrapped."""
    wrapped_client: Any = client
    found = _library(wrapped_client)
    if found is not None:
        http_client: Any = wrapped_client
    else:
        http_client = getattr(wrapped_client, "_client", None)
        found = _library(http_client)
    if found is None or (http_client is not wrapped_client and not hasattr(wrapped_client, "copy")):
        raise ConfigError(
            "what is wrapped is a client of the packages openai or anthropic, or one of httpx or httpx2, "
            f"not a {type(client).__module__}.{type(client).__name__}"
        )
    library, asynchronous = found
    if asynchronous != is_async:
        gates = ("AsyncLlmGate", "an asynchronous") if asynchronous else ("LlmGate", "a")
        raise ConfigError(f"{gates[1]} client, {type(client).__name__}, is wrapped by {gates[0]}")
    transport_class = AsyncHeldTransport if asynchronous else HeldTransport

    def held(transport: Any) -> Any:
        return None if transport is None else transport_class(library, transport, gate, caller)

    # A copy sends as the client does: by its proxies, with its base URL, headers, hooks and deadlines.
    holding = copy.copy(http_client)
    holding._transport = held(http_client._transport)
    holding._mounts = {pattern: held(transport) for pattern, transport in http_client._mounts.items()}
    holding._sends_for = http_client  # which would close the connections if nothing referred to it
    if http_client is wrapped_client:
        result: C = holding
        return result
    result = wrapped_client.copy(http_client=holding)
    return result


def _library(client: Any) -> tuple[ModuleType, bool] | None:
    """The library of an HTTP client, and whether it is for asyncio; None for what is no such client."""
    for kind in type(client).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _LIBRARIES and kind.__name__ in ("Client", "AsyncClient"):
            return sys.modules[package], kind.__name__ == "AsyncClient"
    return None
