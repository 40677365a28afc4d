"""The base classes of the middlewares that servers and frameworks call.

With the native core, a request that passes at once runs no Python code here; all others do, as all do without it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from headgate import core
from headgate.http.server.asgi_messages import Receive, Scope, Send
from headgate.http.server.wsgi_messages import Environ, StartResponse

if TYPE_CHECKING:
    from headgate.http.server.enforcer import Enforcer


class PythonAsgiCallable:
    """The base of an ASGI middleware. A call returns a coroutine, which may be the application's own."""

    _direct: Enforcer | None
    """The enforcer whose native gate decides first; None where Python has to find the enforcer of a request."""

    if TYPE_CHECKING:
        app: Callable[[Scope, Receive, Send], Awaitable[None]]
        """The application that gets the requests that pass."""

        _judge: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
        _judge_rest: Callable[[Scope, Receive, Send, Enforcer, Any], Coroutine[Any, Any, None]]
        """`_judge` with the enforcer's native decision, None where there is none."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        return self._judge(scope, receive, send)


class PythonWsgiCallable:
    """The base of a WSGI middleware."""

    _direct: Enforcer | None
    """See `PythonAsgiCallable`."""

    if TYPE_CHECKING:
        app: Callable[[Environ, StartResponse], Iterable[bytes]]
        _judge: Callable[[Environ, StartResponse], Iterable[bytes]]
        _judge_rest: Callable[[Environ, StartResponse, Enforcer, Any], Iterable[bytes]]

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return self._judge(environ, start_response)


if TYPE_CHECKING or core.native is None:
    AsgiCallable = PythonAsgiCallable
    WsgiCallable = PythonWsgiCallable
else:
    AsgiCallable = core.native.AsgiCallable
    WsgiCallable = core.native.WsgiCallable


def mark_coroutine_function(
    own: AsgiCallable, call: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
) -> None:
    """Mark a middleware's call as a coroutine function: servers check the object's attribute `__call__`.

    Python itself calls the method of the class. `call` does the same as that; a subclass with a call of its own has to
    mark itself.
    """
    if type(own).__call__ is AsgiCallable.__call__:
        vars(own)["__call__"] = call
