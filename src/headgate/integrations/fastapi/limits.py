"""Dependencies that limit the routes of FastAPI."""

# There is no `from __future__ import annotations` here: FastAPI reads the annotations of `RateLimit.__call__`, and
# resolves no strings in those of an object's method.
from collections.abc import Coroutine, Iterator, Sequence
from typing import Annotated, Any, NoReturn, Unpack
from weakref import WeakValueDictionary

from fastapi import FastAPI, HTTPException, Response
from fastapi.requests import HTTPConnection
from fastapi.websockets import WebSocket

from headgate.decision import Decision
from headgate.decorator import is_being_decorated
from headgate.errors import ConfigError, StoreError, check_flag
from headgate.http.server.asgi_messages import Fields
from headgate.http.server.exchange import Judgement
from headgate.http.server.options import Refusal, RouteOptions, detail_of, without_content
from headgate.http.server.routes import (
    MISSING_LIMITS,
    ApplicationEnforcers,
    AsyncRouteLimits,
    LimitsOfRoute,
    RoutePlace,
    is_exempt,
    route_place,
)
from headgate.http.server.scope_exchange import RoutePassed, exchange_at
from headgate.integrations.fastapi.mistakes import (
    HOW_TO_DEPEND,
    HOW_TO_LIMIT_ALL,
    NoParameter,
    SignatureOfLimits,
    is_default_value,
    warn_if_dropped,
)
from headgate.integrations.fastapi.openapi import Responses, documented, responses_of
from headgate.integrations.starlette.headers import RateLimitHeaders
from headgate.integrations.starlette.places import Places, places
from headgate.integrations.starlette.request import StarletteRequest
from headgate.integrations.starlette.responses import RefusalResponse, refuse_or_close
from headgate.integrations.starlette.routing import Found, application_of

_NONE: Any = None


class RateLimitExceeded(HTTPException):
    """A request was refused. Without a handler for this exception, or for its status, the usual response is sent.

    `headers` are those of that response, `detail` is the sentence of its problem body, or the phrase of its status.
    """

    def __init__(self, refusal: Refusal, decision: Decision | None) -> None:
        super().__init__(refusal.status, detail_of(refusal), dict(without_content(refusal)))
        self.refusal = refusal
        self.decision = decision
        """None where the store did not answer."""

    def response(self, *, head: bool = False) -> Response:
        """Return the usual response; for HEAD without its body."""
        return RefusalResponse(self.refusal, head=head)


class RateLimit:
    """A dependency that limits the routes which depend on it, including websockets; made by a `RateLimits`.

    Limits that are written alike are equal, so FastAPI treats them as one: it calls them once, and replaces them
    together by `app.dependency_overrides`.
    """

    def __init__(self, enforcers: ApplicationEnforcers, *, override: bool, headers: str | Sequence[str]) -> None:
        self._enforcers = enforcers
        self._places: Places[RoutePlace | None] = places(self._place, inside=True)
        self.override = override
        self.headers = headers
        """The dialects of its fields."""
        self.unused = warn_if_dropped(self)
        # FastAPI inspects the object's attribute to learn whether to await the call; Python calls the class's method.
        vars(self)["__call__"] = RateLimit._ask

    def __deepcopy__(self, _: Any) -> "RateLimit":
        """Return this limit: a copied router has the same one, as it has the same endpoints."""
        if is_default_value():
            raise ConfigError(HOW_TO_DEPEND)
        return self

    @property
    def dependency(self) -> NoReturn:
        """Raises ConfigError: FastAPI reads this attribute where a limit is written without `Depends`."""
        raise ConfigError(HOW_TO_DEPEND)

    def __get_pydantic_core_schema__(self, *_: Any) -> NoReturn:
        """Raises ConfigError: pydantic calls this where a limit is written as an annotation."""
        raise ConfigError(HOW_TO_DEPEND)

    def __call__(
        self, connection: HTTPConnection = _NONE, response: Response = _NONE, **misplaced: NoReturn
    ) -> Coroutine[Any, Any, Decision | None]:
        """Return the decision, None where a request is not limited, or was not judged; raises RateLimitExceeded."""
        if type(response) is not Response and not isinstance(response, Response):
            # It was written as a decorator, and is called with an endpoint; or as a middleware, with an application.
            raise ConfigError(
                f"rate_limit(...) decorates no endpoint, and is no middleware: {HOW_TO_DEPEND}; {HOW_TO_LIMIT_ALL}"
            )
        if self.unused is not None:  # nor is it, where an endpoint calls it by hand
            self.unused.detach()
        return self._ask(connection, response)

    async def _ask(self, connection: HTTPConnection, response: Response) -> Decision | None:
        scope = connection.scope
        outcome: Any
        try:
            outcome = self._places.decide(scope)
        except StoreError as error:
            outcome = error, None
        if type(outcome) is RoutePassed:
            headers = response.raw_headers
            if headers:
                _replace_fields(response, outcome.fields)
            else:
                headers += outcome.fields
            passed: Decision = outcome.decision
            return passed
        place = self._places.of(scope)
        if place is None:
            return None
        exchange = exchange_at(scope, place.endpoint)
        if (before := exchange.passed(self)) is not None:
            if exchange.watched or exchange.has_fields(response.raw_headers):  # FastAPI calls again: use_cache=False
                return before.decision
            exchange = exchange_at(scope, place.endpoint, self)  # the application calls itself
        if place.enforcer.settles and not exchange.watched:
            raise ConfigError(
                "counts, and what is in flight, need a middleware that sees the responses: "
                "app.add_middleware(RateLimitHeaders), of headgate.integrations.fastapi"
            )
        judged = exchange.judge_route(
            place.enforcer, scope, StarletteRequest, place.template, self, request=connection, native_outcome=outcome
        )
        judgement = judged if isinstance(judged, Judgement) else await judged
        if judgement.refusal is not None:
            _answer_by_default(scope)
            raise RateLimitExceeded(judgement.refusal, judgement.decision)
        if not exchange.watched:  # else its watcher adds them once all limits have judged, also those of decorators
            _replace_fields(response, exchange.encoded_fields())
        return judgement.decision

    __signature__ = SignatureOfLimits(_ask)

    def _place(self, scope: Any, found: Found) -> RoutePlace | None:
        """Return the place of the limit at a route; None where it does not apply to the route."""
        if is_exempt(found.endpoint) or (found.route is not None and self._is_overridden(found.route)):
            return None
        return route_place(self._enforcers.of(application_of(scope)), found.template, self, endpoint=found.endpoint)

    def _is_overridden(self, route: Any) -> bool:
        """Whether a narrower limit of a route overrides this one."""
        outwards = list(_limits_of(route))[::-1]  # equal limits are one, which counts at the innermost place
        narrower = outwards[: outwards.index(self)] if self in outwards else []
        return any(limit.override for limit in narrower)


