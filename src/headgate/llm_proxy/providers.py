"""The providers behind the proxy, read from a YAML file. The file names the places of their keys, and contains none."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from headgate.errors import ConfigError
from headgate.llm.dialects.paths import DIALECTS, Dialect, url_at
from headgate.llm.key_variables import may_be_shown
from headgate.policy.problems import PolicyError, Problem, shown
from headgate.policy.yaml_source import Document, read_document, unusable_texts

NAMES = tuple(dict.fromkeys(dialect.name for dialect in DIALECTS.values()))
OF_OPENAI = tuple(dialect.name for dialect in DIALECTS.values() if dialect.family == "openai")

_FIELDS = (
    "name", "base_url", "api_key_env", "api_key_file", "auth", "dialects", "models", "timeout", "connect_timeout",
    "asks_usage", "headers",
)  # fmt: skip
_REQUIRED = ("name", "base_url")
_AUTHS = ("bearer", "x-api-key", "api-key", "none")
_LONGEST_S = 86_400
_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_RESERVED_HEADERS = (
    "authorization",
    "x-api-key",
    "api-key",
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
)


class ProviderSettings(NamedTuple):
    """A provider: its address, its dialects, and its models."""

    name: str
    base_url: str
    """Without a trailing slash; see `url_at`."""

    api_key: str
    """The secret itself; "" for none."""

    auth: str
    """How the key is sent: `bearer`, `x-api-key`, `api-key` or `none`; "" for the usual way of each dialect."""

    dialects: tuple[str, ...]
    models: tuple[str, ...]
    """Names of models; a final * stands for any rest of a name."""

    timeout_s: float
    """The longest time in which no bytes of an answer arrive."""

    connect_timeout_s: float
    asks_usage: bool
    """Whether the provider understands `stream_options.include_usage`."""

    headers: tuple[tuple[str, str], ...]

    def serves(self, dialect: Dialect, model: str) -> bool:
        """Whether it serves a dialect and a model; `model` is "" for a request that names none, as lists of models."""
        if dialect.name not in self.dialects:
            return False
        if not model:
            return True
        for pattern in self.models:  # noqa: SIM110
            if pattern == "*" or _matches(pattern, model):
                return True
        return False

    def url(self, dialect: Dialect) -> str:
        """The URL of a dialect's endpoint."""
        return url_at(self.base_url, dialect.path)

    def auth_headers(self, dialect: Dialect) -> dict[str, str]:
        """The headers that carry its key."""
        usual = "x-api-key" if dialect.family == "anthropic" else "bearer"
        auth = self.auth or (usual if self.api_key else "none")
        if auth == "none":
            return {}
        return {"authorization": f"Bearer {self.api_key}"} if auth == "bearer" else {auth: self.api_key}

    def __repr__(self) -> str:  # its key is a secret
        return f"ProviderSettings({self.name!r}, {self.base_url!r})"


def load_providers(file: Path) -> tuple[ProviderSettings, ...]:
    """The providers of a file; raises PolicyError with all problems, or OSError."""
    return read_providers(file.read_bytes(), source=str(file), folder=file.parent)


def read_providers(text: bytes | str, *, source: str, folder: Path) -> tuple[ProviderSettings, ...]:
    """The providers of a text. Relative paths of key files start from `folder`."""
    document = read_document(text, source, kind="file of providers", begins="providers:")
    problems = [*document.problems, *unusable_texts(document)]
    listed = document.value.get("providers") if isinstance(document.value, Mapping) else None
    if not isinstance(listed, list) or not listed:
        message = "names the providers: providers: [{name: ..., base_url: ...}]"
        raise PolicyError(source, [*problems, document.problem((), message)])
    problems += [
        document.problem((name,), "there is no such field; there is providers")
        for name in document.value if name != "providers"
    ]  # fmt: skip
    providers: list[ProviderSettings] = []
    for index, entry in enumerate(listed):
        reader = _Reader(document, ("providers", index), entry, folder)
        provider = reader.read()
        problems += reader.problems
        if provider is not None:
            if any(provider.name == other.name for other in providers):
                problems.append(document.problem(("providers", index, "name"), f"{provider.name} is used twice"))
            providers.append(provider)
    if problems:
        raise PolicyError(source, problems)
    return tuple(providers)


