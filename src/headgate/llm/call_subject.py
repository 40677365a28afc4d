"""A call of a language model as the subject of a policy: its caller, its model, and its HTTP request, if any."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

from headgate.errors import ArgumentError, kind_of
from headgate.llm.entry import Caller
from headgate.llm.model_table import own_name
from headgate.llm.prices import LONGEST_MODEL
from headgate.policy.llm_settings import FULL_MODEL, MODEL
from headgate.policy.request import Request
from headgate.policy.subject import Subject

_NO_REQUEST = Request("POST", "")
_NAMES_REMEMBERED = 4096


class CallSubject:
    """A call as a subject: its caller and model are attributes; all else is that of the HTTP request, if there is one.

    `others` are further models that may answer the call: rules for any of them apply.
    """

    __slots__ = ("_attributes", "_request", "attribute", "client_ip", "endpoint", "headers", "host", "method",
                 "other_models", "path")  # fmt: skip

    def __init__(self, caller: Caller, model: str, request: Subject | None = None, others: Iterable[str] = ()) -> None:
        key, user, team, organisation, tier = caller
        own, full = _names(model)
        self._attributes = {
            "key": key,
            "user": user,
            "team": team,
            "organisation": organisation,
            "tier": tier,
            MODEL: own,
            FULL_MODEL: full,
        }
        self.attribute: Callable[[str], str] = self._attributes.__getitem__
        """The value of an attribute of the call by its name; "" if it is not set."""

        self.other_models = tuple(map(_names, others))
        """The own name and the full name of each of them, in lower case."""

        self._request = subject = _NO_REQUEST if request is None else request
        self.method: str = subject.method
        self.path: str = subject.path
        self.host: str = subject.host
        self.client_ip: str = subject.client_ip
        self.endpoint: str = subject.endpoint
        self.headers: Mapping[str, str] = subject.headers

    @property
    def entries(self) -> tuple[tuple[str, str], ...]:
        """The entries of its request."""
        return self._request.entries

    def entry(self, key: str) -> str:
        """The single value of the entries of its request with this key."""
        return self._request.entry(key)

    def header(self, name: str) -> str:
        """The single value of a header of its request."""
        return self._request.header(name)

    def cookie(self, name: str) -> str:
        """The single value of a cookie of its request."""
        return self._request.cookie(name)

    def query(self, name: str) -> str:
        """The single value of a query parameter of its request."""
        return self._request.query(name)


def check_caller(key: str, user: str, team: str, organisation: str, tier: str) -> Caller:
    """Make a caller; raises ArgumentError for values that are not text."""
    caller = Caller(key, user, team, organisation, tier)
    try:
        "".join(caller)  # only texts can be joined
    except TypeError:
        for name, value in zip(Caller._fields, caller, strict=True):
            if not isinstance(value, str):
                raise ArgumentError(f"{name} of a call is text, not {kind_of(value)}") from None
        raise
    return caller


def check_model(model: object) -> str:
    """Return the name of a model; raises ArgumentError for a value that cannot be one."""
    if not isinstance(model, str):
        raise ArgumentError(f"model is the name of a model, not {kind_of(model)}")
    if not 0 < len(model) <= LONGEST_MODEL or not model.isprintable():
        raise ArgumentError(f"model is a name of 1 to {LONGEST_MODEL} printable characters, not {model[:60]!r}")
    return model


@lru_cache(maxsize=_NAMES_REMEMBERED)
def _names(model: str) -> tuple[str, str]:
    """The model's own name and its full name, in lower case."""
    return own_name(model), model.lower()
