"""Timers by name: one heap on the event loop for all coordinators.

A coordinator replaces and cancels timers far more often than one fires (every heartbeat moves a
session's deadline), so both only mark the old entry; marked entries leave the heap when they come
to its top, or all at once when they outnumber the live ones.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
from collections.abc import Callable, Hashable
from typing import NamedTuple, TypeAlias

from millstream.clock import Clock

logger = logging.getLogger(__name__)

TimerName: TypeAlias = tuple[str, ...]

# Below this many entries a heap is not worth cleaning.
_DEAD_ENTRIES_MIN = 1_000


class _Entry(NamedTuple):
    deadline_ms: int
    number: int  # unique, so that entries compare without looking at their owners
    owner: Hashable
    name: TimerName


class Timers:
    """Named deadlines of any number of owners; times are the clock's monotonic milliseconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[_Entry] = []
        # The number of the live entry of each name, with its callback; others in the heap are dead.
        self._live: dict[Hashable, dict[TimerName, tuple[int, Callable[[], None]]]] = {}
        self._live_count = 0
        self._numbers = itertools.count()
        self._wake_up: asyncio.TimerHandle | None = None
        self._wake_up_at_ms = 0

    def __len__(self) -> int:
        return self._live_count

    def set(
        self, owner: Hashable, name: TimerName, delay_ms: int, callback: Callable[[], None]
    ) -> None:
        """Call back after the delay; replaces the owner's timer of that name."""
        self.cancel(owner, name)
        number = next(self._numbers)
        self._live.setdefault(owner, {})[name] = (number, callback)
        self._live_count += 1
        deadline_ms = self._clock.monotonic_ms() + max(delay_ms, 0)
        heapq.heappush(self._heap, _Entry(deadline_ms, number, owner, name))
        if len(self._heap) > _DEAD_ENTRIES_MIN + 2 * self._live_count:
            self._compact_heap()
        self._arm()

    def cancel(self, owner: Hashable, name: TimerName) -> None:
        if self._live.get(owner, {}).pop(name, None) is not None:
            self._live_count -= 1

    def cancel_all(self, owner: Hashable) -> None:
        self._live_count -= len(self._live.pop(owner, {}))

    def close(self) -> None:
        self._heap.clear()
        self._live.clear()
        self._live_count = 0
        if self._wake_up is not None:
            self._wake_up.cancel()
            self._wake_up = None

    def _compact_heap(self) -> None:
        self._heap = [entry for entry in self._heap if self._is_live(entry)]
        heapq.heapify(self._heap)

    def _is_live(self, entry: _Entry) -> bool:
        live = self._live.get(entry.owner, {}).get(entry.name)
        return live is not None and live[0] == entry.number

    def _arm(self) -> None:
        """Schedule a call for the earliest entry."""
        if not self._heap:
            return
        deadline_ms = self._heap[0].deadline_ms
        if self._wake_up is not None:
            if self._wake_up_at_ms <= deadline_ms:
                return
            self._wake_up.cancel()
        delay_ms = max(deadline_ms - self._clock.monotonic_ms(), 0)
        self._wake_up_at_ms = deadline_ms
        self._wake_up = asyncio.get_running_loop().call_later(delay_ms / 1000, self._fire)

    def _fire(self) -> None:
        self._wake_up = None
        now_ms = self._clock.monotonic_ms()
        due: list[_Entry] = []
        while self._heap and self._heap[0].deadline_ms <= now_ms:
            due.append(heapq.heappop(self._heap))
        for entry in due:
            if self._is_live(entry):  # an earlier callback of this turn may have cancelled it
                _, callback = self._live[entry.owner][entry.name]
                self.cancel(entry.owner, entry.name)
                try:
                    callback()
                except Exception:  # a bug; other due timers must still run
                    logger.exception("timer %s failed", "/".join(entry.name))
        self._arm()
