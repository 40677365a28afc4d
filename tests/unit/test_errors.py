"""Errors of other processes arrive as they were raised there: a pool of processes pickles them."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest

from headgate import Gate, Limiter, RateLimited
from headgate.errors import (
    ConfigError,
    ConflictingId,
    HeadgateError,
    MissingExtraError,
    StoreTimeout,
    without_credentials,
)
from headgate.http.asgi import RateLimitMiddleware


def raised(act: Callable[[], object]) -> HeadgateError:
    with pytest.raises(HeadgateError) as caught:
        act()
    return caught.value


ERRORS = [
    raised(lambda: Limiter("5/minit")),
    raised(lambda: Limiter("5/day in Europe/Zurig")),
    raised(lambda: Gate({"version": 1, "rules": [{"name": "a", "by": ["ip"], "limits": "5/minit"}, {"name": "b"}]})),
    raised(lambda: Limiter("5/minute").hit("")),
    ConfigError("cannot be", path="rules[0]"),
    MissingExtraError("the Redis store", extra="redis"),
    MissingExtraError("reading a policy file", extra="policy", why=ImportError("no second interpreter")),
    ConflictingId("another one"),
    StoreTimeout("no answer"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_can_be_pickled(error: HeadgateError) -> None:
    error.add_note("in a worker")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert (str(again), vars(again)) == (str(error), vars(error))


def test_the_error_of_an_installed_library_that_cannot_be_imported_states_why() -> None:
    program = """
        import sys

        class Finder:
            def find_spec(self, name, path=None, target=None):
                if name == "pydantic":
                    raise ImportError("modules of this kind do not support interpreters beside the main one")

        sys.meta_path.insert(0, Finder())
        import headgate
        try:
            headgate.Gate({"version": 1, "rules": []})
        except headgate.MissingExtraError as error:
            print(error)
        """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert output == (
        "a policy needs optional parts that cannot be imported (modules of this kind do not support "
        "interpreters beside the main one): pip install 'headgate[policy]'\n"
    )


def test_the_proxy_of_language_models_names_its_extra_where_only_its_server_is_missing() -> None:
    program = "import sys; sys.modules['aiohttp'] = None; from headgate.cli import main; main()"
    command = [sys.executable, "-c", program, "llm", "serve", "--example", "--port", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")  # as docs/command-line.md says
    assert ran.stderr == (
        "headgate: the proxy of language models needs optional parts that are not installed: "
        "pip install 'headgate[llm-proxy]'\n"
    )


def test_the_service_ends_with_the_status_of_misuse_where_its_extra_is_missing() -> None:
    program = "import sys; sys.modules['prometheus_client'] = None; from headgate.cli import main; main()"
    command = [sys.executable, "-c", program, "serve", "--port", "0"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == (
        "headgate: a page of metrics for Prometheus needs optional parts that are not installed: "
        "pip install 'headgate[service]'\n"
    )


def test_a_refusal_can_be_pickled_with_its_decision() -> None:
    limiter = Limiter("0/minute")
    error = pickle.loads(pickle.dumps(RateLimited(limiter.hit("key"))))
    assert (error.decision.allowed, error.decision.retry_after) == (False, None)


URL = "redis://user:sesame@redis.example/0"
MISPLACED: dict[str, Callable[[], object]] = {
    "limits": lambda: Limiter(URL),
    "on_store_error": lambda: Limiter("5/minute", on_store_error=URL),  # type: ignore[arg-type]
    "a long one": lambda: Limiter("5/minute", on_store_error=URL.replace("sesame", "sesame" * 20)),  # type: ignore[arg-type]
    "a policy's settings": lambda: Gate({"version": 1, "namespace": URL, "on_store_error": URL, "rules": []}),
    "a policy's rule": lambda: Gate({"version": 1, "rules": [{"name": URL, "by": [URL], "limits": URL}]}),
    "a policy's file": lambda: Gate(URL),
    "a middleware's option": lambda: RateLimitMiddleware(no_application, limits="5/minute", key=URL),  # type: ignore[arg-type]
}


async def no_application(scope: object, receive: object, send: object) -> None: ...


@pytest.mark.parametrize("act", MISPLACED.values(), ids=MISPLACED.keys())
def test_a_url_in_a_wrong_place_keeps_its_password(act: Callable[[], object]) -> None:
    text = str(raised(act))
    assert "redis://***@" in text and "sesame" not in text


def test_all_passwords_of_urls_are_left_out_of_any_text_in_a_moment() -> None:
    text = "'redis://h?password=sesame&timeout=1s' or\nredis-sentinel://:sesame@h/s?sentinel_password=sesame of me@home"
    expected = "'redis://h?password=***&timeout=1s' or\nredis-sentinel://***@h/s?sentinel_password=*** of me@home"
    assert without_credentials(text) == expected
    assert without_credentials("://" * 1_000_000 + " @") == "://" * 1_000_000 + " @"
