"""A call of a language model as a policy sees it: who calls which model, and the HTTP request that it came in."""

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
    """The subject that is a call: what it tells of itself are attributes, all else is the request's if there is one.

    `others` are models besides its own that may answer it: rules for any of them apply.
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
        """What the call tells under the name of one of its identities, "" for nothing."""

        self.other_models = tuple(map(_names, others))
        """Of each of them its own name and its full one, in small letters."""

        self._request = given = _NO_REQUEST if request is None else request
        self.method: str = given.method
        self.path: str = given.path
        self.host: str = given.host
        self.client_ip: str = given.client_ip
        self.endpoint: str = given.endpoint
        self.headers: Mapping[str, str] = given.headers

    @property
    def entries(self) -> tuple[tuple[str, str], ...]:
        """The entries of its request."""
        return self._request.entries

    def entry(self, key: str) -> str:
        """The one value of the entries of its request with a key."""
        return self._request.entry(key)

    def header(self, name: str) -> str:
        """The one value of a header of its request."""
        return self._request.header(name)

    def cookie(self, name: str) -> str:
        """The one value of a cookie of its request."""
        return self._request.cookie(name)

    def query(self, name: str) -> str:
        """The one value of a query parameter of its request."""
        return self._request.query(name)


def check_caller(key: str, user: str, team: str, organisation: str, tier: str) -> Caller:
    """Who calls; raises ArgumentError for what is no text."""
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
    """The name of a model; raises ArgumentError for what cannot be one."""
    if not isinstance(model, str):
        raise ArgumentError(f"model is the name of a model, not {kind_of(model)}")
    if not 0 < len(model) <= LONGEST_MODEL or not model.isprintable():
        raise ArgumentError(f"model is a name of 1 to {LONGEST_MODEL} printable characters, not {model[:60]!r}")
    return model


@lru_cache(maxsize=_NAMES_REMEMBERED)
def _names(model: str) -> tuple[str, str]:
    """The model's own name and its full one, in small letters."""
    return own_name(model), model.lower()
