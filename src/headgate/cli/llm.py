"""`headgate llm`: the commands for calls of language models. Each group of commands is in a file of its own."""

from __future__ import annotations

import click

from headgate.cli import llm_keys, llm_replay, llm_report, llm_serve
from headgate.cli.group import Group


@click.group(cls=Group)
def llm() -> None:
    """Budgets of language models: a proxy, its keys, the books of what calls held, used and cost; traces replayed."""


for _command in (*llm_serve.COMMANDS, *llm_keys.COMMANDS, *llm_report.COMMANDS, *llm_replay.COMMANDS):
    llm.add_command(_command)
