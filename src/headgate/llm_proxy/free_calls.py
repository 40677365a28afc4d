"""Calls that cost nothing, which are passed on unchanged: lists of models, and counts of tokens."""

from __future__ import annotations

from headgate.llm.dialects import Answer, Dialect, Problem, problem_answer
from headgate.llm_proxy.client_side import ClientSide
from headgate.llm_proxy.passed_headers import headers_to_answer
from headgate.llm_proxy.provider_refusals import REFUSES, headers_of_refusal, owners_problem
from headgate.llm_proxy.proxy_parts import ProxyParts
from headgate.llm_proxy.upstream import Lost, NotReached

_MOST_BYTES = 64 * 1024 * 1024


async def pass_on(
    parts: ProxyParts,
    client: ClientSide,
    dialect: Dialect,
    model: str,
    headers: list[tuple[str, str]],
    query: str,
    body: bytes | None,
) -> None:
    """Pass a call on to the first reachable provider that serves it, and answer the client."""
    serving = parts.pool.serving(dialect, model)
    limited_as = f"{dialect.name} {model}"  # providers limit these calls separately, and anyone may make many
    ready, wait_us = parts.pool.ready(serving, limited_as)
    refused: Answer | None = None
    for state in ready:
        try:
            response = await parts.upstream.send(state.settings, dialect, query, headers, body)
            with response:
                parts.pool.note(state, limited_as, response.status, response.headers)
                if (problem := owners_problem(state.settings.name, response.status, dialect.family)) is not None:
                    refused = problem
                    continue
                is_refused = response.status >= REFUSES
                fields = headers_of_refusal(response) if is_refused else headers_to_answer(response.headers, [])
                await client.write_complete(response.status, fields, await response.read_body(_MOST_BYTES))
        except NotReached:
            parts.pool.note_unreachable(state)
        except (Lost, OSError):
            break
        else:
            return
    if not serving:
        answer = problem_answer(dialect.family, Problem.UNKNOWN_PATH, f"No provider here serves {dialect.path}.")
    elif not ready:
        message = "The provider has refused calls, and is paused for as long as it asked."
        answer = problem_answer(dialect.family, Problem.PROVIDER_BUSY, message, wait_us=wait_us)
    elif refused is not None:
        answer = refused
    else:
        answer = problem_answer(dialect.family, Problem.PROVIDER_UNREACHABLE, "The provider cannot be reached.")
    await client.answer(answer)
