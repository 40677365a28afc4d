"""What README and docs show is true: every example runs and gives what the page says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from documents import NOT_RUN, PAGES, ROOT, RUN, Block, Command, blocks, commands, says
from redis_servers import single
from running import running_service

from headgate.policy.load import parse_policy

pytestmark = pytest.mark.integration

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
SERVICE = "127.0.0.1:8080"
REDIS = "127.0.0.1:6379"
SHARED_MEMORY = "/dev/shm/"
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that looks like the repository, where examples may leave files."""
    folder = tmp_path_factory.mktemp("docs")
    for part in ("examples", "vectors"):
        shutil.copytree(ROOT / part, folder / part)
    return folder


@pytest.fixture
def zones() -> Iterator[str]:
    """What stands for SHARED_MEMORY in one test: its zones are its own, and go with it."""
    prefix = f"{SHARED_MEMORY}docs-{os.getpid()}-"
    yield prefix
    for zone in Path(SHARED_MEMORY).glob(f"{Path(prefix).name}*"):
        zone.unlink(missing_ok=True)


@pytest.fixture(params=PAGES, ids=NAMES)
def page(request: pytest.FixtureRequest) -> Path:
    page: Path = request.param
    return page


def of_language(page: Path, language: str) -> list[Block]:
    return [block for block in blocks(page) if block.language == language]


def test_python_examples_run(page: Path, place: Path, zones: str) -> None:
    run_examples(page, place, zones)


def run_examples(page: Path, place: Path, zones: str) -> None:
    examples = of_language(page, "python")
    # One program a page, each example where it stands in its page, so that a traceback names its line.
    program = []
    for block in examples:
        program.append(f"exec(compile('\\n' * {block.line - 1} + {block.text!r}, {str(page)!r}, 'exec'))")
    with redis_for("\n".join(program).replace(SHARED_MEMORY, zones)) as text:
        completed = subprocess.run(
            [sys.executable, "-W", "error", "-c", text],
            check=False,
            cwd=place,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert completed.returncode == 0, completed.stderr


@contextmanager
def redis_for(text: str) -> Iterator[str]:
    """Yield a text with the address of a running Redis in place of the one that it names."""
    if REDIS not in text:
        yield text
        return
    with single() as server:
        yield text.replace(REDIS, f"127.0.0.1:{server.port}")


def test_policies_have_no_problems(page: Path) -> None:
    for block in of_language(page, "yaml"):
        parse_policy(block.text, source=f"{page.name}:{block.line}")


def test_commands_print_what_the_page_says(page: Path, place: Path, zones: str) -> None:
    shown = [command for block in of_language(page, "console") for command in commands(block)]
    if any(SHARED_MEMORY in command.command for command in shown):
        run_examples(page, place, zones)  # they create the zones that commands inspect
    with service_for(shown) as address:
        for command in shown:
            completed = subprocess.run(
                ["bash", "-c", command.command.replace(SERVICE, address).replace(SHARED_MEMORY, zones)],
                check=False,
                cwd=place,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=60,
                env=environment(),
            )
            printed = "".join(f"{line.rstrip()}\n" for line in completed.stdout.strip().splitlines())
            printed = printed.replace(address, SERVICE).replace(zones, SHARED_MEMORY)
            assert says(command.output).fullmatch(printed), (
                f"{page.name}:{command.line}: {command.command}\nprints\n{printed}\nnot\n{command.output}"
            )


def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in LINK.findall(page.read_text()):
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), f"{page.name}: nothing is at {target}"
        if anchor and file.suffix == ".md":
            assert anchor[1:] in anchors(file), f"{page.name}: {target} has no heading for {anchor}"


def test_code_refers_to_headings_that_exist() -> None:
    sources = [*(ROOT / "src").rglob("*.py*"), *(ROOT / "rust").glob("*/src/**/*.rs")]
    for source in sources:
        if source.suffix in (".py", ".pyi", ".rs"):
            for name, anchor in re.findall(r"docs/([a-z-]+\.md)#([a-z0-9-]+)", source.read_text()):
                assert anchor in anchors(ROOT / "docs" / name), f"{source}: docs/{name} has no heading for #{anchor}"


def test_every_example_policy_has_no_problems() -> None:
    for file in (ROOT / "examples").glob("*.yaml"):
        parse_policy(file.read_bytes(), source=str(file))


def test_blocks_that_look_like_examples_are_run(page: Path) -> None:
    """The language of each block is one that these tests run, or one known to be for other programs."""
    for block in blocks(page):
        assert block.language in (*RUN, *NOT_RUN), (
            f"{page.name}:{block.line}: add {block.language!r} to the languages that are run or not"
        )


@contextmanager
def service_for(shown: list[Command]) -> Iterator[str]:
    """Yield the address of a new service, if one of these commands sends it a request."""
    if not any(SERVICE in command.command for command in shown):
        yield SERVICE
        return
    with running_service(ROOT / "examples" / "shop.yaml") as service:
        yield service.url.removeprefix("http://")


def anchors(file: Path) -> Iterator[str]:
    for heading in HEADING.findall(file.read_text()):
        yield re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "NO_COLOR": "1", "COLUMNS": "120"}
