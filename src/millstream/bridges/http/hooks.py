"""Webhooks that are repeated: each id of a hook is written once.

The ids are headers of the records themselves. Before a webhook is written, its bridge reads the
topic to its end: so it knows what was written before a restart, and by other bridges that serve the
same hook. Webhooks that come at the same time share a read. Memory is bounded: the last ids are
known, and older ones are forgotten.

Between bridges that is not exact: a repeat that reaches another bridge before the first record is
in the log is written by both. `conditions` is exact, where the broker checks each record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool

from millstream.bridges.http.limits import IDS_MAX, RecentIds
from millstream.bridges.http.shapes import Written
from millstream.bridges.tail import Tail
from millstream.errors import MillstreamError

HOOK, ID = "millstream-hook", "webhook-id"
UNAVAILABLE = 503

ReadIds = Callable[[], list[str]]


class HookIds:
    """The ids of a hook in its topic. One thread at a time."""

    def __init__(self, settings: Mapping[str, Any], topic: str, hook: str) -> None:
        self._hook = hook.encode()
        self._tail = Tail(settings, topic, None, IDS_MAX)

    def read(self) -> list[str]:
        """Those that came since the last call. Raises `MillstreamError`."""
        return [
            it[ID].decode("utf-8", "replace")
            for it in self._tail.read()
            if it.get(HOOK) == self._hook and it.get(ID)
        ]

    def close(self) -> None:
        self._tail.close()


class Once:
    """The ids of one hook, used by one event loop. `read` returns the ids that came since it was
    called last; it is called in a thread, and not twice at a time. Without it, only what this
    bridge wrote is known."""

    def __init__(self, read: ReadIds | None) -> None:
        self._read = read
        self._recent = RecentIds()
        self._lock = asyncio.Lock()
        self._begun = 0  # reads
        self._failed: MillstreamError | None = None  # the last one
        self._pending: dict[str, asyncio.Future[Written]] = {}

    async def write(
        self, message_id: str, send: Callable[[], asyncio.Future[Written]]
    ) -> Written | None:
        """Send the record of a webhook, unless one with its id is in the log: then None."""
        if not message_id:
            return await send()
        if self._read is not None and message_id not in self._recent:
            try:
                # To its end, also if the sender goes away: what it found must not be forgotten.
                await asyncio.shield(asyncio.ensure_future(self._catch_up(self._read)))
            except MillstreamError as error:
                return Written(status=UNAVAILABLE, error=str(error))
        if message_id in self._recent:
            return None
        pending = self._pending.get(message_id)
        if pending is not None:  # the same webhook, twice at the same time
            written = await asyncio.shield(pending)
            return None if written.error is None else written
        future = self._pending[message_id] = send()
        # Also if nobody waits any more, because the sender has closed its connection.
        future.add_done_callback(lambda done: self._settle(message_id, done))
        return await asyncio.shield(future)

    async def _catch_up(self, read: ReadIds) -> None:
        """Know every id that was in the log when this was called. Raises `MillstreamError`."""
        begun = self._begun
        async with self._lock:
            if self._begun == begun:  # no read has begun since
                self._begun += 1
                try:
                    found = await run_in_threadpool(read)
                except MillstreamError as error:
                    self._failed = error
                else:
                    self._failed = None
                    for each in found:
                        self._recent.add(each)
            if self._failed is not None:
                raise self._failed

    def _settle(self, message_id: str, done: asyncio.Future[Written]) -> None:
        del self._pending[message_id]
        if not done.cancelled() and done.result().error is None:
            self._recent.add(message_id)
