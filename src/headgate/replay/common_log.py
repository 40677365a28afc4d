"""The common and combined log formats and their extensions.

`client ident user [time] "request" status bytes "referer" "agent"` and anything after that; a virtual host may precede
it, with its port or before a client that is an address. Only the client, the time and the request are required. A line
with an unclosed quote counts as cut off, except where the quote is inside a request that is followed by status and
bytes: old servers did not escape requests.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from headgate import core
from headgate.policy.client_address import UNIX
from headgate.replay.entries import LONGEST_LINE, Block, Entry, Unreadable, peer_of
from headgate.replay.log_costs import CostFields
from headgate.replay.times import TimeReader

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_HEAD = re.compile(
    r'([^\s"]+) (?![^\s"\[]*[.:][^\s"\[]* )[^\["]*\[([^\]"]{1,64})\] '
    r'"([A-Z]{1,32}) (/[^ "]*) HTTP/[0-9.]{1,3}" '
)
"""The start of a plain line, which is all that is needed when no header is read."""

_ADDRESS = r"(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-fA-F]*:[0-9a-fA-F.:]+)"
_VHOST = (
    r"(?:(?P<vhost>[^\s\[\":]+:\d+(?= [^\s\[]+ [^\s\[]+ [^\s\[])"
    rf"|(?!{_ADDRESS} )[^\s\[\"]+(?= {_ADDRESS} [^\s\[]+ [^\s\[])) )?"
)

_UNTIL_TIME = (
    r"(?P<client>\S+) \s*(?:(?P<ident>[^\s\[]+)(?P<user>\s[^\[]*)?)?"
    r"\[(?P<time>[^\]]{1,64})\]"
)
_LINE = re.compile(
    rf"{_VHOST}{_UNTIL_TIME} {_QUOTED.replace('(', '(?P<request>', 1)}"
    rf"(?: (?P<status>\d{{3}}|-))?(?: (?P<bytes>\d+|-))?"
    rf"(?: {_QUOTED.replace('(', '(?P<referer>', 1)} {_QUOTED.replace('(', '(?P<agent>', 1)})?(?P<rest>.*)",
    re.DOTALL,
)
_UNESCAPED_LINE = re.compile(
    rf'{_VHOST}{_UNTIL_TIME} "(?P<request>.*?)" (?P<status>\d{{3}}|-) (?P<bytes>\d+|-)'
    rf"(?: {_QUOTED.replace('(', '(?P<referer>', 1)} {_QUOTED.replace('(', '(?P<agent>', 1)})?(?P<rest>| .*)",
    re.DOTALL,
)
"""A line whose request may contain quotes: it ends where a status and a size follow."""

_WHOLE_REQUEST = re.compile(r".* HTTP/[0-9.]{1,3}", re.DOTALL)
_QUOTES_OF_REST = re.compile(rf'[^"]*(?:{_QUOTED}[^"]*)*')
_EMPTY_ADDRESS = " - "
"""The start of a gunicorn line for the peer of a Unix socket: the address is empty."""

_IS_ADDRESS = re.compile(_ADDRESS)
_CLIENT_AT_END = re.compile(rf"\s({_ADDRESS}) \S+ \S+ $")

_PORT = re.compile(r":\d+$|^-$")
_HOST_END = re.compile(r"[/?#]")
_METHOD = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_UNESCAPED = {'\\"': '"', "\\\\": "\\"}

FIELDS = ("client", "ident", "user", "time", "request", "status", "bytes", "referer", "agent", "vhost")
"""The fields of a line that headers and costs may be read from."""

_NO_COSTS = CostFields({})


def common_reader(
    read_time: TimeReader, headers: Mapping[str, str], costs: CostFields = _NO_COSTS
) -> Callable[[str], Entry]:
    """A reader of lines. `headers` maps names of headers to the FIELDS that they are read from, as `costs` does."""
    names = costs.find(FIELDS)

    def read(line: str) -> Entry:
        if not headers and not names and len(line) <= LONGEST_LINE:
            # Most lines need only their head to be read: no escape anywhere, and every quote closed.
            match = _HEAD.match(line)
            if match is not None and "\\" not in line and not line.count('"') & 1:
                client, time, method, path = match.groups()
                if client.count(":") != 1:  # one colon: a virtual host and its port
                    return (read_time(time), client, method, path, "", _NO_HEADERS, 1)
        return _read_fully(line, read_time, headers, costs)

    return read


def read_block(
    block: str, read_time: TimeReader, read_other: Callable[[int, str], Entry | None], *, by_head: bool
) -> Block:
    """The entries of a block of lines; with `by_head` the native core, if available, reads plain lines by their head.

    All others are read by `read_other`, which gets the number of the line in the block, counted from 0.
    """
    if by_head and core.native is not None:
        entries: Block = core.native.LogBlock.read(block, read_time.naive_is_utc, read_other)
        return entries
    read = (read_other(number, line) for number, line in enumerate(block.split("\n")))
    return [entry for entry in read if entry is not None]


def words_before_clients(lines: Iterable[str]) -> str:
    """The words before the client in the first of these lines, if all readable lines have such words; else "".

    Examples are the time and the host of syslog, and the names of containers: a word of them would be read as the
    client.
    """
    words = ""
    for line in lines:
        try:
            match = _match(line)
        except Unreadable:
            continue
        between = line[match.end("client") : match.start("time") - 1]
        client = None if _IS_ADDRESS.fullmatch(match["client"]) else _CLIENT_AT_END.search(between)
        if client is None:
            return ""
        words = words or line[: match.end("client") + client.start(1)].rstrip()
    return words


def split_request(request: str) -> tuple[str, str]:
    """The method and the target of a request line; "" for a missing one."""
    parts = request.split(" ")
    method = parts[0].upper() if _METHOD.fullmatch(parts[0]) else ""
    if not method or len(parts) < 2:
        return method, ""
    return method, " ".join(parts[1:-1]) if len(parts) > 2 and parts[-1].startswith("HTTP/") else parts[1]


def split_target(target: str) -> tuple[str, str]:
    """The host, and the path and query, of a request target, which may be a whole URL; "" for what it has not."""
    if target.startswith("/"):
        return "", target
    _, scheme, rest = target.partition("://")
    if not scheme:
        return "", ""
    host = _HOST_END.split(rest, maxsplit=1)[0]
    slash = rest.find("/")
    return host, rest[slash:] if slash >= 0 else "/"


def _read_fully(line: str, read_time: TimeReader, headers: Mapping[str, str], costs: CostFields) -> Entry:
    if len(line) > LONGEST_LINE:
        raise Unreadable(f"the line is longer than {LONGEST_LINE} characters")
    match = _match(UNIX + line if line.startswith(_EMPTY_ADDRESS) else line)
    method, target = split_request(_unescape(match["request"]))
    named_host, path = split_target(target)
    found_headers = {}
    for name, field in headers.items():
        value = _field(match, field)
        if value and value != "-":
            found_headers[name] = _unescape(value)
    host = _PORT.sub("", _field(match, "vhost") or "") or found_headers.get("host") or named_host
    cost = costs.read(costs.find(FIELDS), lambda field: _field(match, field))
    return (read_time(match["time"]), peer_of(match["client"]), method, path, host, found_headers, cost)


def _match(line: str) -> re.Match[str]:
    """The fields of a line; raises Unreadable for one in another format, or a truncated one."""
    match = _LINE.fullmatch(line)
    if match is None or not (match["status"] or _WHOLE_REQUEST.fullmatch(match["request"])):
        unescaped = _UNESCAPED_LINE.fullmatch(line)
        if unescaped is not None and _QUOTES_OF_REST.fullmatch(unescaped["rest"]):
            return unescaped
    if match is None:
        raise Unreadable('it is not: client ident user [time] "request" ...')
    after = match.end("request") + 1
    continues = line[after : after + 1] not in ("", " ")  # the quote did not end the request
    if continues or not _QUOTES_OF_REST.fullmatch(match["rest"]):
        raise Unreadable("it is cut off inside a quoted field")
    return match


def _field(match: re.Match[str], name: str) -> str | None:
    value: str | None = match.groupdict().get(name)
    return value.strip() if value and name == "user" else value


def _unescape(text: str) -> str:
    return re.sub(r'\\["\\]', lambda match: _UNESCAPED[match[0]], text) if "\\" in text else text


_NO_HEADERS: dict[str, str] = {}
