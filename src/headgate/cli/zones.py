"""`headgate zone`: inspects a shared zone and removes states from it, while other processes use it."""

from __future__ import annotations

import json

import click

from headgate.amounts import amount_text
from headgate.cli import options
from headgate.cli.group import Group
from headgate.clock import US_PER_SECOND, ahead_us, utc_moment
from headgate.errors import ConfigError
from headgate.keys import Key
from headgate.limit_text import parse_limits
from headgate.stores.url import existing_zone

_KEY_HELP = "KEY is a text; several are the parts of one key, such as those of a rule that counts by two identities."


@click.group(cls=Group)
def zone() -> None:
    """Look into the zone of a shared store (its PATH, or its shared:// URL) while others use it."""


@zone.command()
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def info(path: str, as_json: bool) -> None:
    """Show what a zone holds, how full it is, and the limits that it knows."""
    store = existing_zone(path)
    facts, stats, offset_us = store.info(), store.stats(), ahead_us(store.clock)
    limits = [{"scope": scope, "limit": text} for scope, text in store.known_limits()]
    if as_json:
        click.echo(
            json.dumps(
                {"path": str(store.path), **facts, "clock_offset_us": offset_us, **stats._asdict(), "limits": limits}
            )
        )
        return
    created = utc_moment(facts["created_us"])
    rows = {
        "zone": f"{store.path}, {facts['size']:,} bytes, made {created:%Y-%m-%d %H:%M:%S} UTC",
        "states": f"{stats.keys:,} of {stats.max_keys:,}",
        "holds": f"{stats.holds:,} of {stats.max_holds:,}",
        "log blocks": f"{facts['log_blocks_held']:,} of {facts['log_blocks']:,}, {facts['log_percent']} % of the zone; "
        f"a key's log has at most {facts['max_log_entries_per_key']:,} entries",
        "since then": f"{stats.expired:,} expired, {stats.evicted:,} evicted, {stats.refused_full:,} refused and "
        f"{stats.passed_full:,} passed for want of room, {facts['mended']:,} times mended after a process died",
        **({} if abs(offset_us) < US_PER_SECOND else {"clock": _offset_text(offset_us)}),
        "limits": f"{len(limits)} of {facts['max_limits']:,}",
    }
    for name, text in rows.items():
        click.echo(f"{name:11} {text}")
    for limit in limits:
        click.echo(f"{'':11} {limit['scope']}  {limit['limit']}")


@zone.command(help=f"Show what is held of a KEY under each limit. {_KEY_HELP}")
@click.argument("key", nargs=-1, required=True, type=options.TEXT)
@click.argument("path")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def inspect(key: tuple[str, ...], path: str, as_json: bool) -> None:
    store = existing_zone(path)
    limit_texts = store.known_limits()
    results = [(*limit_texts[state["limit"]], state) for state in store.look(_key(key))]
    if as_json:
        click.echo(json.dumps([{**state, "scope": scope, "limit": text} for scope, text, state in results]))
        return
    if not results:
        click.echo(f"nothing is held of {_key_text(key)}")
    for scope, text, state in results:
        refused = ", its last request was refused" if state["refused"] else ""
        reset_after_s = state["reset_after_us"] / 1e6
        click.echo(
            f"{scope}  {text}: {_remaining_text(text, state['remaining'])} left, all in {reset_after_s:.3f} s{refused}"
        )


@zone.command(help=f"Forget what a KEY used, under all limits. {_KEY_HELP}")
@click.argument("key", nargs=-1, required=True, type=options.TEXT)
@click.argument("path")
def reset(key: tuple[str, ...], path: str) -> None:
    results = existing_zone(path).forget(_key(key))
    click.echo(f"forgot what {_key_text(key)} used" if results else f"nothing was held of {_key_text(key)}")


@zone.command()
@click.argument("path")
def clear(path: str) -> None:
    """Forget everything that is held, for all processes that use the zone."""
    store = existing_zone(path)
    held = store.stats().keys
    store.clear()
    click.echo(f"forgot {held:,} states")


def _offset_text(offset_us: int) -> str:
    """What it means that a zone's clock is not the host's wall time."""
    where, when = ("ahead of", "early") if offset_us > 0 else ("behind", "late")
    seconds = abs(offset_us) / US_PER_SECOND
    return f"{seconds:,.0f} s {where} the host's time: windows begin that much too {when}, until the zone is made anew"


def _key(parts: tuple[str, ...]) -> Key:
    if not all(parts):
        raise ConfigError("a key, or a part of one, is not empty")
    return parts[0] if len(parts) == 1 else parts


def _remaining_text(text: str, remaining: int) -> str:
    """What remains of a limit with this text, in its unit."""
    return amount_text(remaining, parse_limits(text)[0].of)


def _key_text(key: tuple[str, ...]) -> str:
    return " ".join(repr(part[:60]) for part in key)
