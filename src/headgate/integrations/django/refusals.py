"""What Django answers to a request that is refused: the refusal as its response, or what a fallback answers."""

from __future__ import annotations

from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async
from django.http import HttpResponse  # type: ignore[import-untyped]
from django.http.response import ResponseHeaders  # type: ignore[import-untyped]
from django.utils.cache import patch_cache_control  # type: ignore[import-untyped]

from headgate.drive import answered
from headgate.http.server.caching import says_nothing
from headgate.http.server.options import Refusal
from headgate.integrations.django.exchange import own_headers
from headgate.integrations.response_exchange import untold


def answer_refusal(request: Any, fallback: Any, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The answer to a request that is refused."""
    if fallback is not None:
        request._headgate.by_fallback = True  # also where it raises, and another response is made of that
        answer = async_to_sync(fallback) if iscoroutinefunction(fallback) else fallback
        return _unstored(answer(*args, **kwargs), refusal)
    return response_of(request, refusal)


async def answer_refusal_async(
    request: Any, fallback: Any, refusal: Refusal, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    if fallback is None:
        return response_of(request, refusal)
    request._headgate.by_fallback = True
    answer = fallback if iscoroutinefunction(fallback) else sync_to_async(fallback)
    return _unstored(await answered(await answer(*args, **kwargs)), refusal)


def _unstored(response: Any, refusal: Refusal) -> Any:
    """The response of a fallback, which no cache stores unless it or the refusal says something itself.

    It is told before decorators and middlewares outside of the limit see it, which may be caches. The given response is
    unchanged: a view may answer others with it.
    """
    headers = getattr(response, "headers", None)
    if not isinstance(headers, ResponseHeaders) or not says_nothing(headers):
        return response
    # What is closed with it remains: of the two only this one is sent.
    made = untold(response, lambda given: {"headers": own_headers(given)}, always=True)
    said = [value for name, value in refusal.headers if name.lower() == "cache-control"]
    made.headers["Cache-Control"] = ", ".join(said) or "no-store"
    if "no-store" in made.headers["Cache-Control"].lower():
        patch_cache_control(made, private=True)  # caches of earlier releases of Django ignore `no-store`
    return made


def response_of(request: Any, refusal: Refusal) -> Any:
    """A refusal as Django's response."""
    response = HttpResponse(b"" if request.method == "HEAD" else refusal.body, status=refusal.status)
    response["Content-Length"] = str(len(refusal.body))
    for name, value in refusal.headers:
        response[name] = value
    return response
