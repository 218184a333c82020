"""Lookups in an external system: in batches, with timeouts, retries and a cache.

`LookupClient.find(keys)` returns an answer, or a `NoAnswer`, for every key. Known answers come from
a cache with a size limit and a time to live (least recently used first out); the others are fetched
in batches. A call that exceeds its timeout is abandoned: its thread cannot be ended. While
`ABANDONED_MAX` abandoned calls are running, no new one is made. A failed call is retried after a
pause that doubles. Failures are not cached.

The clock and the pause are arguments.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeAlias

from millstream.clock import Clock, SystemClock
from millstream.errors import MillstreamError

Fetch: TypeAlias = "Callable[[list[Any]], Mapping[Any, Any]]"
ABANDONED_MAX = 8
FIRST_PAUSE_MS = 100
PAUSE_MS_MAX = 5_000


class LookupFailed(MillstreamError):
    """An external system did not answer, or not with a dict of the declared columns."""


@dataclass(frozen=True)
class NoAnswer:
    """Why a key has no answer."""

    reason: str


@dataclass(frozen=True)
class LookupSettings:
    """The limits of calls and of the cache."""

    batch_size: int = 500
    timeout_ms: int = 10_000
    retries: int = 2
    cached_keys_max: int = 100_000
    cached_ms: int = 600_000


class Cache:
    """The answers to the keys that were used last, each for a limited time."""

    def __init__(self, keys_max: int, kept_ms: int, clock: Clock) -> None:
        self._keys_max = keys_max
        self._kept_ms = kept_ms
        self._clock = clock
        self._answers: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, keys: Iterable[Hashable]) -> dict[Hashable, Any]:
        """The cached answers to these keys."""
        oldest_ms = self._clock.monotonic_ms() - self._kept_ms
        found = {}
        for key in keys:
            known = self._answers.get(key)
            if known is None:
                continue
            if known[0] <= oldest_ms:
                del self._answers[key]
                continue
            self._answers.move_to_end(key)
            found[key] = known[1]
        return found

    def keep(self, answers: Mapping[Hashable, Any]) -> None:
        now_ms = self._clock.monotonic_ms()
        for key, answer in answers.items():
            self._answers[key] = now_ms, answer
            self._answers.move_to_end(key)
        while len(self._answers) > self._keys_max:
            self._answers.popitem(last=False)


@dataclass
class LookupClient:
    """Calls `fetch`; one for each process and lookup."""

    fetch: Fetch
    settings: LookupSettings
    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        limits = self.settings
        self._cache = Cache(limits.cached_keys_max, limits.cached_ms, self.clock)
        self._abandoned: set[Future[Any]] = set()

    def find(self, keys: Sequence[Hashable]) -> dict[Hashable, Any]:
        """For each key the answer of `fetch`, None if it has none, or `NoAnswer`."""
        answers = self._cache.find(keys)
        unknown = iter([key for key in dict.fromkeys(keys) if key not in answers])
        while batch := list(islice(unknown, self.settings.batch_size)):
            try:
                found = self._fetch_with_retries(batch)
            except LookupFailed as failure:
                answers |= dict.fromkeys(batch, NoAnswer(str(failure)))
                continue
            fetched = {key: found.get(key) for key in batch}
            self._cache.keep(fetched)
            answers |= fetched
        return answers

    def _fetch_with_retries(self, batch: list[Any]) -> Mapping[Any, Any]:
        pause_ms = FIRST_PAUSE_MS
        for remaining in reversed(range(self.settings.retries + 1)):
            try:
                return self._fetch_once(batch)
            except LookupFailed:
                if not remaining:
                    raise
            self.pause(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
        raise AssertionError("unreachable")

    def _fetch_once(self, batch: list[Any]) -> Mapping[Any, Any]:
        self._abandoned = {it for it in self._abandoned if not it.done()}
        if len(self._abandoned) >= ABANDONED_MAX:
            raise LookupFailed(f"{ABANDONED_MAX} calls that timed out are still running")
        answer: Future[Any] = Future()
        threading.Thread(target=self._call, args=(batch, answer), daemon=True).start()
        try:
            found = answer.result(self.settings.timeout_ms / 1000)
        except TimeoutError:
            if not answer.done():
                self._abandoned.add(answer)
                raise LookupFailed(
                    f"no answer for {len(batch)} keys within {self.settings.timeout_ms} ms"
                ) from None
            raise LookupFailed("TimeoutError") from None
        except Exception as error:
            raise LookupFailed(f"{type(error).__name__}: {error}") from error
        if not isinstance(found, Mapping):
            raise LookupFailed(
                f"the function must return a dict from keys to answers, not {type(found).__name__}"
            )
        return found

    def _call(self, batch: list[Any], answer: Future[Any]) -> None:
        try:
            answer.set_result(self.fetch(batch))
        except BaseException as error:  # noqa: BLE001 - passed to the caller
            answer.set_exception(error)
