"""Real gateways with the configurations that docs/service.md shows, before an application of a test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from documents import ROOT, blocks
from test_gateways import free_port, running
from test_gateways import running_nginx as nginx_with


def shown(language: str, service: str, upstream: str) -> str:
    """The configuration as the page shows it, for a service and an application at these addresses."""
    [block] = [block for block in blocks(ROOT / "docs" / "service.md") if block.language == language]
    return block.text.replace("127.0.0.1:8080", service).replace("127.0.0.1:9000", upstream)


@contextmanager
def running_nginx(home: Path, service: str, upstream: str) -> Iterator[int]:
    """nginx, until the end of the block; its port."""
    with nginx_with(home, shown("nginx", service, upstream)) as url:
        yield int(url.rpartition(":")[2])


@contextmanager
def running_caddy(home: Path, service: str, upstream: str) -> Iterator[int]:
    """Caddy, until the end of the block; its port."""
    with caddy_with(home, shown("caddy", service, upstream)) as port:
        yield port


@contextmanager
def caddy_with(home: Path, site: str) -> Iterator[int]:
    """Caddy with a site of this configuration, until the end of the block; its port."""
    binary = shutil.which("caddy")
    assert binary, "caddy is not here: run scripts/system-packages test"
    port = free_port()
    site = site.replace("example.com {", f"http://:{port} {{", 1)
    (home / "Caddyfile").write_text(f"{{\n admin off\n auto_https off\n log {{\n level FATAL\n }}\n}}\n{site}")
    with running([binary, "run", "--config", str(home / "Caddyfile"), "--adapter", "caddyfile"], port, home):
        yield port
