"""Where servers and frameworks come in: the bases of what they call.

Natively a request that passes at once enters no code of Python here on its way; all others do, as all do without a
native core.
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
    """The base of a middleware of ASGI. A call gives a coroutine, which may be the application's own."""

    _direct: Enforcer | None
    """The enforcer whose native gate is asked first; None where Python is to find out which one judges a request."""

    if TYPE_CHECKING:
        app: Callable[[Scope, Receive, Send], Awaitable[None]]
        """What a request is handed to that passes."""

        _judge: Callable[[Scope, Receive, Send], Coroutine[Any, Any, None]]
        _judge_rest: Callable[[Scope, Receive, Send, Enforcer, Any], Coroutine[Any, Any, None]]
        """`_judge` for what the enforcer has decided natively, None where it has not."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Coroutine[Any, Any, None]:
        return self._judge(scope, receive, send)


class PythonWsgiCallable:
    """The base of a middleware of WSGI."""

    _direct: Enforcer | None
    """As that of `PythonAsgiCallable`."""

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
    """Have a middleware say that its call is to be awaited: servers ask the attribute of the object.

    Python itself calls what the class has. `call` does the same as that; a subclass that has a call of its own says
    so itself.
    """
    if type(own).__call__ is AsgiCallable.__call__:
        vars(own)["__call__"] = call
