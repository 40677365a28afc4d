"""Header fields by name, whatever the case of the name."""

from __future__ import annotations

from typing import Any

_get = dict.get


class Headers(dict[str, str]):
    """Fields by name: stored in lower case and with "-" for "_", found in any spelling.

    The names passed to it must have this form already. A lookup by a name in this form is the fastest.
    """

    __slots__ = ()

    def __missing__(self, name: str) -> str:
        value = _get(self, header_name(name))
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or (isinstance(name, str) and dict.__contains__(self, header_name(name)))

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field; `default` where it is missing."""
        value = _get(self, name)
        return _get(self, header_name(name), default) if value is None else value


def header_name(name: str) -> str:
    """The name of a header in the form that is compared: with CGI's names, "-" and "_" cannot be distinguished."""
    return name.lower().replace("_", "-")
