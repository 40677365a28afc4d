"""The page at `/` as people see it: a real browser renders it for a desk and a phone, in light and in dark."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_servers import single
from running import RunningService, running_service

pytestmark = pytest.mark.integration

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop.yaml"
LEAST_CONTRAST = 4.5
"""Of text, by WCAG 2.2, 1.4.3."""

MEASURING_SCRIPT = """
<script>
const channels = text => text.match(/[\\d.]+/g).map(Number);
const linear = c => c <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
const luminance = ([r, g, b]) => .2126 * linear(r / 255) + .7152 * linear(g / 255) + .0722 * linear(b / 255);
function ground(element) {
    for (let at = element; at; at = at.parentElement) {
        const color = channels(getComputedStyle(at).backgroundColor);
        if (color.length == 3 || color[3] == 1) return color;
    }
    return [255, 255, 255];
}
const seen = [...document.querySelectorAll("body *")]
    .filter(element => element.tagName != "SCRIPT")
    .filter(element => [...element.childNodes].some(node => node.nodeType == 3 && node.textContent.trim()))
    .map(element => {
        const style = getComputedStyle(element);
        const [light, dark] = [luminance(channels(style.color)), luminance(ground(element))].sort((a, b) => b - a);
        return {words: element.textContent.trim().slice(0, 40), contrast: (light + .05) / (dark + .05),
            pixels: parseFloat(style.fontSize)};
    });
const report = {seen, wide: document.documentElement.scrollWidth, window: innerWidth,
    dark: matchMedia("(prefers-color-scheme: dark)").matches};
document.body.innerHTML = "<pre>report" + btoa(unescape(encodeURIComponent(JSON.stringify(report)))) + "</pre>";
</script>
"""


@pytest.fixture(scope="module")
def service() -> Iterator[RunningService]:
    with running_service(EXAMPLE) as running:
        yield running


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 500], ids=["desk", "phone"])
def test_all_text_of_the_page_can_be_read(service: RunningService, tmp_path: Path, width: int, dark: bool) -> None:
    browser = shutil.which("chromium")
    assert browser, "chromium is not here: run scripts/system-packages test"
    page = tmp_path / "page.html"
    page.write_text(service.client.get("/").text.replace("</body>", f"{MEASURING_SCRIPT}</body>"))
    dumped_page = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--dump-dom",
         f"--window-size={width},900", f"--blink-settings=preferredColorScheme={0 if dark else 1}", page.as_uri()],
        capture_output=True, text=True, timeout=60, check=True,
    ).stdout  # fmt: skip
    match = re.search(r"<pre>report([\w+/=]+)</pre>", dumped_page)
    assert match, dumped_page
    report = json.loads(base64.b64decode(match[1]))
    assert report["dark"] is dark
    assert len(report["seen"]) > 30 and any(element["words"] == "/metrics" for element in report["seen"])
    assert [element for element in report["seen"] if element["contrast"] < LEAST_CONTRAST] == []
    assert min(element["pixels"] for element in report["seen"]) >= 12
    assert report["wide"] <= report["window"]  # wider content scrolls inside its own element


def test_the_page_counts_the_states_of_this_process_or_names_the_server_that_holds_them(
    service: RunningService,
) -> None:
    service.check("/api/cart")
    assert re.search(r"[1-9]\d* of at most 1,000,000 states are held\.", service.client.get("/").text)
    with single() as server, running_service(EXAMPLE, "--store", f"redis://:secret@127.0.0.1:{server.port}/3") as other:
        text = other.client.get("/").text
        assert re.search(rf"States are held by the server at <code>[^<]*127\.0\.0\.1:{server.port}[^<]*</code>\.", text)
        assert "of at most" not in text and "secret" not in text
