"""A group of commands, as `--help` lists them."""

from __future__ import annotations

import click

_ANY_LENGTH = 10_000


class Group(click.Group):
    """A group whose help has the complete first sentence of each command, which click truncates to a line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(_ANY_LENGTH)) for name, command in commands])
