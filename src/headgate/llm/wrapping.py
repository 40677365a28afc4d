"""Clients of providers that hold: `gate.wrap(OpenAI(), user="ann")` is a client like the one that it is given.

Whatever has the client of httpx or httpx2 that it sends with as `_client`, and a method `copy(http_client=...)`, can be
wrapped, as the clients of the packages `openai` and `anthropic` have, and such a client itself.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any, TypeVar

from headgate.errors import ConfigError
from headgate.llm.held_requests import Who
from headgate.llm.held_transport import AsyncHeldTransport, HeldTransport

C = TypeVar("C")

_LIBRARIES = ("httpx", "httpx2")


def wrapped(client: C, gate: Any, who: Mapping[str, Who], *, is_async: bool) -> C:
    """The client whose calls are held by a gate. Raises ConfigError for what cannot be wrapped."""
    told: Any = client
    found = _library(told)
    if found is not None:
        sends: Any = told
    else:
        sends = getattr(told, "_client", None)
        found = _library(sends)
    if found is None or (sends is not told and not hasattr(told, "copy")):
        raise ConfigError(
            "what is wrapped is a client of the packages openai or anthropic, or one of httpx or httpx2, "
            f"not a {type(client).__module__}.{type(client).__name__}"
        )
    library, asynchronous = found
    if asynchronous != is_async:
        gates = ("AsyncLlmGate", "an asynchronous") if asynchronous else ("LlmGate", "a")
        raise ConfigError(f"{gates[1]} client, {type(client).__name__}, is wrapped by {gates[0]}")
    around = AsyncHeldTransport if asynchronous else HeldTransport

    def held(transport: Any) -> Any:
        return None if transport is None else around(library, transport, gate, who)

    # A copy sends as the client does: by its proxies, with its base URL, headers, hooks and deadlines.
    holding = copy.copy(sends)
    holding._transport = held(sends._transport)
    holding._mounts = {pattern: held(transport) for pattern, transport in sends._mounts.items()}
    holding._sends_for = sends  # which would close the connections if nothing referred to it
    if sends is told:
        result: C = holding
        return result
    result = told.copy(http_client=holding)
    return result


def _library(client: Any) -> tuple[ModuleType, bool] | None:
    """The library of an HTTP client, and whether it is for asyncio; None for what is no such client."""
    for kind in type(client).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in _LIBRARIES and kind.__name__ in ("Client", "AsyncClient"):
            return sys.modules[package], kind.__name__ == "AsyncClient"
    return None
