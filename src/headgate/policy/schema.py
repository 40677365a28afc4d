"""The policy file as a model: its fields, and the values that each may have.

The JSON Schema for editors is generated from this code. Values are read as they are written: a number
in quotes is text. Conditions on several fields, such as whether a name is known, are checked in
`headgate.policy.load`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from headgate.decision import OnStoreError
from headgate.errors import ConfigError
from headgate.limit_text import parse_limits
from headgate.limits import Limit
from headgate.policy.client_address import UNIX, Network, parse_network
from headgate.policy.compiled import ANY_TIER
from headgate.policy.cost_field import COST_SCHEMA, read_cost
from headgate.policy.entries_field import ENTRIES_SCHEMA, read_entries
from headgate.policy.header_field import HEADERS_SCHEMA, header_name, read_headers
from headgate.policy.llm_schema import LlmModel, Warn, models_of
from headgate.policy.llm_settings import AtEnd, HoldMode
from headgate.policy.model_parts import (
    ONE_OR_MORE,
    AfterValidator,
    BeforeValidator,
    Field,
    Name,
    Part,
    SomeTexts,
    WithJsonSchema,
    list_of_texts,
    model_validator,
)
from headgate.policy.path_templates import template_segments
from headgate.policy.problems import FieldFaults, shown
from headgate.policy.wait_field import WAIT_SCHEMA, read_wait
from headgate.stores.url import check_store_url

_METHOD = re.compile(r"[A-Z][A-Z0-9_-]{0,31}")
_SOURCES = ("header", "cookie", "query", "entry", "entries", "ip", "first_of")
_HOST = re.compile(r"(\*\.)?[a-z0-9_](?:[a-z0-9._-]*[a-z0-9_])?|\[[0-9a-f:.]+\]")

LimitsByTier = dict[str, tuple[Limit, ...]]


def _methods(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _METHOD.fullmatch(value):
            raise ValueError(f'"{value}" is no method: methods are written GET, POST, DELETE')
    return values


def _paths(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        template_segments(value)
    return values


def _hosts(values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        if not _HOST.fullmatch(value):
            raise ValueError(f'"{value}" is no host: write "api.example.com" or "*.example.com", without a port')
    return values


def _limits(value: object) -> LimitsByTier:
    """Read limits from text, or from a map from tier to text."""
    if isinstance(value, str):
        return {ANY_TIER: _parse(value)}
    if not isinstance(value, dict) or not value:
        raise ValueError('must be text such as "100/minute", or a map from tier to text')
    limits: LimitsByTier = {}
    faults: dict[str, str] = {}
    for tier, text in value.items():
        try:
            limits[tier] = _parse(text)
        except ConfigError as error:
            faults[tier] = error.message
    if faults:
        raise FieldFaults(faults)
    return limits


def _parse(text: object) -> tuple[Limit, ...]:
    if not isinstance(text, str):
        raise ConfigError(f'must be text such as "100/minute", not {shown(text)}')
    return parse_limits(text)


def _network(value: object) -> Network | str:
    if not isinstance(value, str):
        raise ValueError('must be text such as "10.0.0.0/8"')
    return UNIX if value == UNIX else parse_network(value)


def _networks(value: object) -> tuple[Network | str, ...]:
    return tuple(map(_network, list_of_texts(value)))


def _version(value: object) -> object:
    if value != 1 or isinstance(value, bool):
        raise ValueError(f"must be 1, not {shown(value)}")
    return value


def _namespace(value: str) -> str:
    if value in _LIMITER_NAMESPACES:
        raise ValueError(f'"{value}" is where limiters without a policy count: choose another, such as "shop"')
    return value


def _store(value: str) -> str:
    check_store_url(value)
    return value


_LIMITER_NAMESPACES = ("limiter", "limits")
"""The beginnings of a `Limiter`'s keys, at the place of a policy's namespace."""

_LIMITS_SCHEMA = {
    "anyOf": [
        {"type": "string", "examples": ["100/minute", "10/second burst 100; 1000/hour", "20 concurrent; 1000/minute"]},
        {"type": "object", "additionalProperties": {"type": "string"}, "minProperties": 1},
    ]
}
HeaderName = Annotated[str, AfterValidator(header_name)]


class MatchModel(Part):
    """Which requests a rule applies to: every condition that is given must hold. An empty condition is an error."""

    method: Annotated[SomeTexts, AfterValidator(_methods)] = None
    path: Annotated[SomeTexts, AfterValidator(_paths)] = Field(
        None, description="/exact, /users/{id} for any one segment, /api/** for all below; several in a list"
    )
    host: Annotated[SomeTexts, AfterValidator(_hosts)] = None
    model: Annotated[SomeTexts, AfterValidator(models_of)] = Field(
        None, description="of a language model: its name, a prefix of it and a *, or a group"
    )
    ip: Annotated[tuple[Any, ...] | None, BeforeValidator(_networks), WithJsonSchema(ONE_OR_MORE)] = Field(
        None, description="networks that the client's address is in: 10.0.0.0/8, a single address, or unix"
    )
    header: Annotated[Any, BeforeValidator(read_headers), WithJsonSchema(HEADERS_SCHEMA)] = Field(
        None, description="name: value, a list of values, or true for any value"
    )
    entries: Annotated[Any, BeforeValidator(read_entries), WithJsonSchema(ENTRIES_SCHEMA)] = Field(
        None, description="of a descriptor: a map of entries that it has, or a list of all entries in their order"
    )


class IdentityModel(Part):
    """Where an identity is read from: exactly one source."""

    header: HeaderName | None = None
    cookie: HeaderName | None = None
    query: Annotated[str, Field(min_length=1)] | None = None
    entry: Annotated[str, Field(min_length=1)] | None = Field(None, description="the key of a descriptor's entry")
    entries: Literal["all"] | None = Field(None, description="all entries of a descriptor, in their order")
    ip: IpModel | None = None
    first_of: Annotated[list[str], Field(min_length=1)] | None = Field(
        None, description="the first of these identities that a request has"
    )
    secret: bool = Field(False, description="replace the value by a digest before it is used, stored or logged")

    @model_validator(mode="after")
    def _one_source(self) -> IdentityModel:
        sources = [name for name in _SOURCES if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(f"an identity has exactly one source: {', '.join(_SOURCES[:-1])} or {_SOURCES[-1]}")
        if self.secret and sources[0] in ("ip", "first_of"):
            raise ValueError("secret is for the value of a header, a cookie, a query parameter or an entry")
        return self


class IpModel(Part):
    """The client's network, wider or narrower than the built-in `ip`."""

    ipv4_prefix: Annotated[int, Field(ge=8, le=32)] = 32
    ipv6_prefix: Annotated[int, Field(ge=32, le=128)] = 64


