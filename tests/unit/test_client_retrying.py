"""The steps of a call: its waits, its retries, and when it gives up. There is no I/O and no real clock."""

from __future__ import annotations

import asyncio
import importlib
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

from headgate import AsyncLimiter, ConfigError, Limiter, RateLimited, StoreUnavailable
from headgate.errors import Held, MissingExtraError, Throttled
from headgate.http.client.calls import FailureKind, Sender, ServerResponse, run, run_async
from headgate.http.client.options import ClientLimits, Options, read_options
from headgate.testing import ManualClock

Outcome = int | tuple[int, dict[str, str]] | Exception


class Lost(Exception):
    pass


class Unsent(Exception):
    pass


class Wrong(Exception):
    pass


class Server:
    """Returns the given outcomes, the last of them repeatedly, and records when requests were sent."""

    errors = (Lost, Unsent, Wrong)

    def __init__(self, clock: ManualClock, outcomes: Iterable[Outcome]) -> None:
        self.clock = clock
        self.outcomes = list(outcomes)
        self.sent_us: list[int] = []
        self.buffered: list[Any] = []

    def send(self) -> Any:
        outcome = self.outcomes[min(len(self.sent_us), len(self.outcomes) - 1)]
        self.sent_us.append(self.clock.now_us())
        if isinstance(outcome, Exception):
            raise outcome
        status, headers = outcome if isinstance(outcome, tuple) else (outcome, {})
        return ServerResponse(status, headers, len(self.sent_us))

    def free_when_closed(self, response: Any, held: Any) -> Any:
        return held.free()

    def buffer(self, response: Any) -> Any:
        self.buffered.append(response)
        return ServerResponse(0, {}, f"buffered {response}")

    def read_response(self, response: ServerResponse) -> ServerResponse:
        return response

    def failure_kind(self, error: Exception) -> FailureKind:
        return {Lost: "lost", Unsent: "unsent", Wrong: "final"}[type(error)]  # type: ignore[return-value]


class Client:
    """Calls of one client on a clock that a test moves; random numbers are fixed."""

    def __init__(self, limits: ClientLimits = None, chance: float = 0.5, **options: Any) -> None:
        self.clock = ManualClock()
        self.start_us = self.clock.now_us()
        all_options: Any = {"clock": self.clock, "random": lambda: chance, **options}
        self.calls = Sender(limits, all_options, asynchronous=False)

    def call(
        self,
        *outcomes: Outcome,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        can_resend: Callable[[], bool] = lambda: True,
        key: str = "",
    ) -> tuple[Any, Server]:
        """Return the result of a call, the response's number or an exception, and the server."""
        server = Server(self.clock, outcomes)
        call = self.calls.call(
            None,
            method=method,
            origin=("https", key or "example.com", None),
            headers=headers or {},
            can_resend=can_resend,
        )
        try:
            return run(self.calls.steps(call), server, self.calls.limiter), server
        except Exception as error:
            return error, server

    def since_s(self) -> float:
        return (self.clock.now_us() - self.start_us) / 1e6


AFTER_2 = {"retry-after": "2"}


# --- what is retried


@pytest.mark.parametrize(
    ("outcome", "idempotent", "others"),
    [
        (429, True, True),
        ((429, AFTER_2), True, True),
        ((503, AFTER_2), True, False),
        (503, False, False),
        (502, True, False),
        (504, True, False),
        (Lost(), True, False),
        (Unsent(), True, True),
        (Wrong(), False, False),
        (200, False, False),
        ((200, AFTER_2), False, False),
        (500, False, False),
        (501, False, False),
        (404, False, False),
        (403, False, False),
        ((403, AFTER_2), True, True),
        ((403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "2"}), True, True),
        ((403, {"x-ratelimit-remaining": "9", "x-ratelimit-reset": "2"}), False, False),
        ((301, AFTER_2), False, False),
    ],
)
def test_only_safe_requests_are_retried(outcome: Outcome, idempotent: bool, others: bool) -> None:
    for method in ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "get"):
        assert tries(outcome, method=method) == (3 if idempotent else 1)
    for method in ("POST", "PATCH", "QUUX"):
        assert tries(outcome, method=method) == (3 if others else 1)
        assert tries(outcome, method=method, headers={"Idempotency-Key": "8e03"}) == (3 if idempotent else 1)


