"""What stands behind a middleware, as far as that can be seen when it is made. No framework is imported."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isclass
from typing import Any

_DEEPEST = 32


def behind(app: Any) -> Iterator[object]:
    """What is behind a middleware: those that keep what they stand before as `app`, and those that are to be built."""
    for _ in range(_DEEPEST):
        if app is None:
            return
        yield app
        for planned in getattr(app, "user_middleware", ()):  # of Starlette, before its first request
            yield getattr(planned, "cls", planned)
        config = getattr(app, "cors_config", None)  # of Litestar
        if config is not None:
            yield config
        app = getattr(app, "app", None)


def is_before(kind: type, app: Any) -> bool:
    """Whether a middleware of this kind is an application, stands behind it, or is to be built there."""
    return any(isinstance(part, kind) or (isclass(part) and issubclass(part, kind)) for part in behind(app))


def root_path_of(app: Any) -> str:
    """The root path that FastAPI behind a middleware writes into each scope, "" where there is none.

    It is known by `root_path_in_servers`: what Quart calls its `root_path` is a folder.
    """
    told = (getattr(part, "root_path", "") for part in behind(app) if hasattr(part, "root_path_in_servers"))
    return next(told, "") or ""