class ClientIpModel(Part):
    """Which proxies are trusted for the client's address; without it, the peer's address counts."""

    header: HeaderName | None = Field(None, description="the only header that is read")
    trusted_proxies: list[
        Annotated[Any, BeforeValidator(_network), WithJsonSchema({"type": "string", "examples": ["10.0.0.0/8", UNIX]})]
    ] = Field([])
    trusted_hops: Annotated[int, Field(ge=1, le=32)] | None = Field(
        None, description="read the header's element at this place from the right"
    )
    ipv4_prefix: Annotated[int, Field(ge=8, le=32)] = 32
    ipv6_prefix: Annotated[int, Field(ge=32, le=128)] = 64

    @model_validator(mode="after")
    def _header_and_trust_go_together(self) -> ClientIpModel:
        trust = bool(self.trusted_proxies) or self.trusted_hops is not None
        if (self.header is not None) != trust:
            raise ValueError("header needs trusted_proxies (or trusted_hops), and they need header")
        return self


class TierSourceModel(Part):
    """Where a request's tier is read from."""

    header: HeaderName | None = None
    cookie: HeaderName | None = None
    entry: Annotated[str, Field(min_length=1)] | None = Field(None, description="the key of a descriptor's entry")
    identity: str | None = Field(None, description="look this identity up in map")

    @model_validator(mode="after")
    def _one_source(self) -> TierSourceModel:
        if sum(source is not None for source in (self.header, self.cookie, self.entry, self.identity)) != 1:
            raise ValueError("a tier has exactly one source: header, cookie, entry or identity")
        return self


