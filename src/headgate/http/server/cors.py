"""Whether a limit stands outside of what answers browsers of other origins (CORS), as none should.

A refusal that such a middleware never sees has no `Access-Control-Allow-Origin`: a browser tells its page that the
request failed, not that it came too often. No framework is imported; a middleware is known by its name.
"""

from __future__ import annotations

import logging
from typing import Any

from headgate.http.server.behind import behind

log = logging.getLogger("headgate")


def warn_outside_of_cors(limit: object, app: Any) -> None:
    """Log a warning where the application behind a limit has a CORS middleware of its own."""
    found = next(filter(is_cors, behind(app)), None)
    if found is not None:
        log_outside_of_cors(type(limit).__name__, found)


def log_outside_of_cors(limit: str, found: object) -> None:
    """Log the warning: what stands outside of what, and what is right."""
    log.warning(
        "%s stands outside of %s, so its refusals have no CORS headers and no page of another origin can read them: "
        "put %s outside, where it sees every response",
        limit,
        *[_name(found)] * 2,
    )


def is_cors(part: object) -> bool:
    """Whether something is a middleware for CORS, by its name; or settings of one."""
    return "cors" in _name(part).lower()


def _name(part: object) -> str:
    if isinstance(part, str):  # as settings name it
        return part.rpartition(".")[2]
    named = part if hasattr(part, "__qualname__") else type(part)
    return str(getattr(named, "__qualname__", named))
