"""What a client is told of a provider's refusal: what the provider says, but for what is no business of a client."""

from __future__ import annotations

import logging

from headgate.clock import SYSTEM_CLOCK
from headgate.http.client.limit_fields import told
from headgate.llm.dialects import Answer, Family, Problem, problem_answer
from headgate.llm.dialects.answers import NO_RETRY, SHORT_WAIT_US
from headgate.llm_proxy.passed_headers import headers_to_answer
from headgate.llm_proxy.provider_answer import ProviderAnswer

log = logging.getLogger("headgate")

KEY_REFUSED = 401
_MOST_BYTES = 1024 * 1024


async def refusal_of(provider: str, response: ProviderAnswer, family: Family) -> Answer:
    """What a provider refused with, to be passed on.

    Where it asks for a long wait, packages are told not to try again by themselves: some sleep for as long as it says.
    """
    if response.status == KEY_REFUSED:
        return key_refused(provider, family)
    headers = headers_to_answer(response.headers, [])
    said = told(response.headers, now_us=SYSTEM_CLOCK.now_us())
    if said is not None and (said.refused_for_us or 0) > SHORT_WAIT_US:
        headers = [NO_RETRY, *(pair for pair in headers if pair[0] != NO_RETRY[0])]
    try:
        body = await response.read_whole(_MOST_BYTES)
    except OSError:
        message = f"The provider refused the call with the status {response.status}."
        return problem_answer(family, Problem.PROVIDER_UNREACHABLE, message)
    return Answer(response.status, headers, body)


def key_refused(provider: str, family: Family) -> Answer:
    """What is told where a provider does not take the proxy's key: a client's own is good, so it is logged instead."""
    log.error("the provider %s refuses the key that the proxy has for it", provider)
    return problem_answer(family, Problem.PROVIDER_KEY, "The provider does not take the key that the proxy has for it.")
