"""Producer ids, from blocks allocated in the metadata."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.metadata.actions import ClusterActions


class ProducerIds:
    """Hands out each producer id once."""

    def __init__(self, actions: ClusterActions) -> None:
        self._actions = actions
        self._in_hand: deque[int] = deque()

    async def next(self) -> int:
        await self.ready()
        return self.take()

    async def ready(self) -> None:
        """Make sure that one is available: `take` then succeeds in the same turn."""
        while not self._in_hand:
            self._in_hand.extend(await self._actions.allocate_producer_ids())

    def take(self) -> int:
        """Take one without waiting. Raises if none is available."""
        if not self._in_hand:
            raise ApiError(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                "Allocating new producer ids; retry.",
            )
        return self._in_hand.popleft()
