"""Work for the end of a turn: after the requests of a connection, before their responses; or after
a flush was noted in all of its partitions.

An append wakes the consumers that wait for it. They look once for all appends of a turn, and their
answers are written before those of the producer: each write wakes a client, which may take the
core, and the consumer is the one that waits for records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

logger = logging.getLogger(__name__)


class Turn:
    """The callbacks that wait for the end of the turn."""

    __slots__ = ("_callbacks", "_is_open", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._is_open = False
        self._callbacks: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Requests are handled, or a flush is noted; `end` follows in the same callback of the
        loop."""
        self._is_open = True

    def call_at_end(self, callback: Callable[[], None]) -> None:
        """Call at the end of this turn; outside a turn, soon."""
        if self._is_open:
            self._callbacks.append(callback)
        else:
            self._loop.call_soon(callback)

    def end(self) -> None:
        """Run the callbacks. A callback that raises does not affect the others."""
        self._is_open = False
        if self._callbacks:
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                try:
                    callback()
                except Exception:
                    logger.exception("%r failed", callback)
