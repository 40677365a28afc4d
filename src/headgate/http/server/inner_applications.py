"""The applications and middlewares behind a middleware, as far as they are known when it is made.

No framework is imported.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import isclass
from typing import Any

_DEEPEST = 32


def parts_behind(app: Any) -> Iterator[object]:
    """Yield the parts behind a middleware: each `app`, and the middlewares that are yet to be built."""
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
    """Whether an application is a middleware of this kind, or has one behind it, built or yet to be built."""
    return any(isinstance(part, kind) or (isclass(part) and issubclass(part, kind)) for part in parts_behind(app))


def root_path_of(app: Any) -> str:
    """Return the root path that FastAPI behind a middleware writes into each scope, "" where there is none.

    FastAPI is recognised by `root_path_in_servers`: the `root_path` of Quart is a folder.
    """
    root_paths = (getattr(part, "root_path", "") for part in parts_behind(app) if hasattr(part, "root_path_in_servers"))
    return next(root_paths, "") or ""
