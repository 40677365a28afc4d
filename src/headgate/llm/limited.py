"""Functions that call a model and return its answer or its stream: their calls are held, then settled by the answer."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, TypeVar

from headgate.collector import call_outside
from headgate.drive import begun
from headgate.errors import ConfigError
from headgate.llm.call import AsyncCall, Call, close, close_async
from headgate.llm.inputs import with_input_counted

F = TypeVar("F", bound=Callable[..., Any])

FieldSource = str | Callable[..., str] | None
"""A text, or a function that returns it when called with the arguments of the decorated function."""

BodyOf = Callable[..., Mapping[str, Any]]

_OMITTED = ("Omit", "NotGiven")
"""The types by which the packages of OpenAI and Anthropic mark arguments that are not sent."""

_EXTRA_BODY = "extra_body"
"""The argument in which these packages take further fields of the body, which override its own."""


class LimitedCalls:
    """Holds and settles the calls of decorated functions."""

    def __init__(
        self, gate: Any, model: FieldSource, caller: Mapping[str, FieldSource], body: BodyOf | None, *, is_async: bool
    ) -> None:
        self._gate = gate
        self._model = model
        self._caller = caller
        self._body = body
        self._is_async = is_async

    def around(self, function: F) -> F:
        """Return the function with its calls held; raises ConfigError for a function of the other colour."""
        if not callable(function) or inspect.isclass(function):
            raise ConfigError(f"limited goes around a function or a method, not {function!r:.60}")
        is_stream = inspect.isasyncgenfunction(function)
        is_async = inspect.iscoroutinefunction(function) or is_stream
        if self._is_async and not is_async:  # methods of clients are plain functions that wrap coroutine functions
            is_async = inspect.iscoroutinefunction(inspect.unwrap(function))
        if is_async != self._is_async:
            name = _name_of(function)
            sync = "begins with def: use LlmGate, or gate.wrap(client) for a method of an asynchronous client"
            other = sync if self._is_async else "begins with async def: use AsyncLlmGate"
            raise ConfigError(f"the function {name!r} {other}")
        signature = inspect.signature(function)
        decorate = self._async_generator if is_stream else self._coroutine if self._is_async else self._plain
        decorated: Any = decorate(function, signature)
        return decorated  # type: ignore[no-any-return]

    def _reserve_arguments(self, signature: inspect.Signature, args: Any, kwargs: Any) -> dict[str, Any]:
        """The arguments of `reserve` for a call of the function."""
        if self._body is not None:
            body = dict(self._body(*args, **kwargs))
        else:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            body = dict(bound.arguments)
            for name, parameter in signature.parameters.items():
                if parameter.kind is inspect.Parameter.VAR_KEYWORD:
                    body |= body.pop(name, {})
            body = {name: value for name, value in body.items() if type(value).__name__ not in _OMITTED}
            extra = body.get(_EXTRA_BODY)
            if isinstance(extra, Mapping):
                del body[_EXTRA_BODY]
                body |= extra
        sources = {"model": self._model, **self._caller}
        fields = {name: source(*args, **kwargs) if callable(source) else source for name, source in sources.items()}
        return {"body": body, **fields}

    def _plain(self, function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
        @functools.wraps(function)
        def limited(*args: Any, **kwargs: Any) -> Any:
            call: Call = self._gate.reserve(**self._reserve_arguments(signature, args, kwargs))
            call.__enter__()
            try:
                answer = function(*args, **kwargs)
                if inspect.iscoroutine(answer):
                    answer.close()
                    call.cancel()
                    raise ConfigError(f"the function {_name_of(function)!r} gives a coroutine: use AsyncLlmGate")
                if hasattr(answer, "__next__"):
                    return HeldStream(call, answer)
                if _is_manager(answer):
                    call.cancel()
                    raise _begins_later(function, answer)
                call.settle(answer)
            except BaseException as error:
                call.__exit__(type(error), error, error.__traceback__)
                raise
            call.__exit__(None, None, None)
            return answer

        return limited

    def _coroutine(self, function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
        @functools.wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> Any:
            call: AsyncCall = await self._gate.reserve(
                **await with_input_counted(None, self._reserve_arguments(signature, args, kwargs))
            )
            await call.__aenter__()
            try:
                answer = await function(*args, **kwargs)
                if hasattr(answer, "__anext__"):
                    return AsyncHeldStream(call, answer)
                if _is_manager(answer):
                    await call.cancel()
                    raise _begins_later(function, answer)
                await call.settle(answer)
            except BaseException as error:
                await call.__aexit__(type(error), error, error.__traceback__)
                raise
            await call.__aexit__(None, None, None)
            return answer

        return limited

    def _async_generator(self, function: Callable[..., Any], signature: inspect.Signature) -> Callable[..., Any]:
        @functools.wraps(function)
        async def limited(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            async with self._gate.call(**self._reserve_arguments(signature, args, kwargs)) as call:
                chunks = call.stream(function(*args, **kwargs))
                try:
                    async for chunk in chunks:
                        yield chunk
                finally:
                    await chunks.aclose()

        return limited


def _is_manager(answer: object) -> bool:
    """Whether an answer calls the model only when its `with` block begins, like that of `client.messages.stream`."""
    is_entered = hasattr(answer, "__enter__") or hasattr(answer, "__aenter__")
    return is_entered and type(answer).__name__.endswith("Manager")


def _begins_later(function: Callable[..., Any], answer: object) -> ConfigError:
    return ConfigError(
        f"the function {_name_of(function)!r} gives a {type(answer).__name__}, which calls the model later: use "
        "gate.wrap(client), or decorate a function that enters it and gives the answer"
    )


def _name_of(function: Callable[..., Any]) -> Any:
    return getattr(function, "__name__", function)


class HeldStream:
    """A stream that settles its call at its end, when it is closed, and when it is garbage-collected.

    All other attributes are those of the client's stream.
    """

    def __init__(self, call: Call, stream: Any) -> None:
        self._call = call
        self._stream = stream
        self._events = call.stream(stream)

    def __iter__(self) -> HeldStream:
        return self

    def __next__(self) -> Any:
        try:
            return next(self._events)
        except BaseException as error:
            self._call.__exit__(type(error), error, error.__traceback__)
            raise

    def close(self) -> None:
        """Read no further."""
        self._events.close()  # type: ignore[attr-defined]
        self._call.__exit__(None, None, None)
        close(self._stream)

    def __enter__(self) -> HeldStream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __del__(self) -> None:
        if not self._call.settled:
            call_outside(self.close)


class AsyncHeldStream:
    """`HeldStream` for asyncio."""

    def __init__(self, call: AsyncCall, stream: Any) -> None:
        self._call = call
        self._stream = stream
        self._events = call.stream(stream)
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncHeldStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await anext(self._events)
        except BaseException as error:
            await self._call.__aexit__(type(error), error, error.__traceback__)
            raise

    async def close(self) -> None:
        """Read no further."""
        await self._events.aclose()  # type: ignore[attr-defined]
        await self._call.__aexit__(None, None, None)
        await close_async(self._stream)

    aclose = close

    async def __aenter__(self) -> AsyncHeldStream:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __del__(self) -> None:
        if not self._call.settled and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(_begin_to_end, self._call)


def _begin_to_end(call: AsyncCall) -> None:
    begun(call.__aexit__(None, None, None))
