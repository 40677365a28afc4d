"""The house keeps its floors: a file imports only from below or from its own room."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"

FLOORS = {
    "errors": 0, "core": 0, "clock": 0, "drive": 0,
    "units": 1, "periods": 1, "limits": 1, "keys": 1, "decision": 1, "testing": 1,
    "algorithms": 2,
    "stores": 3, "limit_text": 3,
    "waiting": 4, "decorator": 4, "limiter": 4,
    "policy": 5,
    "planning": 6,
    "http": 6,
    "observe": 7, "replay": 7, "integrations": 7,
    "service": 8,
    "cli": 9,
}  # fmt: skip
SERVICE_FLOORS = {"http": 0, "routes": 1, "checks": 2, "admin": 2, "pages": 2, "app": 3, "workers": 4}
ROOMS = [("units", "periods", "limits", "keys", "decision", "testing"), ("waiting", "decorator", "limiter"),
         ("errors", "core", "clock", "drive")]  # fmt: skip
OPTIONAL = {
    "pydantic": "policy/schema.py policy/load.py",
    "yaml": "policy/yaml_source.py",
    "click": "cli/",
    "rich": "cli/",
    "httptools": "service/http/request_reader.py",
    "uvloop": "service/workers/process.py",
    "prometheus_client": "observe/prometheus.py",
    "zstandard": "replay/compressed.py",
    "redis": "stores/redis/",
    "starlette": "integrations/starlette.py integrations/fastapi.py",
    "fastapi": "integrations/fastapi.py",
    "flask": "integrations/flask.py",
    "django": "integrations/django.py integrations/drf.py",
    "rest_framework": "integrations/drf.py",
    "litestar": "integrations/litestar.py",
    "aiohttp": "integrations/aiohttp",
    "grpc": "integrations/grpc",
    "httpx": "integrations/httpx.py",
    "requests": "integrations/requests.py",
    "jwt": "integrations/jwt.py",
}


def files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def imports(file: Path) -> Iterator[str]:
    """Modules that a file imports, those for type checkers left out."""
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


def test_only_one_door_leads_to_time() -> None:
    for file in files():
        if file.name in ("clock.py", "waiting.py", "decider.py"):  # waiting sleeps, the service measures itself
            continue
        assert not {"time", "datetime.datetime.now"} & set(imports(file)), file


def test_unsafe_code_is_in_one_file() -> None:
    unsafe = {
        str(file.relative_to(ROOT / "rust"))
        for file in (ROOT / "rust").rglob("*.rs")
        if "target" not in file.parts and re.search(r"\bunsafe\b(?!_)", re.sub(r"//.*", "", file.read_text()))
    }
    assert unsafe == {"core/src/memory.rs"}


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
        if python_file.stem in ("__init__", "transition", "table", "integers", "sliding_conversion"):
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


STEPS = ("roll", "admit", "charge", "delay", "measure", "convert", "give_back")


def test_nothing_names_a_registry_or_a_path_of_a_machine() -> None:
    hosts = ["pypi" + ".org", "pythonhosted" + ".org", "registry.npmjs" + ".org", "index.crates" + ".io"]
    for file in ROOT.rglob("*"):
        if not file.is_file() or {".git", ".venv", "target"} & set(file.parts) or file.suffix in (".so", ".pyc"):
            continue
        if any(part.startswith(".") and part not in (".ci", ".gitignore") for part in file.relative_to(ROOT).parts):
            continue
        text = file.read_text(errors="ignore")
        for host in [*hosts, "/work" + "/main", "/root" + "/"]:
            assert host not in text, f"{file} names {host}"
