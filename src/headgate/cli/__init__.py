"""The command `headgate`."""

from __future__ import annotations

import io
import sys

from headgate import starting


def main() -> None:
    """Run the command; where its optional parts are missing, say which command installs them."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal of another encoding spoils no result
    try:
        from headgate.cli.commands import headgate
    except ImportError as error:
        # Also where headgate's own message says so already: it names a smaller extra.
        print(
            f"headgate: the command needs optional parts ({error.name or error}): pip install 'headgate[all]'",
            file=sys.stderr,
        )
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(starting.INTERRUPTED)
    starting.imports_are_done()
    headgate(prog_name="headgate")
