"""`headgate llm key`: the keys of the proxy's clients."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

import click

from headgate.cli import options
from headgate.cli.group import Group
from headgate.clock import SYSTEM_CLOCK, utc_moment
from headgate.errors import ConfigError
from headgate.periods import parse_period

_KEYS_OPTION = click.option(
    "--keys", required=True, metavar="PLACE",
    help="The file of the keys, which its owner alone reads; or the URL of a Redis, such as redis://HOST.",
)  # fmt: skip
_SHORT_PERIOD = re.compile(r"([0-9]+) ?([a-z]+)")


@click.group(cls=Group)
def key() -> None:
    """Make, list and revoke the keys by which users call the proxy."""


@key.command()
@click.argument("name", type=options.TEXT)
@_KEYS_OPTION
@click.option("--user", default="", type=options.TEXT, help="Who calls with it, for rules that count by user.")
@click.option("--team", default="", type=options.TEXT, help="The caller's team, for rules that count by team.")
@click.option(
    "--organisation",
    default="",
    type=options.TEXT,
    help="The caller's organisation, for rules that count by organisation.",
)
@click.option("--tier", default="", type=options.TEXT, help="The tier whose limits apply.")
@click.option("--expires", metavar="WHEN", help="After so long, such as 30d, or on a date, such as 2027-01-31 (UTC).")
@click.option("--names-users", is_flag=True, help="Its calls may name a user in the header X-Headgate-User.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def create(name: str, keys: str, expires: str | None, as_json: bool, **fields: str | bool) -> None:
    """Make a key called NAME, and print it: it is shown this once, and kept as a digest."""
    from headgate.llm_proxy.key_places import keys_at
    from headgate.llm_proxy.own_key import new_key

    now_us = SYSTEM_CLOCK.now_us()
    secret, stored = new_key(name, now_us=now_us, expires_us=_expiry_us(expires, now_us), **fields)
    place = keys_at(keys)
    place.add(stored)
    try:
        click.echo(
            json.dumps({"name": name, "key": secret, "expires": _utc_text(stored.expires_us)}) if as_json else secret
        )
    except OSError:
        place.revoke(name, now_us)
        click.echo(f"headgate: the key {name} could not be printed, and is revoked", err=True)
        raise
    if not as_json:
        click.echo(f"headgate: the key {name} is in force; it is not shown again", err=True)


@key.command("list")
@_KEYS_OPTION
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_keys(keys: str, as_json: bool) -> None:
    """Show the keys: their names, how they begin, whose they are, and whether they open the proxy."""
    from headgate.llm_proxy.key_places import keys_at

    now_us = SYSTEM_CLOCK.now_us()
    key_rows = [
        {
            "name": each.name,
            "key": f"{each.start}...",
            "state": each.state(now_us),
            "user": each.user,
            "team": each.team,
            "organisation": each.organisation,
            "tier": each.tier,
            "created": _utc_text(each.created_us),
            "expires": _utc_text(each.expires_us),
        }
        for each in keys_at(keys).all()
    ]
    if as_json:
        click.echo(json.dumps(key_rows))
        return
    columns = ("name", "key", "state", "user", "team", "organisation", "tier", "expires")
    rows = [columns, *([str(each[column] or "-") for column in columns] for each in key_rows)]
    widths = [max(len(row[place]) for row in rows) for place in range(len(columns))]
    for row in rows:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


@key.command()
@click.argument("name", type=options.TEXT)
@_KEYS_OPTION
def revoke(name: str, keys: str) -> None:
    """Revoke the key called NAME: the proxy refuses it from its next call on."""
    from headgate.llm_proxy.key_places import keys_at

    if not keys_at(keys).revoke(name, SYSTEM_CLOCK.now_us()):
        raise ConfigError(f"no key that is in force is called {name[:40]!r}")
    click.echo(f"headgate: the key {name} is revoked", err=True)


def _expiry_us(text: str | None, now_us: int) -> int | None:
    """The time at which a key expires: after a period, or at the start of a day in UTC."""
    if text is None:
        return None
    try:
        day = datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        try:
            return now_us + parse_period(_SHORT_PERIOD.sub(r"\1 \2", text.strip()))
        except ConfigError:
            raise click.BadParameter(
                f"{text[:40]!r} is neither a period, such as 30d or 12 hours, nor a date, such as 2027-01-31"
            ) from None
    return int(day.timestamp()) * 1_000_000


def _utc_text(at_us: int | None) -> str | None:
    return None if at_us is None else f"{utc_moment(at_us):%Y-%m-%dT%H:%M:%SZ}"


COMMANDS = (key,)
