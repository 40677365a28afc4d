"""The servers of the applications under load; each is run in a process of its own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any

import gunicorn.app.base  # type: ignore[import-untyped]
import uvicorn


def serve(server: str, module: str, function: str, a_minute: int, listener: socket.socket) -> None:
    """Serve the application that a function of a module here builds, on the first core, until SIGTERM."""

    def build() -> Any:
        application = getattr(import_module(f"benchmarks.web_apps.{module}"), function)(a_minute)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        return application

    if server == "gunicorn":
        Gunicorn(build, listener).run()
    else:
        config = uvicorn.Config(build(), loop="uvloop", http="httptools", access_log=False, log_level="error")
        uvicorn.Server(config).run(sockets=[listener])


class Gunicorn(gunicorn.app.base.BaseApplication):  # type: ignore[misc]
    """gunicorn with one worker of four threads, in which the application is built."""

    def __init__(self, build: Callable[[], Any], listener: socket.socket) -> None:
        self.build = build
        self.options = {
            "bind": f"fd://{listener.fileno()}",
            "worker_class": "gthread",
            "threads": 4,
            "loglevel": "critical",
            "control_socket_disable": True,
        }
        super().__init__()

    def load_config(self) -> None:
        for name in self.options.keys() & self.cfg.settings.keys():
            self.cfg.set(name, self.options[name])

    def load(self) -> Any:
        return self.build()
