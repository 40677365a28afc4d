"""A log of a million lines, replayed by the command."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from benchmarks.measuring import Section, Target

AGENTS = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/120.0 Safari/537.36",
    "Mozilla/5.0 (compatible; Googlebot/2.1; +http://www.google.com/bot.html)",
    "curl/8.5.0",
)
POLICY = Path(__file__).parents[1] / "examples" / "shop.yaml"
CHILD = """
import sys
from headgate.cli.commands import headgate
try:
    headgate(sys.argv[1:], standalone_mode=False)
finally:
    # Of this program alone: ru_maxrss would begin with what the process held that started it.
    with open("/proc/self/status") as file:
        peak = next(line for line in file if line.startswith("VmHWM"))
    print(peak.split()[1], file=sys.stderr)
"""


def write_log(path: Path, lines: int) -> None:
    """A combined log of a busy day: 40,000 clients, 2,000 paths, a tenth of the lines out of order."""
    chooser = random.Random(5)
    clients = [f"10.{chooser.randrange(256)}.{chooser.randrange(256)}.{chooser.randrange(256)}" for _ in range(40_000)]
    paths = [f"/products/{number}" for number in range(2000)] + ["/api/login", "/api/search/shoes?page=1"] * 200
    time_s = 1_443_000_000.0
    with path.open("w") as file:
        for _ in range(lines):
            time_s += chooser.expovariate(12)
            late = chooser.random() * 3 if chooser.random() < 0.1 else 0
            text = f"{datetime.fromtimestamp(time_s - late, UTC):%d/%b/%Y:%H:%M:%S +0000}"
            client = clients[int(len(clients) * chooser.random() ** 3)]
            request = f"{chooser.choice(('GET', 'GET', 'GET', 'POST'))} {chooser.choice(paths)} HTTP/1.1"
            file.write(
                f'{client} - - [{text}] "{request}" 200 {chooser.randrange(100_000)} "https://example.com/" '
                f'"{chooser.choice(AGENTS)}"\n'
            )


def replay(log: Path) -> tuple[float, float]:
    """(seconds, peak in megabytes) of the command, including its start."""
    command = [sys.executable, "-c", CHILD, "replay", str(log), "--policy", str(POLICY), "--json"]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return time.perf_counter() - start, int(done.stderr.split()[-1]) / 1024


def run(quick: bool) -> Section:
    """Measure the whole command on logs of two sizes."""
    million = 100_000 if quick else 1_000_000
    rows = []
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for lines in (million // 4, million):
            log = Path(folder) / f"{lines}.log"
            write_log(log, lines)
            runs = [replay(log) for _ in range(2 if quick else 5)]
            times = [one for one, _ in runs]
            results[lines] = (median(times), max(memory for _, memory in runs))
            spread = f"{median(times):.2f} s ({min(times):.2f} to {max(times):.2f})"
            rows.append((f"{lines:,}", spread, f"{lines / median(times):,.0f}", f"{results[lines][1]:.0f} MB"))
    seconds, memory = results[million]
    return Section(
        "A replay",
        "`headgate replay LOG --policy examples/shop.yaml --json`, from start to end: a combined log of 40,000 clients "
        "and 2,000 paths, a tenth of its lines out of order; three of the policy's four rules apply to most lines.",
        ("lines", "time", "lines a second", "memory at the most"),
        rows,
        (
            Target("a million-line log replays in under 2 seconds", f"{seconds:.2f} s", seconds < 2),
            Target(
                "in flat memory",
                f"{memory:.0f} MB for {million:,} lines, {results[million // 4][1]:.0f} MB for a quarter of them",
                memory < 1.5 * results[million // 4][1],
            ),
        ),
    )