class _Reader:
    """Reads one provider, and collects all problems of it."""

    def __init__(self, document: Document, place: tuple[str | int, ...], entry: Any, folder: Path) -> None:
        self._document = document
        self._place = place
        self._fields: dict[str, Any] = dict(entry) if isinstance(entry, Mapping) else {}
        self._folder = folder
        self.problems: list[Problem] = []
        if not isinstance(entry, Mapping):
            self._add_problem("", f"is a map with name and base_url, not {shown(entry)}")

    def read(self) -> ProviderSettings | None:
        if self.problems:
            return None
        for name in self._fields:
            if name not in _FIELDS:
                self._add_problem(name, f"there is no such field; there are {', '.join(_FIELDS)}")
        for name in _REQUIRED:
            if name not in self._fields:
                self._add_problem("", f"lacks {name}")
        name, base_url = self._text("name"), self._base_url()
        auth = self._text("auth")
        if auth not in ("", *_AUTHS):
            self._add_problem("auth", f"is one of {', '.join(_AUTHS)}, not {shown(auth)}")
        dialects = self._texts("dialects", OF_OPENAI)
        for unknown in (dialect for dialect in dialects if dialect not in NAMES):
            self._add_problem("dialects", f"there is no dialect {shown(unknown)}; there are {', '.join(NAMES)}")
        models = self._texts("models", ("*",))
        timeout_s, connect_s = self._seconds("timeout", 600.0), self._seconds("connect_timeout", 10.0)
        asks_usage = self._fields.get("asks_usage", True)
        if not isinstance(asks_usage, bool):
            self._add_problem("asks_usage", f"is true or false, not {shown(asks_usage)}")
        headers, key = self._headers(), self._key()
        if self.problems:
            return None
        return ProviderSettings(
            name, base_url.rstrip("/"), key, auth, dialects, models, timeout_s, connect_s, asks_usage, headers
        )

    def _add_problem(self, name: str, message: str) -> None:
        self.problems.append(self._document.problem((*self._place, name) if name else self._place, message))

    def _text(self, name: str) -> str:
        value = self._fields.get(name, "")
        if not isinstance(value, str) or (name in self._fields and not value):
            self._add_problem(name, f"is a text, not {shown(value)}")
            return ""
        return value

    def _texts(self, name: str, usual: tuple[str, ...]) -> tuple[str, ...]:
        value = self._fields.get(name, usual)
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list | tuple) or not values or not all(isinstance(e, str) and e for e in values):
            self._add_problem(name, f"is a list of texts, not {shown(value)}")
            return usual
        return tuple(values)

    def _seconds(self, name: str, usual: float) -> float:
        value = self._fields.get(name, usual)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _LONGEST_S:
            self._add_problem(name, f"is a number of seconds, up to {_LONGEST_S}, not {shown(value)}")
            return usual
        return float(value)

    def _base_url(self) -> str:
        url = self._text("base_url")
        if "base_url" in self._fields and not _is_base(url):
            secret = any(mark in url for mark in "@?#")  # the URL may contain a key
            message = "with no user, password, query or fragment: its key is apart" if secret else f"not {shown(url)}"
            self._add_problem("base_url", f"is a URL such as https://api.example.com/v1, {message}")
        return url

    def _headers(self) -> tuple[tuple[str, str], ...]:
        headers = self._fields.get("headers", {})
        if not isinstance(headers, Mapping) or not all(isinstance(value, str) for value in headers.values()):
            self._add_problem("headers", "is a map from names to texts")
            return ()
        for name in (name for name in headers if name.lower() in _RESERVED_HEADERS):
            self._add_problem(
                "headers", f"{name} is set by the proxy itself; keys are named by api_key_env or api_key_file"
            )
        for name, value in headers.items():
            if not _FIELD_NAME.fullmatch(name) or not (value.isascii() and value.isprintable()):
                self._add_problem("headers", f"{shown(name)} cannot be sent: a value is printable ASCII on one line")
        return tuple((name.lower(), value) for name, value in headers.items())

    def _key(self) -> str:
        variable, file = self._text("api_key_env"), self._text("api_key_file")
        if variable and file:
            self._add_problem("api_key_file", "give one of api_key_env and api_key_file")
        elif variable:
            key = os.environ.get(variable, "").strip()
            if not key:
                is_name = may_be_shown(variable)
                message = "is the name of a variable, such as OPENAI_API_KEY, and no key; there is no such variable"
                self._add_problem("api_key_env", f"the variable {shown(variable)} is not set" if is_name else message)
            return self._checked_key("api_key_env", key)
        elif file:
            try:
                return self._checked_key("api_key_file", (self._folder / file).read_text().strip())
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) else "is no text"
                self._add_problem("api_key_file", f"cannot be read: {reason}")
        return ""

    def _checked_key(self, name: str, key: str) -> str:
        if not key.isascii() or not key.isprintable():
            self._add_problem(name, "this key cannot be sent in a header: a key is printable ASCII on one line")
        return key


def _is_base(url: str) -> bool:
    """Whether paths can be appended to a URL."""
    try:
        parts = urlsplit(url)
        reachable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return reachable and not any(mark in url for mark in "@?#")


def _matches(pattern: str, model: str) -> bool:
    return model.startswith(pattern[:-1]) if pattern.endswith("*") else pattern == model


def check_serving(providers: tuple[ProviderSettings, ...]) -> None:
    """Raise ConfigError where no provider serves any dialect that is charged."""
    charged = {dialect.name for dialect in DIALECTS.values() if dialect.is_charged}
    if not any(charged & set(provider.dialects) for provider in providers):
        raise ConfigError(f"no provider serves a dialect that generates anything: {', '.join(sorted(charged))}")
