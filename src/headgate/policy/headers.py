"""Header fields by name, in whatever case a name is written."""

from __future__ import annotations

from typing import Any

_get = dict.get


class Headers(dict[str, str]):
    """Fields by name: kept in lower case and with "-" for "_", found in any spelling.

    What is given has its names so already; a name that is asked for in this form is found soonest.
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
        """The value of a field, `default` where it is not there."""
        value = _get(self, name)
        return _get(self, header_name(name), default) if value is None else value


def header_name(name: str) -> str:
    """The name of a header as it is compared: a server that gives its application CGI's names knows no "_"."""
    return name.lower().replace("_", "-")