class TiersModel(Part):
    """Which tier a request has; a tier that no limit names is the default."""

    source: TierSourceModel = Field(alias="from")
    map: dict[str, str] | None = Field(None, description="from the source's value to the tier")
    default: str


class RuleModel(Part):
    """Which requests, counted by which keys, under which limits."""

    name: Name
    match: MatchModel | None = None
    by: list[str] = Field(description="identities that together make the key; [] counts all requests as one")
    limits: Annotated[Any, BeforeValidator(_limits), WithJsonSchema(_LIMITS_SCHEMA)]
    cost: Annotated[Any, BeforeValidator(read_cost), WithJsonSchema(COST_SCHEMA)] = Field(
        None, description="what one request takes: a number, or a map from what limits count to a number"
    )
    wait: Annotated[Any, BeforeValidator(read_wait), WithJsonSchema(WAIT_SCHEMA)] = Field(
        None, description="how long a request may wait in line for its turn before this rule refuses it"
    )
    missing: Literal["anonymous", "refuse"] = Field(
        "anonymous", description="a request without the identity counts as anonymous, or is refused"
    )
    repeated: Literal["count", "refuse"] = Field(
        "count",
        description="a request with an identity sent several times, with different values, counts together with all "
        "others of this kind, or is refused",
    )
    warn: Warn | None = Field(None, description="the used share of a limit at which callers are warned: 80%")
    hold: HoldMode | None = Field(None, description="how much output a call of a language model holds")
    at_end: AtEnd | None = Field(None, description="what happens to a stream for which no slice can be held")
    default: bool = Field(False, description="only where no other rule matched")
    shadow: bool = Field(False, description="counted and reported, never refuses")
    on_store_error: OnStoreError | None = None


class PolicyModel(Part):
    """The rules of one system."""

    version: Annotated[Literal[1], BeforeValidator(_version)]
    namespace: Annotated[Name, AfterValidator(_namespace)] = "default"
    generation: Annotated[int, Field(ge=1, le=1_000_000_000)] = Field(
        1, description="a new one starts all state afresh"
    )
    store: Annotated[str, AfterValidator(_store)] = "memory://"
    on_store_error: OnStoreError | None = Field(
        None, description="for rules that have none of their own; without it, what the store's URL says, or local"
    )
    max_waiting: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        1000, description="how many requests may wait in line at one time, in each process; more are refused"
    )
    client_ip: ClientIpModel = Field(default_factory=lambda: ClientIpModel.model_validate({}))
    identities: dict[Name, IdentityModel] = Field({})
    tiers: TiersModel | None = None
    llm: LlmModel | None = Field(None, description="calls of language models")
    rules: Annotated[list[RuleModel], Field(min_length=1)]
    exempt: list[MatchModel] = Field([], description="requests to which no rule applies")
    rulesets: dict[Name, list[str]] = Field({}, description="sets of rules by name; a caller chooses one by its name")


IdentityModel.model_rebuild()


def policy_schema() -> dict[str, Any]:
    """The JSON Schema of a policy file (draft 2020-12)."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Headgate policy"}
    fields: dict[str, Any] = _without_null(PolicyModel.model_json_schema())
    return head | fields | head


def _without_null(schema: Any) -> Any:
    """A schema in which a field is left out or has a value, as `check_policy` demands."""
    if isinstance(schema, list):
        return [_without_null(item) for item in schema if item != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    fields = {name: _without_null(value) for name, value in schema.items() if (name, value) != ("default", None)}
    if len(fields.get("anyOf", ())) == 1:
        fields |= fields.pop("anyOf")[0]
    return fields
