"""What let a request of Django's through, in both colours. Django is not imported.

A request may be judged in a thread and answered on an event loop, and the other way about.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, cast

from asgiref.sync import async_to_sync, sync_to_async

from headgate.http.server.options import Response
from headgate.integrations.passed import Counted, Entry, Passed


def opened(request: Any) -> tuple[Passed, bool]:
    """What let a request through so far, and whether it begins here: else somebody further out finishes it."""
    passed = getattr(request, "_headgate", None)
    if passed is not None:
        return passed, False
    passed = request._headgate = Passed()
    return passed, True


def let_in(passed: Passed, entry: Entry) -> bool:
    """Whether a limit lets the request pass; if not, what others had charged is given back."""
    if entry.answer.refusal is None:
        passed.add(entry)
        return True
    for other in passed.refuse(entry.answer.refusal, _wait_us(entry)):
        _do(other, "take_back")
    return False


async def let_in_async(passed: Passed, entry: Entry) -> bool:
    """`let_in` on an event loop."""
    if entry.answer.refusal is None:
        passed.add(entry)
        return True
    for other in passed.refuse(entry.answer.refusal, _wait_us(entry)):
        await _do_async(other, "take_back")
    return False


def take_back(entry: Entry) -> None:
    """Give back what a limit charged for a request that others refuse."""
    _do(entry, "take_back")


def finish(passed: Passed, response: Any) -> None:
    """Tell on the response what remains, and settle what was charged."""
    if not hasattr(response, "headers"):
        return fail(passed, 500)  # Django says that this is no response
    passed.tell(response)
    entries = passed.to_settle()
    if entries and not _settles_later(response, entries):
        _settle(entries, _whole(response, entries))


async def finish_async(passed: Passed, response: Any) -> None:
    """`finish` on an event loop."""
    if not hasattr(response, "headers"):
        return await fail_async(passed, 500)
    passed.tell(response)
    entries = passed.to_settle()
    if entries and not _settles_later(response, entries):
        told = _whole(response, entries)
        for entry in entries:
            await _do_async(entry, "settle", told)


def fail(passed: Passed, status: int) -> None:
    """The view raised, and nobody here sees what Django makes of it but its status."""
    _settle(passed.to_settle(), Response(status, {}, 0))


async def fail_async(passed: Passed, status: int) -> None:
    """`fail` on an event loop."""
    for entry in passed.to_settle():
        await _do_async(entry, "settle", Response(status, {}, 0))


def _settles_later(response: Any, entries: list[Entry]) -> bool:
    """Whether a response settles later: a stream when it is closed, a template when it is rendered."""
    if response.streaming:
        kind = _CountedAsync if response.is_async else Counted
        # Django closes responses in a thread.
        response.streaming_content = kind(
            response.streaming_content, lambda body_bytes: _settle(entries, _seen(response, body_bytes))
        )
        return True
    if not getattr(response, "is_rendered", True):
        response.add_post_render_callback(lambda rendered: _settle(entries, _whole(rendered, entries)))
        return True
    return False


class _CountedAsync(Counted):
    """The parts of a stream that an event loop makes."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in cast(AsyncIterator[bytes], self._parts):
            self._bytes += len(part)
            yield part

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("this stream is read on an event loop")


def _settle(entries: list[Entry], response: Response) -> None:
    for entry in entries:
        _do(entry, "settle", response)


def _whole(response: Any, entries: list[Entry]) -> Response:
    """A response whose body is known; of one to HEAD the server sends none."""
    return _seen(response, 0 if entries[0].request.method == "HEAD" else len(response.content))


def _seen(response: Any, body_bytes: int) -> Response:
    return Response(response.status_code, {name.lower(): value for name, value in response.items()}, body_bytes)


def _wait_us(entry: Entry) -> float:
    decision = entry.answer.decision
    return float("inf") if decision is None or decision.retry_after_us is None else decision.retry_after_us


def _do(entry: Entry, what: str, *args: Any) -> None:
    """Do it in this thread; what was judged on an event loop, on the loop that waits for this thread."""
    front, request, answer, asynchronous = entry
    if asynchronous:
        async_to_sync(getattr(front, f"{what}_async"))(request, answer, *args)
    else:
        getattr(front, what)(request, answer, *args)


async def _do_async(entry: Entry, what: str, *args: Any) -> None:
    """Do it on the event loop; what was judged in a thread, in one."""
    front, request, answer, asynchronous = entry
    if asynchronous:
        await getattr(front, f"{what}_async")(request, answer, *args)
    else:
        await sync_to_async(getattr(front, what))(request, answer, *args)
