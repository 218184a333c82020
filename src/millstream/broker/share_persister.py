"""The share state persister: what share groups remember, kept in `__share_group_state`.

Whoever leads a partition for a share group reads its state here and writes what changed; the group
coordinator initializes and deletes it. The arguments are those of the APIs 83 to 87, so that these
roles may live on several brokers: today every state is kept by this broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from millstream.coordination.share_state import (
    SharePartitionKey,
    ShareState,
    ShareStateSummary,
    StateBatch,
    StateWrite,
)
from millstream.errors import ApiError


class SharePersister:
    """The share state that this broker keeps. Everything returns once it is durable."""

    async def initialize(self, key: SharePartitionKey, state_epoch: int, start_offset: int) -> None:
        """Begin anew at that offset (-1: the leader finds it). Makes the topic on first use."""
        raise NotImplementedError

    async def read(self, key: SharePartitionKey, leader_epoch: int) -> ShareState:
        """The state, for a leader of this epoch: an earlier one is fenced from now on."""
        raise NotImplementedError

    async def read_summary(self, key: SharePartitionKey, leader_epoch: int) -> ShareStateSummary:
        """The state without its batches; what was never initialized has start offset -1."""
        raise NotImplementedError

    async def write(
        self,
        key: SharePartitionKey,
        *,
        state_epoch: int,
        leader_epoch: int,
        start_offset: int,
        delivery_complete_count: int,
        batches: Sequence[StateBatch],
    ) -> None:
        """Lay what changed over what is known."""
        raise NotImplementedError

    async def write_all(self, writes: Sequence[StateWrite]) -> list[ApiError | None]:
        """Several writes in one turn, which share a flush; each succeeds (None) or fails alone."""
        raise NotImplementedError

    async def delete(self, key: SharePartitionKey) -> None:
        """Forget it. What is not there is deleted already."""
        raise NotImplementedError
