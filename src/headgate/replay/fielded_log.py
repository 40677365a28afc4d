"""Logs whose fields have names: JSON lines, and CSV or TSV with a header line.

The usual names are known; others can be configured. A JSON log may nest: `request.method` is the field `method` of
`request`.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from headgate.replay.common_log import split_request, split_target
from headgate.replay.entries import LONGEST_LINE, Entry, LogCost, Unreadable, peer_of
from headgate.replay.log_costs import PLAIN, CostFields
from headgate.replay.times import TimeReader, is_clock

KNOWN_NAMES: dict[str, tuple[str, ...]] = {
    "time": (
        "time", "timestamp", "@timestamp", "ts", "time_local", "time_iso8601", "msec", "datetime", "date_time",
        "startutc", "start_time", "epoch", "requesttime", "eventtime", "date",
    ),
    "date": ("date", "log_date", "day"),
    "client": (
        "client", "client_ip", "clientip", "ip", "remote_addr", "remote_ip", "remote_host", "remoteaddr", "host_ip",
        "c-ip", "clienthost", "client_addr", "downstream_remote_address", "request.remote_ip", "request.client_ip",
        "source_ip", "src_ip", "remote", "address",
    ),
    "method": ("method", "request_method", "http_method", "requestmethod", "cs-method", "verb", "request.method"),
    "path": (
        "path", "uri", "url", "request_uri", "request_path", "requestpath", "cs-uri-stem", "target", "request.uri",
        "request.url", "request.path",
    ),
    "request": ("request", "request_line"),
    "host": (
        "vhost", "server_name", "http_host", "authority", "requesthost", "cs-host", "x-host-header",
        "cs(host)", "request.host",
    ),
    "cost": (),
}  # fmt: skip
"""The usual names of fields, in any case; the first one that a log has is used. A cost is always configured."""


_PROBABLE_HOST = "probable host"
"""The role of a field `host` in a log that has another client: it is the host, or the name of the server's machine."""


class FieldNames:
    """Finds the fields of a log by their roles: by configured names first, then by the usual ones.

    `absent` are the configured names that no line has had so far.
    """

    def __init__(self, configured: Mapping[str, str], *, needs_client: bool, units: Mapping[str, str] = {}) -> None:
        self._configured = {role: name for role, name in configured.items() if role != "cost"}
        self.costs = CostFields(units or ({PLAIN: configured["cost"]} if "cost" in configured else {}))
        self.needed = ("time", "client") if needs_client else ("time",)
        self.absent = dict(self._configured)

    def resolve(self, available: Iterable[str]) -> dict[str, str]:
        """The log's names for time, client, method, path, request and host, as far as it has them."""
        by_lower = {name.lower(): name for name in reversed(list(available))}
        resolved = {}
        for role, known_names in KNOWN_NAMES.items():
            candidates = (self._configured[role],) if role in self._configured else known_names
            name = next((by_lower[one.lower()] for one in candidates if one.lower() in by_lower), None)
            if name is not None:
                resolved[role] = name
                self.absent.pop(role, None)
        if "client" in resolved and "host" not in self._configured:
            host = by_lower.get("host")  # a log without another client may call it `host`
            if host is not None and host not in resolved.values():
                resolved[_PROBABLE_HOST] = host
        if resolved.get("date") == resolved.get("time"):
            resolved.pop("date", None)
        return resolved


def entry_of(
    roles: Mapping[str, object], needed: Iterable[str], read_time: TimeReader, headers: dict[str, str], cost: LogCost
) -> Entry:
    """Make an entry from the values of its roles; raises Unreadable if a needed one is missing."""
    for role in needed:
        if roles.get(role) in (None, ""):
            raise Unreadable(f"it has no {role}")
    method, path = str(roles.get("method") or ""), str(roles.get("path") or "")
    request = roles.get("request")
    if isinstance(request, str) and not (method and path):
        request_method, request_path = split_request(request)
        method, path = method or request_method, path or request_path
    named_host, path = split_target(path)
    host = str(roles.get("host") or headers.get("host") or named_host or roles.get(_PROBABLE_HOST) or "")
    client = peer_of(str(roles.get("client") or ""))
    time = _time_text(roles["time"])
    day = roles.get("date")
    if day and is_clock(time):
        time = f"{_time_text(day)} {time}"
    return (read_time(time), client, method.upper(), path, host, headers, cost)


