"""Judges each request of a site; reports and ends what its views and throttles judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.conf import settings  # type: ignore[import-untyped]
from django.core.handlers.exception import convert_exception_to_response  # type: ignore[import-untyped]

from headgate.http.server.cors import log_outside_of_cors
from headgate.integrations.django.checks import CORS, is_outside_of_cors
from headgate.integrations.django.exchange import DjangoExchange, opened
from headgate.integrations.django.refusals import answer_refusal, answer_refusal_async
from headgate.integrations.django.request import DjangoRequest
from headgate.integrations.django.routing import is_excluded
from headgate.integrations.django.site import site
from headgate.waiting.departure import Departure


class RateLimitMiddleware:
    """Limits each request by settings.HEADGATE, and adds the rate limit fields to every response.

    Put it below AuthenticationMiddleware where `key` is `user`, and below LocaleMiddleware; else as high as possible:
    a refused request reaches no middleware below it. Without `limits` and `policy` it limits nothing; it reports and
    settles what views and throttles decided.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self._get_response = get_response
        self._is_async = iscoroutinefunction(get_response)
        if self._is_async:
            markcoroutinefunction(self)
        current = site()
        # An error of the fallback becomes a response here, so that fields are added to it, as Django does further out.
        self._fallback = current.fallback and convert_exception_to_response(current.fallback)
        if is_outside_of_cors(settings.MIDDLEWARE):
            log_outside_of_cors("RateLimitMiddleware", CORS)
        self._enforcer = current.site_enforcer(asynchronous=self._is_async, kind=DjangoRequest)

    def __call__(self, request: Any) -> Any:
        if hasattr(request, "_headgate"):  # the settings name the middleware twice: it judges once
            return self._get_response(request)
        if self._is_async:
            return self._call_async(request)
        exchange, refusal = DjangoExchange(), None
        request._headgate = exchange
        if self._enforcer is not None and not is_excluded(request):
            refusal = exchange.judge_site(self._enforcer, request)
        if refusal is not None:
            response = answer_refusal(request, self._fallback, refusal, (request,), {})
        else:
            try:
                response = self._get_response(request)
            except BaseException as error:  # with DEBUG_PROPAGATE_EXCEPTIONS
                exchange.fail(error)
                raise
        return exchange.finish(request, response)

    async def _call_async(self, request: Any) -> Any:
        exchange, refusal = opened(request)[0], None
        exchange.departure = departure = Departure()
        if self._enforcer is not None and not is_excluded(request):
            subject = DjangoRequest(request, asynchronous=True)
            refusal = (await exchange.judge_async(self._enforcer, subject, environ=subject.environ)).refusal
        if refusal is not None:
            response = await answer_refusal_async(request, self._fallback, refusal, (request,), {})
        else:
            try:
                response = await self._get_response(request)
            except BaseException as error:  # such as that the client is gone; charges are settled
                departure.leave()
                await exchange.fail_async(error)
                raise
        return await exchange.finish_async(request, response)
