"""The command `headgate`."""

from __future__ import annotations

import io
import sys

from headgate import starting
from headgate.cli.standard_output import name_standard_output


def main() -> None:
    """Run the command; where its optional parts are missing, print the command that installs them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal with another encoding never raises
    name_standard_output()
    try:
        from headgate.cli.commands import headgate
    except ImportError as error:
        # Also where headgate's own message names an extra: that is a smaller one.
        print(
            f"headgate: the command needs optional parts ({error.name or error}): pip install 'headgate[all]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(starting.INTERRUPTED)
    starting.imports_are_done()
    headgate(prog_name="headgate")
