"""Warns about a limit outside of a CORS middleware, where no limit should be.

A refusal that the CORS middleware never sees has no `Access-Control-Allow-Origin`: the browser tells its page that the
request failed, not that it was refused. No framework is imported; a middleware is recognised by its name.
"""

from __future__ import annotations

import logging
from typing import Any

from headgate.http.server.inner_applications import parts_behind

log = logging.getLogger("headgate")


def warn_outside_of_cors(limit: object, app: Any) -> None:
    """Log a warning where the application behind a limit has a CORS middleware of its own."""
    found = next(filter(is_cors, parts_behind(app)), None)
    if found is not None:
        log_outside_of_cors(type(limit).__name__, found)


def log_outside_of_cors(limit: str, found: object) -> None:
    """Log the warning: which limit is outside of which middleware, and the right order."""
    log.warning(
        "%s is outside of %s, so its refusals have no CORS headers and no page of another origin can read them: "
        "put %s outside, where it sees every response",
        limit,
        *[_name(found)] * 2,
    )


def is_cors(part: object) -> bool:
    """Whether an object is a CORS middleware, or the settings of one, by its name."""
    return "cors" in _name(part).lower()


def _name(part: object) -> str:
    if isinstance(part, str):  # a dotted name, as in settings
        return part.rpartition(".")[2]
    named = part if hasattr(part, "__qualname__") else type(part)
    return str(getattr(named, "__qualname__", named))
