"""Load a policy with every error at once, each with its path, its line and what would be right.

Three passes over one text: it is read (`yaml_source`), each field is checked by the model, and what concerns
several fields, such as names that must be known, is checked here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path as FilePath
from typing import Any

from pydantic import BaseModel, ValidationError

from headgate.keys import MOST_PARTS
from headgate.policy.cost_problems import cost_problems
from headgate.policy.identity import BUILT_IN
from headgate.policy.identity_problems import Size, identity_problems, identity_sizes
from headgate.policy.llm_schema import LlmModel
from headgate.policy.llm_settings import CALL_IDENTITIES
from headgate.policy.policy_file import read_policy_file
from headgate.policy.problems import FieldFaults, KnownNames, Path, PolicyError, Problem, shown
from headgate.policy.schema import (
    ClientIpModel,
    IdentityModel,
    IpModel,
    MatchModel,
    PolicyModel,
    RuleModel,
    TiersModel,
    TierSourceModel,
)
from headgate.policy.yaml_source import Document, names_that_are_no_text, read_document, unusable_texts

_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "a map",
    "model_type": "a map",
    "model_attributes_type": "a map",
}
_COMPARISONS = {
    "greater_than_equal": ("ge", "at least"),
    "less_than_equal": ("le", "at most"),
    "too_short": ("min_length", "a list of at least"),
    "string_too_short": ("min_length", "a text of at least"),
}


def load_policy(path: str | FilePath) -> PolicyModel:
    """Load a policy from a file; raises PolicyError, or OSError where the file cannot be read."""
    return parse_policy(read_policy_file(FilePath(path)), source=str(path))


def parse_policy(text: bytes | str, *, source: str = "policy") -> PolicyModel:
    """Load a policy from a text; raises PolicyError with all errors."""
    return check_policy(read_document(text, source))


def build_policy(value: Mapping[str, Any], *, source: str = "policy") -> PolicyModel:
    """Load a policy from values as a file would contain them; raises PolicyError with all errors."""
    return check_policy(Document(source, value))


def check_policy(document: Document) -> PolicyModel:
    """Check a document and return its policy; raises PolicyError with all errors."""
    if unusable := list(unusable_texts(document)):
        raise PolicyError(document.source, [*document.problems, *unusable])
    names = list(names_that_are_no_text(document))
    problems = [*document.problems, *names]
    model: PolicyModel | None = None
    if not isinstance(document.value, Mapping):
        problems.append(
            document.problem((), f"a policy is a map that begins with version: 1, not {shown(document.value)}")
        )
    else:
        try:
            model = PolicyModel.model_validate(document.value)
        except ValidationError as error:
            reported = {name.path for name in names}
            for problem in _model_problems(document, error):
                if not any(problem.path[:length] in reported for length in range(len(problem.path) + 1)):
                    problems.append(problem)
        else:
            problems.extend(document.problem(path, message) for path, message in cost_problems(model))
        problems.extend(document.problem(path, message) for path, message in _connections(document.value))
        problems.extend(_empty_fields(document, {problem.path for problem in problems}))
    if problems or model is None:
        raise PolicyError(document.source, problems)
    return model


def _model_problems(document: Document, error: ValidationError) -> Iterator[Problem]:
    for fault in error.errors(include_url=False):
        if fault["type"] == "invalid_key":
            continue  # `names_that_are_no_text` reports it
        path = tuple(part for part in fault["loc"] if part != "[key]")
        cause = fault.get("ctx", {}).get("error")
        if isinstance(cause, FieldFaults):
            for name, message in cause.faults.items():
                yield document.problem((*path, name), message)
        else:
            yield document.problem(path, _message(path, fault))


def _message(path: Path, fault: Any) -> str:
    """The message of a fault: what is wrong, the value seen, and what would be right."""
    kind: str = fault["type"]
    value = fault["input"]
    context = fault.get("ctx", {})
    if kind == "missing":
        return "is missing"
    if kind == "extra_forbidden":
        return _unknown_field(path)
    if kind == "value_error":
        return str(context["error"])
    if kind == "literal_error":
        return f"must be {context['expected']}, not {shown(value)}"
    if kind == "string_pattern_mismatch":
        return f"a name is a lower-case letter and up to 63 more of a-z 0-9 _ . -, not {shown(value)}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, not {shown(value)}"
    if kind in _COMPARISONS:
        bound, phrase = _COMPARISONS[kind]
        return f"must be {phrase} {context[bound]}, not {shown(value)}"
    return f"{fault['msg'][:1].lower()}{fault['msg'][1:]}, not {shown(value)}"


def _empty_fields(document: Document, reported: Collection[Path]) -> Iterator[Problem]:
    """Yield a problem for each field that is present without a value, unless another problem is `reported` for it.

    `match:` with nothing after it would let a rule apply to all requests.
    """
    pending: list[tuple[Path, Any]] = [((), document.value)]
    while pending:
        path, value = pending.pop()
        items = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
        for name, content in items:
            place = (*path, name)
            if content is not None:
                pending.append((place, content))
            elif place not in reported and _model_at(path) is not None:
                yield document.problem(place, "has no value: write one, or leave the field out")


def _unknown_field(path: Path) -> str:
    name = str(path[-1])
    if name == "<<":
        return "no such field: << merges nothing here; write the fields out, or repeat single values by *aliases"
    model = _model_at(path[:-1])
    known = [field.alias or own_name for own_name, field in model.model_fields.items()] if model else []
    close = get_close_matches(name, known, n=1, cutoff=0.6)
    hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(known)}" if known else ""
    return f"no such field{hint}"


def _model_at(path: Path) -> type[BaseModel] | None:
    """The model of the fields at a path."""
    match path:
        case ():
            return PolicyModel
        case ("rules", int()):
            return RuleModel
        case ("rules", int(), "match") | ("exempt", int()):
            return MatchModel
        case ("identities", str()):
            return IdentityModel
        case ("identities", str(), "ip"):
            return IpModel
        case ("client_ip",):
            return ClientIpModel
        case ("tiers",):
            return TiersModel
        case ("llm",):
            return LlmModel
        case ("tiers", "from"):
            return TierSourceModel
        case _:
            return None


def _connections(policy: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield the problems that concern several fields. Values may be of any shape: the model checks shapes."""
    identities = _map(policy.get("identities"))
    of_calls = CALL_IDENTITIES if policy.get("llm") is not None else ()
    known = KnownNames("identity", (*identities, *BUILT_IN, *of_calls))
    sizes = identity_sizes(identities)
    yield from identity_problems(identities, known, (*BUILT_IN, *of_calls), sizes)
    yield from _tier_connections(_map(policy.get("tiers")), known)
    names: dict[str, int] = {}
    for index, rule in _maps(policy.get("rules")):
        path: Path = ("rules", index)
        yield from _rule_connections(path, rule, sizes, known, policy.get("tiers"))
        name = rule.get("name")
        if isinstance(name, str):
            if name in names:
                yield (*path, "name"), f"rules[{names[name]}] is named {name!r} too: state is kept by name"
            names.setdefault(name, index)
    for index, match in _maps(policy.get("exempt")):
        if not match:
            yield ("exempt", index), "needs a condition: an empty one would exempt every request"
    known_rules = KnownNames("rule", names)
    for ruleset, members in _map(policy.get("rulesets")).items():
        for place, member in _texts(members):
            if member not in known_rules:
                yield ("rulesets", ruleset, place), known_rules.unknown(member)


