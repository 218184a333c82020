"""Producer ids, from blocks allocated in the metadata."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.metadata.local import MetadataStore


class ProducerIds:
    """Hands out each producer id once."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._broker_id = broker_id
        self._in_hand: deque[int] = deque()

    async def next(self) -> int:
        await self.ready()
        return self.take()

    async def ready(self) -> None:
        """Make sure that one is available: `take` then succeeds in the same turn."""
        while not self._in_hand:
            self._in_hand.extend(await self._store.allocate_producer_ids(self._broker_id))

    def take(self) -> int:
        """Take one without waiting. Raises if none is available."""
        if not self._in_hand:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "Allocating new producer ids; retry.",
            )
        return self._in_hand.popleft()
