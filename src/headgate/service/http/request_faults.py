"""Requests that are not read further, and the details of the responses that say why."""

from __future__ import annotations

import re

MALFORMED = "this is no request of HTTP/1.1 that can be read"

_FIRST_LINE = re.compile(rb"[\r\n]*([!#$%&'*+.^_`|~0-9A-Za-z-]+) [^ \r\n]+ HTTP/1\.[01]\r?\n")
_LONGEST_SHOWN = 40


class RequestRefused(Exception):
    """A request that is not read further, with the status and the detail of the response."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def fault_of(error: Exception, request: bytes) -> str:
    """The fault of a request, of which `request` is the beginning; empty where that is not known."""
    line = _FIRST_LINE.match(request) if "method" in str(error) else None
    return MALFORMED if line is None else unknown_method(line[1].decode("ascii"))


def unknown_method(method: str) -> str:
    """The fault of a request with a method that nothing here answers."""
    return f"the method {method[:_LONGEST_SHOWN]} is not answered here; methods are in upper case, such as GET"