def _tier_connections(tiers: Mapping[str, Any], known: KnownNames) -> Iterator[tuple[Path, str]]:
    identity = _map(tiers.get("from")).get("identity")
    if isinstance(identity, str) and identity not in known:
        yield ("tiers", "from", "identity"), known.unknown(identity)
    if identity is not None and "map" not in tiers and not (identity == "tier" and "tier" in known):
        yield ("tiers",), "a tier from an identity needs map, from its values to tiers"


def _rule_connections(
    path: Path, rule: Mapping[str, Any], sizes: Mapping[str, Size], known: KnownNames, tiers: object
) -> Iterator[tuple[Path, str]]:
    counted: list[str] = []
    for place, name in _texts(rule.get("by")):
        if name not in known:
            yield (*path, "by", place), known.unknown(name)
        elif name in counted:
            yield (*path, "by", place), f"{name!r} is there twice"
        counted.append(name)
    by_parts = [max(sizes[name].parts if name in sizes else 1, 2) for name in counted]  # a missing identity has two
    parts = sum(by_parts)
    if parts > MOST_PARTS >= max(by_parts):  # one that is too long by itself is a problem of its own
        yield (*path, "by"), f"makes a key of up to {parts} parts, which has {MOST_PARTS} at the most"
    limits = rule.get("limits")
    if isinstance(limits, Mapping) and limits:
        if not isinstance(tiers, Mapping):
            yield (*path, "limits"), "limits by tier need tiers: where a request's tier is read from"
        elif isinstance(tiers.get("default"), str) and tiers["default"] not in limits:
            yield (*path, "limits"), f"has no limits for the default tier {tiers['default']!r}"


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _maps(value: object) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, Mapping):
            yield index, item


def _texts(value: object) -> Iterator[tuple[int, str]]:
    for index, item in enumerate(value if isinstance(value, list) else ()):
        if isinstance(item, str):
            yield index, item