def json_reader(names: FieldNames, read_time: TimeReader, headers: Mapping[str, str]) -> Callable[[str], Entry]:
    """A reader of JSON lines. `headers` maps names of headers to the fields they are read from."""
    names.absent |= {f"header {header}": field for header, field in headers.items()}

    def read(line: str) -> Entry:
        if len(line) > LONGEST_LINE:
            raise Unreadable(f"the line is longer than {LONGEST_LINE} characters")
        try:
            value = json.loads(line, parse_float=Decimal) if names.costs.has_money else json.loads(line)
        except (ValueError, RecursionError) as error:
            raise Unreadable("it is not JSON") from error
        if not isinstance(value, dict):
            raise Unreadable("it is no JSON object")
        flat = _flatten(value)
        if "\\u" in line:
            flat = {name: _without_lone_surrogates(content) for name, content in flat.items()}
        resolved = names.resolve(flat)
        roles = {role: flat[name] for role, name in resolved.items()}
        by_lower = {name.lower(): content for name, content in flat.items()}
        found_headers = {}
        for header, field in headers.items():
            content = by_lower.get(field.lower())
            if content not in (None, "", "-"):
                found_headers[header] = str(content)
            if names.absent and field.lower() in by_lower:
                names.absent.pop(f"header {header}", None)
        cost = names.costs.read(names.costs.find(flat), flat.__getitem__) if names.costs else 1
        return entry_of(roles, names.needed, read_time, found_headers, cost)

    return read


def row_reader(
    columns: Sequence[str], names: FieldNames, read_time: TimeReader, headers: Mapping[str, str]
) -> Callable[[Sequence[str]], Entry]:
    """A reader of rows with these columns; raises Unreadable where time, client or a configured field is missing."""
    resolved = names.resolve(columns)
    for role, field in names.absent.items():
        raise Unreadable(f"no column is named {field!r} for the {role}: there are {_listed(columns)}")
    if "client" not in resolved:  # in tables a host is the client, in JSON it is the server
        resolved.update(("client", name) for name in columns if name.lower() == "host")
    for role in names.needed:
        if role not in resolved:
            raise Unreadable(
                f"no column is named like a {role}: there are {_listed(columns)}; say which with --field {role}=COLUMN"
            )
    places = {role: list(columns).index(name) for role, name in resolved.items()}
    by_lower = {name.lower(): place for place, name in enumerate(columns)}
    for header, field in headers.items():
        if field.lower() not in by_lower:
            raise Unreadable(f"no column is named {field!r} for the header {header}: there are {_listed(columns)}")
    cost_names = names.costs.find(columns)
    header_places = {header: by_lower[field.lower()] for header, field in headers.items()}

    def read(row: Sequence[str]) -> Entry:
        try:
            roles: dict[str, object] = {role: row[place] for role, place in places.items()}
            found_headers = {
                header: row[place] for header, place in header_places.items() if row[place] not in ("", "-")
            }
            cost = names.costs.read(cost_names, lambda name: row[by_lower[name.lower()]]) if cost_names else 1
        except IndexError:
            raise Unreadable(f"it has {len(row)} of {len(columns)} columns") from None
        return entry_of(roles, names.needed, read_time, found_headers, cost)

    return read


def row_fault(error: csv.Error) -> str:
    """Describe what is wrong with a row, for users who do not know the parser."""
    text = str(error)
    if "new-line character" in text:
        return "a carriage return is inside a field that is not quoted"
    return text


def _listed(columns: Sequence[str]) -> str:
    return ", ".join(filter(None, columns))[:200]


def _flatten(value: Mapping[str, Any]) -> dict[str, object]:
    """Plain fields by their names; those of nested objects by `outer.inner`, two levels deep."""
    flat: dict[str, object] = {}
    for name, content in value.items():
        if not isinstance(content, dict):
            flat[name] = _first_value(content)
            continue
        for inner, inner_content in content.items():
            if isinstance(inner_content, dict):
                for innermost, last in inner_content.items():
                    flat[f"{name}.{inner}.{innermost}"] = _first_value(last)
            else:
                flat[f"{name}.{inner}"] = _first_value(inner_content)
    return flat


def _without_lone_surrogates(value: object) -> object:
    """Replace lone surrogates in a text, which JSON can contain but UTF-8 cannot encode."""
    if not isinstance(value, str):
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _first_value(value: object) -> object:
    """The first value of a list: some servers write a header's values as a list."""
    return value[0] if isinstance(value, list) and value else value


def _time_text(value: object) -> str:
    if isinstance(value, float | Decimal):
        return f"{value:.6f}"
    return str(value)
