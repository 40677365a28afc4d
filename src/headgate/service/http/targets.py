"""Request targets: the path that they name, even where a target is no URI in the strict sense.

Clients send UTF-8 and some characters unencoded. These are percent-encoded, as the client should have done, and as
the front door does (`rust/server/src/intake/target.rs`). See docs/service.md#forward-auth.
"""

from __future__ import annotations

import re

from headgate.policy.request import target_text

_ABSOLUTE = re.compile(rb"(?i:https?)://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{0,5}))?(?=[/?]|\Z)")
"""How an absolute target begins: a host, and perhaps a port (RFC 9112, 3.2.2); it has no user (RFC 9110, 4.2.4)."""

_LARGEST_PORT = 65535
_TYPED = re.compile(rb'["<>`]')


def ascii_line(line: bytes) -> bytes:
    """The first line of a request, with other bytes than ASCII percent-encoded: the parser accepts none in targets."""
    return target_text(line).encode()


def path_of(target: bytes) -> str | None:
    """The path that a target of ASCII names, without its query; None where it names none.

    None where the path has a fragment, too: some servers cut it off, and others read it as a part of the path.
    """
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.match(target)
        if absolute is None or int(absolute[1] or 0) > _LARGEST_PORT:
            return None
        target = target[absolute.end() :]
    path = target.partition(b"?")[0]
    if b"#" in path:
        return None
    return _TYPED.sub(lambda typed: b"%%%02X" % typed[0][0], path).decode("ascii") or "/"
