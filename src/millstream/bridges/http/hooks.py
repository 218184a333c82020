"""Webhooks that are repeated: each id of a hook is written once.

The ids are headers of the records themselves: at the first webhook after a start, and after an
answer of the cluster that never came, they are read from the end of the topic. So a bridge that was
killed after a record was durable and before it was answered recognizes the repeat. Memory is
bounded: the last ids are known, and older ones are forgotten.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool

from millstream.bridges.http.limits import IDS_MAX, RecentIds
from millstream.bridges.http.shapes import Written
from millstream.bridges.tail import last_headers
from millstream.errors import MillstreamError

HOOK, ID = "millstream-hook", "webhook-id"
UNKNOWN = 503  # the record may be in the log

LoadIds = Callable[[], list[str]]


def last_ids(settings: Mapping[str, Any], topic: str, hook: str) -> list[str]:
    """The ids of the last webhooks of a hook in its topic. Raises `MillstreamError`."""
    name = hook.encode()
    return [
        it[ID].decode("utf-8", "replace")
        for it in last_headers(settings, topic, None, IDS_MAX)
        if it.get(HOOK) == name and it.get(ID)
    ]


class Once:
    """The ids of one hook, used by one event loop."""

    def __init__(self, load: LoadIds) -> None:
        self._load = load
        self._recent: RecentIds | None = None
        self._lock = asyncio.Lock()
        self._pending: dict[str, asyncio.Future[Written]] = {}

    async def write(
        self, message_id: str, send: Callable[[], asyncio.Future[Written]]
    ) -> Written | None:
        """Send the record of a webhook, unless one with its id is in the log: then None."""
        if not message_id:
            return await send()
        try:
            recent = await self._known()
        except MillstreamError as error:
            return Written(status=UNKNOWN, error=str(error))
        if message_id in recent:
            return None
        pending = self._pending.get(message_id)
        if pending is not None:  # the same webhook, twice at the same time
            written = await asyncio.shield(pending)
            return None if written.error is None else written
        future = self._pending[message_id] = send()
        # Also if nobody waits any more, because the sender has closed its connection.
        future.add_done_callback(lambda done: self._settle(message_id, done))
        return await asyncio.shield(future)

    async def _known(self) -> RecentIds:
        async with self._lock:
            if self._recent is None:
                recent = RecentIds()
                for each in await run_in_threadpool(self._load):
                    recent.add(each)
                self._recent = recent
            return self._recent

    def _settle(self, message_id: str, done: asyncio.Future[Written]) -> None:
        del self._pending[message_id]
        if done.cancelled():
            return
        written = done.result()
        if written.error is not None:
            if written.status == UNKNOWN:
                self._recent = None
        elif self._recent is not None:
            self._recent.add(message_id)
