"""Time and events of a simulation.

An event is a function that runs at a moment; events of the same moment run in the order in which
they were scheduled. An event may belong to a process: if that has died, the event is dropped; if
that is paused, the event waits until it goes on, as after SIGSTOP.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol, TypeAlias

TRACE_LENGTH = 400

Action: TypeAlias = Callable[[], None]


class Violation(AssertionError):
    """An invariant does not hold. The message has the last events."""


class Owner(Protocol):
    """A process to which events belong."""

    is_dead: bool
    is_paused: bool
    backlog: list[tuple[str, Action]]


class World:
    """The event queue, the clock and the only source of chance."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.now_ms = 0
        self.event_count = 0
        self._queue: list[tuple[int, int, str, Action, Owner | None]] = []
        self._scheduled_count = 0
        self._trace: deque[str] = deque(maxlen=TRACE_LENGTH)

    def after(self, delay_ms: int, name: str, action: Action, owner: Owner | None = None) -> None:
        """Run an action later."""
        self._scheduled_count += 1
        entry = (self.now_ms + delay_ms, self._scheduled_count, name, action, owner)
        heapq.heappush(self._queue, entry)

    def step(self) -> None:
        """Run the next event."""
        self.now_ms, _, name, action, owner = heapq.heappop(self._queue)
        if owner is not None:
            if owner.is_dead:
                return
            if owner.is_paused:
                owner.backlog.append((name, action))
                return
        self.event_count += 1
        self._trace.append(f"{self.now_ms:>7} {name}")
        action()

    def run_until(self, now_ms: int) -> None:
        """Run all events up to that moment."""
        while self._queue and self._queue[0][0] <= now_ms:
            self.step()
        self.now_ms = max(self.now_ms, now_ms)

    def resume(self, owner: Owner) -> None:
        """A paused process goes on with what it has missed."""
        owner.is_paused = False
        missed, owner.backlog = owner.backlog, []
        for name, action in missed:
            self.after(0, name, action, owner)

    def note(self, text: str) -> None:
        """Add a line to the trace."""
        self._trace.append(f"{self.now_ms:>7}   {text}")

    def violation(self, text: str) -> Violation:
        """What to raise if an invariant does not hold."""
        trace = "\n".join(self._trace)
        return Violation(
            f"seed {self.seed}, event {self.event_count}, {self.now_ms} ms: {text}\n"
            f"the last events:\n{trace}\n"
            f"seed {self.seed}, event {self.event_count}, {self.now_ms} ms: {text}"
        )