def tries(outcome: Outcome, **request: Any) -> int:
    _, server = Client().call(outcome, **request)
    return len(server.sent_us)


@pytest.mark.parametrize("outcome", [429, (503, AFTER_2), Lost(), Unsent()])
def test_a_body_that_cannot_be_resent_is_not_retried(outcome: Outcome) -> None:
    assert tries(outcome, can_resend=lambda: False) == 1


def test_the_last_outcome_is_that_of_the_call() -> None:
    result, server = Client().call(429, Unsent(), 200)
    assert (result, len(server.sent_us), server.buffered) == (3, 3, [1])
    result, server = Client().call(429, 429, (429, {"x": "y"}))
    assert (result, server.buffered) == (3, [1, 2]), "the last is not read: it belongs to the caller"
    error = Lost("third")
    result, server = Client().call(Lost("first"), Lost("second"), error)
    assert result is error


def test_a_response_that_breaks_off_while_it_is_read_is_an_error_that_may_be_retried() -> None:
    class BreaksOff(Server):
        def buffer(self, response: Any) -> Any:
            raise Lost("in the middle")

    client = Client()
    cases: list[tuple[list[Outcome], Any]] = [([429, 200], 2), ([429, Wrong()], Wrong)]
    for outcomes, expected in cases:
        server = BreaksOff(client.clock, outcomes)
        call = client.calls.call(None, method="POST", origin=("https", "h", 1), headers={}, can_resend=lambda: True)
        try:
            result = run(client.calls.steps(call), server, None)
        except Exception as error:
            result = type(error)
        assert (result, len(server.sent_us)) == (expected, 2)


@pytest.mark.parametrize("retries", [0, 1, 5])
def test_there_are_no_more_retries_than_configured(retries: int) -> None:
    _, server = Client(retries=retries).call(502)
    assert len(server.sent_us) == retries + 1


# --- how long calls wait


def test_pauses_are_a_random_part_of_a_maximum_that_doubles() -> None:
    for chance in (0.0, 0.5, 0.999):
        client = Client(chance=chance, retries=10, timeout=None)
        _, server = client.call(502)
        pauses = [later - earlier for earlier, later in zip(server.sent_us, server.sent_us[1:], strict=False)]
        assert pauses == [int(chance * min(10_000_000, 100_000 * 2**number)) for number in range(10)]


def test_a_retry_is_sent_after_the_announced_wait_and_a_random_delay() -> None:
    client = Client(chance=0.5)
    result, _ = client.call((429, AFTER_2), 200)
    assert result == 2
    assert client.since_s() == 2.1, "half of a tenth"
    client = Client(chance=0.0)
    client.call((503, {"retry-after": "7"}), 200)
    assert client.since_s() == 7


def test_a_pause_is_at_least_the_announced_wait_and_the_backoff() -> None:
    client = Client(chance=0.9)
    _, server = client.call((429, {"retry-after-ms": "1"}), 200)
    assert server.sent_us[1] - server.sent_us[0] >= 90_000


def test_later_calls_of_the_key_are_held_and_no_others() -> None:
    client = Client(retries=0, chance=0.0)
    client.call((429, {"retry-after": "5"}))
    client.call(200, key="elsewhere")
    assert client.since_s() == 0
    client.call(200)
    assert client.since_s() == 5
    client.call(200)
    assert client.since_s() == 5


