"""Real gateways with the configurations that docs/service.md shows, before an application of a test."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from documents import ROOT, blocks


def shown(language: str, service: str, upstream: str) -> str:
    """The configuration as the page shows it, for a service and an application at these addresses."""
    [block] = [block for block in blocks(ROOT / "docs" / "service.md") if block.language == language]
    text = block.text
    for written, used in (("8080", service), ("9000", upstream)):
        text = text.replace(f"127.0.0.1:{written}", used)
        text = text.replace(f"port_value: {written}", f"port_value: {used.rpartition(':')[2]}")
    return text


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def running_nginx(home: Path, service: str, upstream: str) -> Iterator[int]:
    """nginx, until the end of the block; its port."""
    with nginx_with(home, shown("nginx", service, upstream)) as port:
        yield port


@contextmanager
def running_caddy(home: Path, service: str, upstream: str) -> Iterator[int]:
    """Caddy, until the end of the block; its port."""
    with caddy_with(home, shown("caddy", service, upstream)) as port:
        yield port


@contextmanager
def running_haproxy(home: Path, service: str, upstream: str) -> Iterator[int]:
    """HAProxy, until the end of the block; its port."""
    binary = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    assert binary, "haproxy is not here: run scripts/system-packages test"
    port = free_port()
    (home / "headgate.lua").write_text(shown("lua", service, upstream))
    configuration = shown("haproxy", service, upstream).replace("bind :80\n", f"bind 127.0.0.1:{port}\n")
    (home / "haproxy.cfg").write_text(configuration)
    with _running([binary, "-db", "-f", str(home / "haproxy.cfg")], port, home):
        yield port


@contextmanager
def running_envoy(home: Path, service: str, upstream: str, *read: str) -> Iterator[int]:
    """Envoy, until the end of the block; its port. The policy reads these headers, too."""
    binaries = list(Path(sys.prefix).glob("envoy-*/envoy/_bin/envoy"))
    assert binaries, "envoy is not here: run scripts/envoy"
    port = free_port()
    configuration = shown("envoy", service, upstream)
    configuration = configuration.replace(
        "address: 0.0.0.0, port_value: 80}", f"address: 127.0.0.1, port_value: {port}}}"
    )
    soon = "stat_prefix: web\n          delayed_close_timeout: 0.002s"  # not a second after each malformed request
    configuration = configuration.replace("stat_prefix: web", soon)
    for name in read:
        configuration = configuration.replace("patterns: [{exact:", f"patterns: [{{exact: {name}}}, {{exact:")
    (home / "envoy.yaml").write_text(configuration)
    options = ["--concurrency", "1", "--disable-hot-restart", "--log-level", "critical"]
    with _running([str(binaries[-1]), "-c", str(home / "envoy.yaml"), *options], port, home):
        yield port


@contextmanager
def nginx_with(home: Path, configuration: str) -> Iterator[int]:
    """An nginx of one worker with this configuration of one server, until the end of the block; its port."""
    binary = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/bin")
    assert binary, "nginx is not here: run scripts/system-packages test"
    port = free_port()
    scratch = "".join(
        f"{kind}_temp_path {home / kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (home / "nginx.conf").write_text(
        f"daemon off; pid {home}/nginx.pid; error_log stderr crit; events {{}}\n"
        f"http {{ access_log off; {scratch}\n"
        + configuration.replace("\nserver {", f"\nserver {{ listen 127.0.0.1:{port};", 1)
        + "}\n"
    )
    with _running([binary, "-p", str(home), "-c", str(home / "nginx.conf"), "-e", "stderr"], port, home):
        yield port


@contextmanager
def caddy_with(home: Path, site: str) -> Iterator[int]:
    """Caddy with a site of this configuration, until the end of the block; its port."""
    binary = shutil.which("caddy")
    assert binary, "caddy is not here: run scripts/system-packages test"
    port = free_port()
    site = site.replace("example.com {", f"http://:{port} {{", 1)
    (home / "Caddyfile").write_text(f"{{\n admin off\n auto_https off\n log {{\n level FATAL\n }}\n}}\n{site}")
    with _running([binary, "run", "--config", str(home / "Caddyfile"), "--adapter", "caddyfile"], port, home):
        yield port


@contextmanager
def _running(command: list[str], port: int, home: Path) -> Iterator[None]:
    """A gateway that listens on this port, until the end of the block."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(home)}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment, cwd=home
    )
    try:
        deadline = time.monotonic() + 20
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            said = process.stderr.read() if process.poll() is not None and process.stderr else ""
            assert not said and time.monotonic() < deadline, said
            time.sleep(0.02)
        yield
    finally:
        process.terminate()
        process.communicate(timeout=20)
