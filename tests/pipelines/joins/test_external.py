"""Lookups in an external system: batches, a bounded cache, retries and timeouts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from millstream.pipelines.joins import external
from millstream.pipelines.joins.external import Cache, LookupClient, LookupSettings, NoAnswer
from millstream.testing.clock import ManualClock
from tests.peers.patience import PATIENCE_SECONDS


class Squares:
    """Knows the squares of even numbers; fails as often as it is told to."""

    def __init__(self, failures: int = 0) -> None:
        self.calls: list[list[int]] = []
        self.failures = failures

    def __call__(self, keys: list[int]) -> dict[int, int]:
        self.calls.append(keys)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("refused")
        return {key: key * key for key in keys if key % 2 == 0}


def make_client(fetch: Any, **patience: int) -> tuple[LookupClient, ManualClock, list[float]]:
    clock = ManualClock()
    pauses: list[float] = []
    return LookupClient(fetch, LookupSettings(**patience), clock, pauses.append), clock, pauses


def test_keys_are_asked_for_once_in_batches_and_then_known() -> None:
    fetch = Squares()
    client, _, _ = make_client(fetch, batch_size=2)
    assert client.find([2, 3, 2, 4]) == {2: 4, 3: None, 4: 16}
    assert fetch.calls == [[2, 3], [4]]
    assert client.find([3, 4, 6]) == {3: None, 4: 16, 6: 36}
    assert fetch.calls[2:] == [[6]], "that nothing is known of a key is remembered, too"


def test_answers_hold_for_a_while() -> None:
    fetch = Squares()
    client, clock, _ = make_client(fetch, cached_ms=1000)
    client.find([2])
    clock.advance(999)
    client.find([2])
    assert len(fetch.calls) == 1
    clock.advance(1)
    client.find([2])
    assert len(fetch.calls) == 2


def test_cache_keeps_what_was_used_last() -> None:
    cache = Cache(3, 1000, ManualClock())
    cache.keep({1: "a", 2: "b", 3: "c"})
    cache.find([1])
    cache.keep({4: "d"})
    assert len(cache) == 3
    assert cache.find([1, 2, 3, 4]) == {1: "a", 3: "c", 4: "d"}


def test_cache_without_room_asks_every_time() -> None:
    fetch = Squares()
    client, _, _ = make_client(fetch, cached_keys_max=0)
    assert client.find([2]) == client.find([2]) == {2: 4}
    assert len(fetch.calls) == 2


def test_call_that_fails_is_made_again_after_growing_pauses() -> None:
    fetch = Squares(failures=3)
    client, _, pauses = make_client(fetch, retries=3)
    assert client.find([2]) == {2: 4}
    assert pauses == [0.1, 0.2, 0.4]


def test_key_without_an_answer_has_the_reason_and_is_asked_again() -> None:
    fetch = Squares(failures=2)
    client, _, _ = make_client(fetch, retries=1, batch_size=1)
    assert client.find([2, 4]) == {2: NoAnswer("ConnectionError: refused"), 4: 16}
    assert client.find([2]) == {2: 4}


def test_answer_that_is_no_dict_is_a_failure() -> None:
    client, _, _ = make_client(lambda keys: [keys], retries=0)
    (answer,) = client.find([2]).values()
    assert "must return a dict from keys to answers, not list" in answer.reason


@pytest.fixture
def released() -> Iterator[threading.Event]:
    """Set at the end, so that no thread outlives the test for long."""
    event = threading.Event()
    yield event
    event.set()


def test_call_that_hangs_is_given_up_and_too_many_of_them_are_not_made(
    released: threading.Event,
) -> None:
    calls = []

    def hang(keys: list[int]) -> dict[int, int]:
        calls.append(keys)
        released.wait()
        return {}

    client, _, _ = make_client(hang, retries=0, timeout_ms=1)
    for key in range(external.ABANDONED_MAX):
        assert client.find([key]) == {key: NoAnswer("no answer for 1 keys within 1 ms")}
    (answer,) = client.find([99]).values()
    assert "calls that timed out are still running" in answer.reason
    # The last of the threads may have been given up before it came to the call.
    deadline = time.monotonic() + PATIENCE_SECONDS
    while len(calls) < external.ABANDONED_MAX and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(calls) == external.ABANDONED_MAX


def test_time_out_of_the_function_itself_is_a_failure_like_any_other() -> None:
    def give_up(keys: list[int]) -> dict[int, int]:
        raise TimeoutError("after 3 seconds")

    client, _, _ = make_client(give_up, retries=0)
    (answer,) = client.find([1]).values()
    assert "TimeoutError" in answer.reason
    assert not client._abandoned
