"""Django's response to a request that is refused: the refusal, or the response of a fallback."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpResponse  # type: ignore[import-untyped]
from django.http.response import ResponseHeaders  # type: ignore[import-untyped]
from django.utils.cache import patch_cache_control  # type: ignore[import-untyped]

from headgate.drive import answered
from headgate.http.server.caching import has_no_cache_field
from headgate.http.server.options import Refusal, length_of
from headgate.integrations.django.exchange import own_headers
from headgate.integrations.response_exchange import unclaimed


def answer_refusal(request: Any, fallback: Any, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the response to a refused request: that of the fallback if there is one, else the refusal."""
    if fallback is not None:
        request._headgate.by_fallback = True  # also where it raises, and Django makes a response of the error
        answer = async_to_sync(fallback) if iscoroutinefunction(fallback) else fallback
        return _unstored(answer(*args, **kwargs), refusal)
    return response_of(request, refusal)


async def answer_refusal_async(
    request: Any, fallback: Any, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """`answer_refusal` on an event loop."""
    if fallback is None:
        return response_of(request, refusal)
    request._headgate.by_fallback = True
    answer = fallback if iscoroutinefunction(fallback) else sync_to_async(fallback)
    return _unstored(await answered(await answer(*args, **kwargs)), refusal)


def _unstored(response: Any, refusal: Refusal) -> Any:
    """Return the response of a fallback with a field that forbids caches to store it, unless it has one for them.

    Where the refusal has a Cache-Control field, that is used. The field is added before decorators and middlewares
    outside of the limit, which may be caches, see the response. The passed response is unchanged: a view may return it
    for other requests.
    """
    headers = getattr(response, "headers", None)
    if not isinstance(headers, ResponseHeaders) or not has_no_cache_field(headers):
        return response
    # The copy shares the objects that are closed with the response: of the two only the copy is sent.
    copied = unclaimed(response, lambda shared: {"headers": own_headers(shared)}, always=True)
    values = [value for name, value in refusal.headers if name.lower() == "cache-control"]
    copied.headers["Cache-Control"] = ", ".join(values) or "no-store"
    if "no-store" in copied.headers["Cache-Control"].lower():
        patch_cache_control(copied, private=True)  # caches of earlier releases of Django ignore `no-store`
    return copied


def response_of(request: Any, refusal: Refusal) -> Any:
    """Return a refusal as Django's response."""
    response = HttpResponse(b"" if request.method == "HEAD" else refusal.body, status=refusal.status)
    for name, value in [*length_of(refusal), *refusal.headers]:
        response[name] = value
    return response
