"""A decision as JSON, as in the response of `/v1/check`."""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as _quoted

from headgate.amounts import base_unit
from headgate.decision import Decision
from headgate.http.fields.ratelimit import writers_of
from headgate.http.refusal import headers_of


class _BaseUnits(dict[str, str]):
    """A cache of `base_unit`: the limits of a policy have few units."""

    def __missing__(self, unit: str) -> str:
        self[unit] = base_unit(unit)
        return self[unit]


_base_units = _BaseUnits()


def write_decision(decision: Decision) -> str:
    """A decision as JSON: seconds as numbers, null for never."""
    answers = writers_of(decision.definitions).answers
    if answers is None:
        return python_decision_json(decision)
    written: str = answers.decision_json(decision)
    return written


def python_decision_json(decision: Decision) -> str:
    """`write_decision` in Python.

    The text is put together from its parts: the encoder of the standard library takes as long as all other work for a
    request.
    """
    reading = decision.binding
    if reading is None:
        binding = '"rule": null, "limit": null, "unit": null, "remaining": null, "reset_after": null'
    else:
        definition = reading.definition
        binding = (
            f'"rule": {_quoted(definition.rule) if definition.rule else "null"}, "limit": {definition.limit.quota}, '
            f'"unit": "{_base_units[definition.limit.of]}", '
            f'"remaining": {reading.remaining}, "reset_after": {reading.reset_after_us / 1e6}'
        )
    retry_after = decision.retry_after
    headers = ", ".join([f'"{name}": {_quoted(value)}' for name, value in headers_of(decision)])
    return (
        f'{{"allowed": {"true" if decision.allowed else "false"}, {binding}, '
        f'"retry_after": {"null" if retry_after is None else retry_after}, '
        f'"delay": {decision.delay}, "degraded": "{decision.degraded}", '
        f'"limits": [{_write_limits(decision)}], "headers": {{{headers}}}}}'
    )


def _write_limits(decision: Decision) -> str:
    """Every limit's own numbers."""
    written = []
    for reading in decision.limits:
        definition, wait_us = reading.definition, reading.retry_after_us
        retry_after = "null" if wait_us is None else wait_us / 1e6
        written.append(
            f'{{"name": {_quoted(definition.name)}, "rule": {_quoted(definition.rule)}, '
            f'"allowed": {"true" if reading.allowed else "false"}, "limit": {definition.limit.quota}, '
            f'"unit": "{_base_units[definition.limit.of]}", '
            f'"remaining": {reading.remaining}, "reset_after": {reading.reset_after_us / 1e6}, '
            f'"retry_after": {retry_after}, "shadow": {"true" if definition.shadow else "false"}}}'
        )
    return ", ".join(written)