@pytest.mark.parametrize(
    "headers",
    [
        {"ratelimit": '"a";r=0;t=5'},
        {"ratelimit": '"a";r=9;t=60, "b";r=0;t=5'},
        {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "1800000005"},
        {"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "5s"},
    ],
)
def test_a_response_with_nothing_remaining_holds_the_next_call(headers: dict[str, str]) -> None:
    client = Client(chance=0.0)
    result, _ = client.call((200, headers))
    assert (result, client.since_s()) == (1, 0)
    client.call(200)
    assert client.since_s() == 5


@pytest.mark.parametrize(
    "headers",
    [{"ratelimit": '"a";r=1;t=5'}, {"ratelimit": '"conc";r=0'}, {"retry-after": "5"}, {"ratelimit": '"a";r=0.0;t=5'}],
)
def test_a_response_with_units_left_or_without_a_time_holds_no_call(headers: dict[str, str]) -> None:
    client = Client()
    client.call((200, headers))
    client.call(200)
    assert client.since_s() == 0


def test_held_calls_continue_one_after_another() -> None:
    chances = iter([0.0, 0.25, 0.5, 1.0])
    client = Client(retries=0, random=lambda: next(chances))
    client.call((429, {"retry-after": "4"}))
    destination = client.calls._destinations.of(("https", "example.com", 443), client.start_us)
    delays = []
    for _ in range(4):
        client.clock.set(client.start_us)
        _, server = client.call(200)
        delays.append((server.sent_us[0] - destination.held_until_us) / 1e6)
    assert delays == [0, 0.1, 0.2, 0.4]


# --- the deadline


def test_a_call_that_cannot_wait_that_long_returns_the_response_at_once() -> None:
    client = Client(timeout=10)
    result, server = client.call((429, {"retry-after": "11"}))
    assert (result, len(server.sent_us), server.buffered, client.since_s()) == (1, 1, [], 0)


def test_a_call_during_a_hold_beyond_its_deadline_fails_at_once() -> None:
    client = Client(timeout=10)
    client.call((429, {"retry-after": "3600"}))
    result, server = client.call(200)
    assert isinstance(result, Held) and result.retry_after == 3600
    assert str(result) == "not sent: the server said to wait, for 3600.000 s more"
    assert server.sent_us == []
    client.clock.advance(3_590_000_000)
    result, _ = client.call(200)
    assert result == 1


def test_all_waits_together_end_by_the_deadline() -> None:
    client = Client(timeout=5, retries=10, chance=1.0)
    result, server = client.call((429, AFTER_2))
    assert client.since_s() <= 5
    assert len(server.sent_us) == 3 and result == 3
    client = Client(timeout=2, chance=1.0)
    result, _ = client.call((429, AFTER_2), 200)
    assert (result, client.since_s()) == (2, 2), "chance adds nothing beyond the deadline"


def test_a_response_that_takes_until_the_deadline_to_read_is_not_retried() -> None:
    class Slow(Server):
        def buffer(self, response: Any) -> Any:
            self.clock.advance(6_000_000)
            return super().buffer(response)

    client = Client(timeout=5)
    server = Slow(client.clock, [429, 200])
    call = client.calls.call(None, method="GET", origin=("http", "a", None), headers={}, can_resend=lambda: True)
    assert run(client.calls.steps(call), server, None) == "buffered 1"
    assert len(server.sent_us) == 1


def test_an_error_is_raised_when_there_is_no_time_left() -> None:
    client = Client(timeout=0.15, retries=10, chance=1.0)
    error = Lost()
    result, server = client.call(error)
    assert result is error
    assert len(server.sent_us) == 2


def test_without_a_deadline_a_call_waits_as_long_as_announced() -> None:
    client = Client(timeout=None, chance=0.0)
    result, _ = client.call((429, {"retry-after": "86000"}), 200)
    assert (result, client.since_s()) == (2, 86000)


# --- the limiter in front


def test_calls_wait_in_line_and_each_retry_passes_the_limiter_again() -> None:
    client = Client("1/second bucket", chance=0.0)
    _, server = client.call(502, 502, 200)
    assert [moment - client.start_us for moment in server.sent_us] == [0, 1_000_000, 2_000_000]
    _, server = client.call(200, key="elsewhere")
    assert client.since_s() == 2


def test_a_call_that_would_wait_in_line_for_too_long_is_refused_and_charged_nothing() -> None:
    client = Client("1/minute bucket", timeout=10)
    client.call(200)
    result, server = client.call(200)
    assert isinstance(result, RateLimited) and result.decision.retry_after == 60
    assert server.sent_us == [] and client.since_s() == 0
    client.clock.advance(60_000_000)
    assert client.call(200)[0] == 1


def test_a_retry_that_would_wait_in_line_for_too_long_returns_the_first_response() -> None:
    client = Client("1/minute bucket", timeout=10)
    result, server = client.call(502)
    assert (result, len(server.sent_us)) == ("buffered 1", 1)
    error = Lost()
    client.clock.advance(60_000_000)
    assert client.call(error)[0] is error


def test_a_hold_that_began_during_the_wait_in_line_is_obeyed() -> None:
    client = Client("1/second bucket", chance=0.0)
    client.call(200)
    destination = client.calls._destinations.of(("https", "example.com", 443), client.start_us)
    steps = client.calls.steps(
        client.calls.call(None, method="GET", origin=("https", "example.com", 443), headers={}, can_resend=bool)
    )
    turn = next(steps)
    assert type(turn).__name__ == "Turn"
    destination.hold(client.clock.now_us(), 9_000_000)
    sleep = steps.send(client.calls.limiter.peek("other"))
    assert type(sleep).__name__ == "Sleep" and client.since_s() == 9


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
@pytest.mark.parametrize("limits", ["2/hour", "1/second queue 2"])
def test_a_call_that_is_not_sent_as_a_hold_began_meanwhile_is_charged_nothing(
    kind: type[Limiter | AsyncLimiter], limits: str
) -> None:
    clock, key = ManualClock(), ("https", "example.com", 443)
    limiter: Any = kind(limits, clock=clock)
    server = Server(clock, [200])
    sender = Sender(limiter, {"clock": clock}, asynchronous=kind is AsyncLimiter)
    call = sender.call(None, method="GET", origin=key, headers={}, can_resend=lambda: True)

    def held_meanwhile() -> Any:
        steps = sender.steps(call)
        turn = next(steps)
        sender._destinations.of(key, clock.now_us()).hold(clock.now_us(), 60_000_000)
        answer = yield turn
        while True:
            answer = yield steps.send(answer)

    def remaining() -> list[int]:
        return [reading.remaining for reading in limiter.bound.peek(key, 0).limits]

    def send() -> Any:
        steps = held_meanwhile()
        return run(steps, server, limiter) if kind is Limiter else asyncio.run(run_async(steps, server, limiter))

    before = remaining()
    with pytest.raises(Held):
        send()
    assert (server.sent_us, remaining()) == ([], before)


def test_keys_and_costs_are_functions_of_the_request() -> None:
    client = Client("10/minute bucket", key=lambda request: request["user"], cost=lambda request: request["cost"])
    call = client.calls.call(
        {"user": "u1", "cost": 3}, method="GET", origin=("https", "h", 1), headers={}, can_resend=lambda: True
    )
    assert (call.key, call.cost) == ("u1", 3)
    run(client.calls.steps(call), Server(client.clock, [200]), client.calls.limiter)
    assert client.calls.limiter.peek("u1", 0).remaining == 7


def test_the_default_key_is_the_origin() -> None:
    calls = Client().calls
    keys = [
        calls.call(None, method="GET", origin=origin, headers={}, can_resend=bool).key
        for origin in [("https", "h", None), ("https", "h", 443), ("http", "h", None), ("https", "h", 8443)]
    ]
    assert keys == [("https", "h", 443), ("https", "h", 443), ("http", "h", 80), ("https", "h", 8443)]


class BrokenLimiter:
    def acquire(self, *_: Any, **__: Any) -> Any:
        raise StoreUnavailable("no store")


def test_a_call_without_its_store_is_sent_or_raises(caplog: pytest.LogCaptureFixture) -> None:
    for choice in ("open", "closed"):
        client = Client("1/minute", on_store_error=choice)
        call = client.calls.call(None, method="GET", origin=("https", "h", 1), headers={}, can_resend=bool)
        server = Server(client.clock, [200])
        limiter: Any = BrokenLimiter()
        if choice == "open":
            assert run(client.calls.steps(call), server, limiter) == 1
            assert caplog.messages == ["a call was not counted: no store"]
        else:
            with pytest.raises(StoreUnavailable):
                run(client.calls.steps(call), server, limiter)
            assert server.sent_us == []


# --- the budget


def test_a_server_that_always_fails_gets_little_more_than_one_request_per_call() -> None:
    client = Client(chance=0.0)
    sent = sum(len(client.call(502)[1].sent_us) for _ in range(1000))
    assert sent == pytest.approx(1000 * 1.1 + 10, abs=2)


def test_each_key_has_its_own_budget() -> None:
    client = Client(chance=0.0, retry_budget=0)
    for _ in range(50):
        client.call(502)
    assert len(client.call(502)[1].sent_us) == 1
    assert len(client.call(502, key="elsewhere")[1].sent_us) == 3


def test_retries_that_the_server_requested_and_accepted_cost_nothing() -> None:
    client = Client(chance=0.0, retry_budget=0)
    for _ in range(100):
        assert client.call((429, {"retry-after-ms": "20"}), 200)[0] == 2
    sent = sum(len(client.call((429, {"retry-after-ms": "20"}))[1].sent_us) for _ in range(100))
    assert sent <= 111, "but those that it refused do"


# --- adaptive throttling


def test_most_calls_to_a_server_that_refuses_all_are_not_sent() -> None:
    client = Client(adaptive=True, retries=0, chance=0.5)
    assert client.call(503)[0] == 1
    result, server = client.call(503)
    assert result == 1, "(1 - 0) / (1 + 1) is no more than a half"
    result, server = client.call(503)
    assert isinstance(result, Throttled) and result.chance == pytest.approx(2 / 3)
    assert server.sent_us == []
    assert "67%" in str(result)


@pytest.mark.parametrize(
    ("outcome", "accepted"),
    [(200, True), (500, True), (404, True), (403, True), (429, False), (502, False), (503, False), (504, False),
     (Lost(), False), (Unsent(), False)],
)  # fmt: skip
def test_which_outcomes_count_as_accepted(outcome: Outcome, accepted: bool) -> None:
    client = Client(adaptive=True, retries=0, chance=0.0)
    client.call(outcome)
    assert isinstance(client.call(200)[0], Throttled) is not accepted


def test_a_local_error_does_not_count_against_the_server() -> None:
    client = Client(adaptive=True, retries=0, chance=0.0)
    client.call(Wrong())
    assert client.call(200)[0] == 1


def test_a_throttled_retry_returns_the_first_response() -> None:
    result, server = Client(adaptive=True, chance=0.4).call(502)
    assert (result, len(server.sent_us)) == ("buffered 1", 1)


def test_throttling_is_off_by_default() -> None:
    client = Client(retries=0, chance=0.0)
    assert all(client.call(503)[0] == 1 for _ in range(50))


# --- in asyncio


def test_the_asynchronous_driver_takes_the_same_steps() -> None:
    async def main() -> None:
        clock = ManualClock()
        start_us = clock.now_us()
        calls = Sender("1/second bucket", {"clock": clock, "random": lambda: 0.0}, asynchronous=True)
        call = calls.call(None, method="GET", origin=("https", "h", None), headers={}, can_resend=lambda: True)
        server = AsyncServer(clock, [Unsent(), (429, AFTER_2), 200])
        assert await run_async(calls.steps(call), server, calls.limiter) == 3
        assert [moment - start_us for moment in server.sent_us] == [0, 1_000_000, 3_000_000]
        assert server.buffered == [2]
        with pytest.raises(Lost):
            await run_async(calls.steps(call), AsyncServer(clock, [Lost()]), calls.limiter)

    asyncio.run(main())


class AsyncServer(Server):
    async def send(self) -> Any:
        return super().send()

    async def buffer(self, response: Any) -> Any:
        return super().buffer(response)


# --- options


async def _coroutine(request: Any) -> Any: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "retries is a whole number from 0 to 10, not -1"),
        ({"retries": 1.5}, "retries is a whole number from 0 to 10, not 1.5"),
        ({"retries": True}, "retries is a whole number from 0 to 10, not True"),
        ({"retry_budget": 2}, "retry_budget is a number from 0 to 1, not 2"),
        ({"retry_budget": "10%"}, "retry_budget is a number from 0 to 1, not '10%'"),
        ({"retry_budget": float("nan")}, "retry_budget is a number from 0 to 1, not nan"),
        ({"timeout": -1}, "timeout is a number of seconds from 0, or None for no end, not -1"),
        ({"timeout": "5s"}, "timeout is a number of seconds from 0, or None for no end, not '5s'"),
        ({"adaptive": "yes"}, "adaptive is True or False, not 'yes'"),
        ({"adaptive": True, "adaptive_k": 0.5}, "adaptive_k is a number from 1 to 1000, not 0.5"),
        ({"adaptive_k": 2}, "adaptive_k goes with adaptive=True"),
        ({"key": "user"}, "key is a function of the request, not 'user'"),
        ({"key": _coroutine}, "key is no coroutine function: nothing awaits what it gives"),
        ({"limits": "5/second", "cost": _coroutine}, "cost is no coroutine function: nothing awaits what it gives"),
        ({"clock": 5}, "clock is a clock, with now_us and let_pass, not 5"),
        ({"random": 0.5}, "random is a function that gives numbers from 0 up to 1, not 0.5"),
        ({"limits": "5/second", "cost": -1}, "cost is a whole number from 0, or a function of the request, not -1"),
        ({"limits": "5/second", "on_store_error": "shut"}, "on_store_error is one of local, open, closed, not 'shut'"),
        ({"cost": 2}, "cost goes with limits, and there are none"),
        ({"store": "memory://"}, "store goes with limits, and there are none"),
        ({"limits": Limiter("1/second"), "name": "a"}, "name goes with limits; a limiter has its own"),
        ({"limits": AsyncLimiter("1/second")}, "this client needs a Limiter, not an AsyncLimiter"),
        ({"limits": 5}, "limits are text, limit values, a limiter or None, not 5"),
        ({"limits": "5/fortnight"}, "units are ms, second, minute"),
    ],
)  # fmt: skip
def test_invalid_options_raise_an_error(options: Any, message: str) -> None:
    limits = options.pop("limits", None)
    with pytest.raises(ConfigError) as raised:
        read_options(limits, options, asynchronous=False)
    assert message in str(raised.value)


