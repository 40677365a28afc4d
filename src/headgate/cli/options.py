"""Options that are requests, addresses or numbers: misuse is reported before any work begins."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from headgate.policy.client_address import UNIX
from headgate.policy.descriptor import MOST_ENTRIES, REMOTE_ADDRESS, Descriptor
from headgate.policy.policy_file import reads_as_limits
from headgate.policy.request import Request

if TYPE_CHECKING:
    from headgate.service.workers.certificate import CertificateFiles

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HOST = re.compile(r"(?:[^\s\x00-\x20\x7f/?#@\[\]:]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_SHORTEST_HANG_S = 3
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


_LONGEST_NUMBER = 60


class Text(click.types.StringParamType):
    """A text that is no name of a file. Where the locale has ASCII alone, Python leaves other bytes undecoded."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = super().convert(value, param, ctx)
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "surrogateescape")


TEXT = Text()


class Whole(click.IntRange):
    """A whole number in a range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        _refuse_long_number(self, value, param, ctx)
        number: int = super().convert(value, param, ctx)
        return number


class Finite(click.FloatRange):
    """A number in a range; nan is in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        _refuse_long_number(self, value, param, ctx)
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return number


def _refuse_long_number(
    kind: click.IntRange | click.FloatRange, value: Any, param: click.Parameter | None, ctx: click.Context | None
) -> None:
    """Refuse a text that is too long for a number: click would show all of it, or that it is infinite."""
    if isinstance(value, str) and len(value) > _LONGEST_NUMBER:
        kind.fail(f"{value[:20]}... is {len(value)} characters long, which no number here may be", param, ctx)


class PolicyFile(click.Path):
    """The file of a policy; if limits are given in its place, the error shows a policy file with them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, str) and reads_as_limits(value) and not os.path.lexists(value):
            limits = value if value.isprintable() and len(value) <= 60 else "100/minute"
            self.fail(
                f"{value[:60]!r} is no file and reads as limits. A policy file has limits in rules:\n"
                f"  version: 1\n  rules:\n    - {{name: all, by: [ip], limits: {limits}}}",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


# Reading shows whether a file can be read: with status 1, and for each of several files separately.
POLICY_FILE = PolicyFile(path_type=Path, readable=False)
FILE_TO_READ = click.Path(path_type=Path, readable=False)

Option = Callable[[Callable[..., None]], Callable[..., None]]
"""Adds an option to the function of a command."""


def number(
    *names: str, default: int | float, least: int | float, most: int | float, help: str, metavar: str | None = None
) -> Option:
    """An option that is a number in [least, most] and shows its default: seconds where that is a float."""
    kind: click.ParamType[Any] = Finite(least, most)
    if isinstance(default, int):
        kind = Whole(int(least), int(most))
    else:
        metavar = "SECONDS"
    return click.option(*names, default=default, show_default=True, type=kind, metavar=metavar, help=help)


def worker_timeout(default: float) -> Option:
    """`--worker-timeout`, given as `hang_s`."""
    return click.option(
        "--worker-timeout", "hang_s", default=default, show_default=True, type=Finite(0, 3600), metavar="SECONDS",
        callback=_hang_s, help="A worker that has not moved for so long is replaced; 0 is never.",
    )  # fmt: skip


def _hang_s(context: click.Context, parameter: click.Parameter, value: float) -> float:
    if 0 < value < _SHORTEST_HANG_S:
        raise click.BadParameter(f"a worker shows once a second that it moves: {_SHORTEST_HANG_S} or more, or 0")
    return value


def method(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The method of a request, in upper case."""
    if not _TOKEN.fullmatch(value):
        raise click.BadParameter(f"{value[:60]!r} is no method: methods are written GET, POST, DELETE")
    return value.upper()


def path(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The path of a request, with its query; `*` is that of OPTIONS for a whole server."""
    if value != "*" and (not value.startswith("/") or _CONTROL.search(value)):
        raise click.BadParameter(
            f"{value[:60]!r} is no path: a path begins with / and may carry a query, such as /users/7?page=1; "
            "the host has an option of its own"
        )
    return value


def address(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The address of a peer; "" where none is given."""
    if value not in ("", UNIX):
        try:
            ip_address(value)
        except ValueError:
            raise click.BadParameter(
                f"{value[:60]!r} is no address: write 203.0.113.9, 2001:db8::1, or {UNIX} for the peer of a Unix socket"
            ) from None
    return value


def host(context: click.Context, parameter: click.Parameter, value: str) -> str:
    """The host that a request is sent to, with its port or without."""
    if value and not _HOST.fullmatch(value):
        raise click.BadParameter(f"{value[:60]!r} is no host: write api.example.com, with a port or without")
    return value


def subject(
    context: click.Context,
    entries: list[tuple[str, str]],
    *,
    method: str,
    path: str,
    ip: str,
    headers: list[tuple[str, str]],
    host: str,
) -> Request | Descriptor:
    """The descriptor of these entries, where there are any; else the request."""
    if not entries:
        return Request(method, path, headers=headers, client_ip=ip, host=host)
    for name in ("method", "path", "ip", "headers", "host"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = name.removesuffix("s")
            hint = f"; its address is --entry {REMOTE_ADDRESS}={ip}" if name == "ip" else ""
            raise click.UsageError(f"--entry is of a descriptor, which has no --{option}{hint}")
    return Descriptor(entries)


def entries(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """Entries of a descriptor written KEY=VALUE, as pairs."""
    pairs = []
    for text in values:
        key, separator, value = text.partition("=")
        if not separator or not key:
            raise click.BadParameter(f"an entry is written KEY=VALUE, not {text[:60]!r}")
        pairs.append((key, value))
    if len(pairs) > MOST_ENTRIES:
        raise click.BadParameter(f"a descriptor has at most {MOST_ENTRIES} entries, not {len(pairs)}")
    return pairs


def headers(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[tuple[str, str]]:
    """Headers written NAME:VALUE, as pairs."""
    pairs = []
    for text in values:
        name, separator, value = text.partition(":")
        if not separator or not name.strip():
            raise click.BadParameter(f"a header is written NAME:VALUE, not {text[:60]!r}")
        if not _TOKEN.fullmatch(name.strip()):
            raise click.BadParameter(f"{name.strip()[:60]!r} is no name of a header")
        if _CONTROL.search(value.strip().replace("\t", " ")):
            raise click.BadParameter(f"the value of the header {name.strip()} holds a control character")
        pairs.append((name.strip(), value.strip()))
    return pairs


def certificate_files(certificate: Path | None, key: Path | None, client_ca: Path | None) -> CertificateFiles | None:
    """The files of TLS; None where none is given."""
    from headgate.service.workers.certificate import CertificateFiles

    if certificate is not None and key is not None:
        return CertificateFiles(certificate, key, client_ca)
    files = {"--tls-certificate": certificate, "--tls-key": key, "--tls-client-ca": client_ca}
    for option in (name for name, file in files.items() if file is not None):
        missing = "--tls-certificate" if certificate is None else "--tls-key"
        raise click.UsageError(f"{option} needs {missing}: TLS needs a certificate and its key, each in a file in PEM")
    return None
