"""What docs/service.md says of gateways and TLS works: they present a certificate and check over HTTPS."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from certificates import Authority, Pair
from documents import ROOT, blocks
from gateways import caddy_with, nginx_with, shown
from running import RunningService, running_service
from test_gateways import POLICY, upstream  # noqa: F401

pytestmark = pytest.mark.integration


def lines_of_the_docs(first: str, authority: Authority, client: Pair) -> str:
    """Return the lines of the page that begin with `first`, with the paths of the files of a test."""
    [text] = [block.text for block in blocks(ROOT / "docs" / "service.md") if block.text.startswith(first)]
    for folder in ("/etc/nginx/", "/etc/caddy/"):
        text = text.replace(f"{folder}headgate-client.pem", str(client.certificate))
        text = text.replace(f"{folder}headgate-client.key", str(client.key))
    return text.replace("/etc/headgate/ca.pem", str(authority.file)).replace("headgate.internal", "localhost")


def assert_limited(url: str, service: RunningService) -> None:
    statuses = [httpx.post(f"{url}/api/login", timeout=20).status_code for _ in range(4)]
    assert statuses == [200, 200, 200, 429], service.lines


@pytest.mark.parametrize("gateway", ["nginx", "caddy"])
def test_a_gateway_checks_over_tls_with_a_certificate_of_its_own(
    gateway: str,
    tmp_path: Path,
    upstream: int,  # noqa: F811
) -> None:
    authority = Authority(tmp_path)
    client, server = authority.sign("client"), authority.sign("server")
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    options = (*server.options, "--tls-client-ca", str(authority.file))
    with running_service(policy, *options, trusts=authority.known(client)) as service:
        address = service.url.removeprefix("https://")
        text = shown(gateway, address, f"127.0.0.1:{upstream}")
        if gateway == "nginx":
            check_lines = "proxy_pass http://headgate/check-403/default;"
            assert check_lines in text
            text = text.replace(
                check_lines,
                check_lines.replace("http:", "https:")
                + "\n"
                + lines_of_the_docs("proxy_ssl_verify", authority, client),
            )
            with nginx_with(tmp_path, text) as port:
                assert_limited(f"http://127.0.0.1:{port}", service)
        else:
            check_lines = f"forward_auth {address} {{"
            assert check_lines in text
            text = text.replace(check_lines, check_lines.replace(address, f"https://{address}"))
            transport = "transport http {\n"
            assert transport in text
            text = text.replace(transport, transport + lines_of_the_docs("tls_trusted_ca_certs", authority, client))
            with caddy_with(tmp_path, text) as port:
                assert_limited(f"http://127.0.0.1:{port}", service)
        assert service.client.get("/healthz").status_code == 200