def _replace_fields(response: Response, fields: Fields) -> None:
    """Add fields to a response, in place of those that an outer limit may have added."""
    headers = response.raw_headers
    if headers:
        names = {name for name, _ in fields}
        headers[:] = [field for field in headers if field[0] not in names]
    headers.extend(fields)


class RateLimits(AsyncRouteLimits):
    """Makes limits of routes. Options given here are the defaults of all of them.

    They count in one store, in memory if none is named. Raises ConfigError or TypeError.
    """

    def __init__(self, **defaults: Unpack[RouteOptions]) -> None:
        super().__init__(**defaults)
        self._made: WeakValueDictionary[tuple[Any, ...], RateLimit] = WeakValueDictionary()
        self._headers = defaults.get("headers", "draft-11")

    def __call__(
        self,
        limits: Annotated[LimitsOfRoute, NoParameter()] = MISSING_LIMITS,
        *,
        override: bool = False,
        **options: Unpack[RouteOptions],
    ) -> RateLimit:
        """Return the argument of `Depends`; the dependency's value is the Decision.

        All limits of a route are checked, from those of the application to its own, and a request that one refuses is
        charged in none. With `override` only this limit and narrower ones are checked.
        """
        if is_being_decorated(limits):
            raise ConfigError(f"rate_limit decorates no endpoint: {HOW_TO_DEPEND}")
        try:
            arguments = (limits, check_flag("override", override), frozenset(options.items()))
            made = self._made.get(arguments)
        except TypeError:  # a mapping or a list, not hashable: this limit equals no other
            return self._make(limits, override, options)
        return made or self._made.setdefault(arguments, self._make(limits, override, options))

    @property
    def dependency(self) -> NoReturn:
        """Raises ConfigError: FastAPI reads this attribute where `rate_limit` is written without `Depends`."""
        raise ConfigError(HOW_TO_DEPEND)

    def install(self, app: FastAPI) -> None:
        """Complete an application: fields on every response, 429 in its OpenAPI, stores closed with its lifespan."""
        if not isinstance(app, FastAPI):
            raise ConfigError(f"install takes the application, a FastAPI, not a value of type {type(app).__name__}")
        app.add_middleware(RateLimitHeaders, rate_limits=self)
        plain = app.openapi

        def openapi() -> dict[str, Any]:
            return documented(plain(), app.routes, _dialects_of)

        app.openapi = openapi  # type: ignore[method-assign]

    @property
    def responses(self) -> Responses:
        """The description of a refusal, for `responses=` of a route, a router or an application."""
        return responses_of(self._headers)

    def _make(self, limits: LimitsOfRoute, override: bool, options: RouteOptions) -> RateLimit:
        enforcers = self.routes.enforcers(limits, options)
        return RateLimit(enforcers, override=override, headers=options.get("headers", self._headers))


def _limits_of(route: Any) -> Iterator[RateLimit]:
    """Return the limits among the dependencies of a route, in the order in which they are checked."""
    return (call for call in _calls(getattr(route, "dependant", None)) if isinstance(call, RateLimit))


def _dialects_of(route: Any) -> Iterator[str | Sequence[str]]:
    """Return the dialects of the fields of each limit of a route."""
    return (limit.headers for limit in _limits_of(route))


def _calls(dependant: Any) -> Iterator[Any]:
    for dependency in getattr(dependant, "dependencies", ()):
        yield from _calls(dependency)
        yield dependency.call


def _answer_by_default(scope: Any) -> None:
    """Have Starlette send the usual response where the application has no handler of its own for the exception.

    Where the scope has no handlers, FastAPI answers as it does for any HTTPException.
    """
    handlers = scope.get("starlette.exception_handlers")
    if handlers is not None:
        by_class, _ = handlers  # handlers by status are looked up before those by class
        by_class.setdefault(RateLimitExceeded, _send_usual_response)


async def _send_usual_response(connection: HTTPConnection, refused: RateLimitExceeded) -> Response | None:
    if not isinstance(connection, WebSocket):
        return refused.response(head=connection.scope["method"] == "HEAD")
    await refuse_or_close(connection, refused.refusal)
    return None


rate_limit = RateLimits()
"""Limits that count in the memory of each application."""
