"""Asking a system outside for many keys: in batches, with patience, and remembering the answers.

`Asker.ask(keys)` gives every key an answer, or an `Unanswered`. What is known is taken from a cache
with a bound and a time to live (least recently used first out); the rest is asked for in batches.
A call that takes longer than its time-out is given up: its thread cannot be ended, so it is left
behind, and with `ABANDONED_MAX` of them still hanging nobody is asked any more. A call that fails
is made again, after a pause that doubles. Failures are not remembered.

Pure but for the threads: the clock and the pause are arguments.
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
ABANDONED_MAX = 8  # calls that hang
FIRST_PAUSE_MS = 100
PAUSE_MS_MAX = 5_000


class LookupFailed(MillstreamError):
    """A system outside did not answer, or not as agreed."""


@dataclass(frozen=True)
class Unanswered:
    """Why a key has no answer."""

    reason: str


@dataclass(frozen=True)
class Patience:
    """How a system is asked, and how long its answers hold."""

    batch_size: int = 500
    timeout_ms: int = 10_000
    retries: int = 2
    cached_keys_max: int = 100_000
    cached_ms: int = 600_000


class Cache:
    """The answers to the keys used last, each for a while."""

    def __init__(self, keys_max: int, kept_ms: int, clock: Clock) -> None:
        self._keys_max = keys_max
        self._kept_ms = kept_ms
        self._clock = clock
        self._answers: OrderedDict[Hashable, tuple[int, Any]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._answers)

    def find(self, keys: Iterable[Hashable]) -> dict[Hashable, Any]:
        """The answers to those keys that are known."""
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
class Asker:
    """Asks `fetch`; one for each process and lookup."""

    fetch: Fetch
    patience: Patience
    clock: Clock = field(default_factory=SystemClock)
    pause: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        limits = self.patience
        self._cache = Cache(limits.cached_keys_max, limits.cached_ms, self.clock)
        self._hanging: set[Future[Any]] = set()

    def ask(self, keys: Sequence[Hashable]) -> dict[Hashable, Any]:
        """For each key what `fetch` said of it, None if nothing, or `Unanswered`."""
        answers = self._cache.find(keys)
        unknown = iter([key for key in dict.fromkeys(keys) if key not in answers])
        while batch := list(islice(unknown, self.patience.batch_size)):
            try:
                found = self._ask_again_and_again(batch)
            except LookupFailed as failure:
                answers |= dict.fromkeys(batch, Unanswered(str(failure)))
                continue
            asked = {key: found.get(key) for key in batch}
            self._cache.keep(asked)
            answers |= asked
        return answers

    def _ask_again_and_again(self, batch: list[Any]) -> Mapping[Any, Any]:
        pause_ms = FIRST_PAUSE_MS
        for remaining in reversed(range(self.patience.retries + 1)):
            try:
                return self._ask_once(batch)
            except LookupFailed:
                if not remaining:
                    raise
            self.pause(pause_ms / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)
        raise AssertionError("unreachable")

    def _ask_once(self, batch: list[Any]) -> Mapping[Any, Any]:
        self._hanging = {it for it in self._hanging if not it.done()}
        if len(self._hanging) >= ABANDONED_MAX:
            raise LookupFailed(f"{ABANDONED_MAX} calls hang that were given up: none is made")
        answer: Future[Any] = Future()
        threading.Thread(target=self._call, args=(batch, answer), daemon=True).start()
        try:
            found = answer.result(self.patience.timeout_ms / 1000)
        except TimeoutError:
            if not answer.done():
                self._hanging.add(answer)
                raise LookupFailed(
                    f"no answer for {len(batch)} keys within {self.patience.timeout_ms} ms"
                ) from None
            raise LookupFailed("TimeoutError") from None
        except Exception as error:
            raise LookupFailed(f"{type(error).__name__}: {error}") from error
        if not isinstance(found, Mapping):
            raise LookupFailed(
                f"the function returned {type(found).__name__}: it must return a dict from keys "
                "to what is known of them"
            )
        return found

    def _call(self, batch: list[Any], answer: Future[Any]) -> None:
        try:
            answer.set_result(self.fetch(batch))
        except BaseException as error:  # noqa: BLE001 - whoever asked gets it
            answer.set_exception(error)
