"""The answer to the client after a provider's refusal: the provider's own, without what does not concern clients."""

from __future__ import annotations

import logging
from email.utils import mktime_tz, parsedate_tz

from headgate.clock import SYSTEM_CLOCK
from headgate.http.client.limit_fields import read_limit_fields
from headgate.llm.dialects import Answer, Family, Problem, problem_answer
from headgate.llm.dialects.answers import NO_RETRY, SHORT_WAIT_US
from headgate.llm_proxy.passed_headers import Pairs, headers_to_answer
from headgate.llm_proxy.provider_answer import ProviderAnswer

log = logging.getLogger("headgate")

REDIRECTS, REFUSES = 300, 400
"""The lowest statuses of a redirect and of a refusal."""

_KEY_REFUSED = 401
_MOST_BYTES = 1024 * 1024
_US, _MS = 1_000_000, 1_000


async def refusal_of(provider: str, response: ProviderAnswer, family: Family) -> Answer:
    """The answer to pass on for a provider's refusal."""
    if (answer := owners_problem(provider, response.status, family)) is not None:
        return answer
    headers = headers_of_refusal(response)
    try:
        body = await response.read_body(_MOST_BYTES)
    except OSError:
        message = f"The provider refused the call with the status {response.status}."
        return problem_answer(family, Problem.PROVIDER_UNREACHABLE, message)
    return Answer(response.status, headers, body)


def headers_of_refusal(response: ProviderAnswer) -> list[tuple[str, str]]:
    """The headers of a refusal, to pass on.

    Where it requests a long wait, a header forbids client libraries to retry: some sleep for as long as it states.
    """
    headers, now_us = headers_to_answer(response.headers, []), SYSTEM_CLOCK.now_us()
    reported = read_limit_fields(response.headers, now_us=now_us)
    if (reported is not None and (reported.refused_for_us or 0) > SHORT_WAIT_US) or _may_sleep(
        response.headers, now_us
    ):
        return [NO_RETRY, *(pair for pair in headers if pair[0] != NO_RETRY[0])]
    return headers


def owners_problem(provider: str, status: int, family: Family) -> Answer | None:
    """The problem where a provider refuses the proxy's key, or redirects; None for any other status.

    The client's own key is valid, so what the provider reports is logged instead. A client that followed the redirect
    would bypass the proxy.
    """
    if status == _KEY_REFUSED:
        log.error("the provider %s refuses the key that the proxy has for it", provider)
        message = "The provider does not take the key that the proxy has for it."
        return problem_answer(family, Problem.PROVIDER_KEY, message)
    if REDIRECTS <= status < REFUSES:
        log.error("the provider %s redirects, with the status %d: its base_url may be another one", provider, status)
        message = f"The provider redirects, with the status {status}, and the proxy does not follow."
        return problem_answer(family, Problem.PROVIDER_MOVED, message)
    return None


def _may_sleep(headers: Pairs, now_us: int) -> bool:
    """Whether a client library may read a long wait in an invalid Retry-After: `1e6`, `inf`, or an unusual date."""
    for name, value in headers:
        try:
            if name == "retry-after-ms" and float(value) * _MS > SHORT_WAIT_US:
                return True
            if name == "retry-after" and _seconds(value, now_us) * _US > SHORT_WAIT_US:
                return True
        except (ValueError, OverflowError):
            continue
    return False


def _seconds(value: str, now_us: int) -> float:
    """Seconds to wait, read as leniently as Python reads a number, or a date. Raises ValueError, OverflowError."""
    date = parsedate_tz(value)
    return float(value) if date is None else mktime_tz(date) - now_us / _US
