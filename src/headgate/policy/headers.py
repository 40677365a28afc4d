"""Header fields by name, whatever the case of the name that is asked for."""

from __future__ import annotations

from typing import Any

_get = dict.get


class Headers(dict[str, str]):
    """Fields by name: kept in lower case and with "-" for "_", found in any spelling.

    What is given has its names so already; who asks so has an answer soonest.
    """

    __slots__ = ()

    def __missing__(self, name: str) -> str:
        value = _get(self, _plain(name))
        if value is None:
            raise KeyError(name)
        return value

    def __contains__(self, name: object) -> bool:
        return dict.__contains__(self, name) or (isinstance(name, str) and dict.__contains__(self, _plain(name)))

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a field, `default` where it is not there."""
        value = _get(self, name)
        return _get(self, _plain(name), default) if value is None else value


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")