def test_the_error_for_an_unknown_option_lists_the_known_ones() -> None:
    with pytest.raises(TypeError, match="no option is named retrys; there are key, cost, "):
        read_options(None, Options(retrys=3), asynchronous=False)  # type: ignore[typeddict-unknown-key]


def test_a_passed_limiter_is_used_unchanged_and_owned_by_the_caller() -> None:
    limiter = Limiter("1/second")
    calls = Sender(limiter, {}, asynchronous=False)
    assert calls.limiter is limiter and calls.owned is None
    own = Sender("1/second", {}, asynchronous=False)
    assert own.owned is own.limiter
    with pytest.raises(ConfigError, match="needs an AsyncLimiter, not a Limiter"):
        Sender(limiter, {}, asynchronous=True)


def test_errors_can_be_sent_between_processes() -> None:
    for error in (Held(1.5), Throttled(0.5)):
        unpickled = pickle.loads(pickle.dumps(error))
        assert type(unpickled) is type(error) and str(unpickled) == str(error)
        assert vars(unpickled) == vars(error)


@pytest.mark.parametrize(
    ("library", "module", "extra"),
    [("httpx", "httpx", "httpx"), ("requests", "requests", "requests"), ("aiohttp", "aiohttp_client", "aiohttp")],
)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    library: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, f"headgate.integrations.{module}", raising=False)
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'headgate\[{extra}\]'"):
        importlib.import_module(f"headgate.integrations.{module}")
