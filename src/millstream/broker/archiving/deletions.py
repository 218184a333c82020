"""Deletes the archives of topics that were deleted; see `archive/deleting.py`.

Looks at the start and after each deletion of a topic, and again while marks are left. All brokers
do: what one has deleted is not there for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from millstream.broker.archiving.process import WRITE_SECONDS_MAX
from millstream.errors import MillstreamError

if TYPE_CHECKING:
    from uuid import UUID

    from millstream.archive.deleting import Mark
    from millstream.broker.archiving.process import ArchiveProcess
    from millstream.broker.metadata.store import MetadataStore
    from millstream.clock import Clock

logger = logging.getLogger("millstream.archive")

AGAIN_SECONDS = 600.0
RETRY_SECONDS = 10.0
# An upload that was begun before the deletion has ended by then.
MARKS_KEPT_MS = int(2 * WRITE_SECONDS_MAX * 1000)


class Deletions:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        process: ArchiveProcess,
        metadata: MetadataStore,
        clock: Clock,
        run_blocking: Callable[..., Awaitable[Any]],
    ) -> None:
        self._process = process
        self._metadata = metadata
        self._clock = clock
        self._run_blocking = run_blocking
        self._awake = asyncio.Event()
        self._told: set[UUID] = set()
        self.problem: str | None = None  # why archives of deleted topics are still there

    def wake(self) -> None:
        """A topic was deleted."""
        self._awake.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        while True:
            self._awake.clear()
            seconds = await self._look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._awake.wait()

    async def _look(self) -> float | None:
        """Returns when to look again; None: after the next deletion."""
        try:
            is_any_left = await self.delete_marked()
        except MillstreamError as error:
            problem = str(error)
        except Exception as error:
            logger.exception("looking for the archives of deleted topics failed")
            problem = repr(error)
        else:
            self.problem = None
            return AGAIN_SECONDS if is_any_left else None
        if problem != self.problem:
            self.problem = problem
            logger.warning("archives of deleted topics cannot be deleted now: %s", problem)
        return RETRY_SECONDS

    async def delete_marked(self) -> bool:
        """Returns whether there is something to do later. Raises `MillstreamError`."""
        marks: list[Mark] = await self._run_blocking(self._process.marked)
        if not marks:
            return False
        # The newest metadata: a topic that is not known here may have been created since.
        image = await self._metadata.refresh()
        is_any_left = False
        for mark in marks:
            if mark.topic_id in image.topics_by_id:
                continue  # its deletion was refused, or is about to be committed
            await self._run_blocking(self._process.delete_topic, mark.topic, mark.topic_id)
            if mark.topic_id not in self._told:
                self._told.add(mark.topic_id)
                logger.info("deleted the archive of %s, id %s", mark.topic, mark.topic_id)
            if self._clock.now_ms() - mark.marked_ms >= MARKS_KEPT_MS:
                await self._run_blocking(self._process.unmark, mark.topic_id)
                self._told.discard(mark.topic_id)
            else:
                is_any_left = True
        return is_any_left
