"""Share groups on a shard with its own clock, and a state persister that remembers what it did."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from millstream.config.groups import GroupConfig
from millstream.coordination.groups import share_offsets
from millstream.coordination.groups.assignors import Assignment
from millstream.coordination.groups.group import GroupSettings
from millstream.coordination.groups.share import ShareGroup
from millstream.coordination.groups.share_groups import ShareGroups
from millstream.coordination.groups.share_messages import (
    AlteredOffsets,
    Initialization,
    ShareHeartbeat,
    ShareHeartbeatResponse,
)
from millstream.coordination.share_state import SharePartitionKey
from tests.coordination.groups.consumer_harness import FakeTopics, ShardDriver


class ShareDriver(ShardDriver):
    """The runtime of share groups, one step at a time: a test decides what comes when."""

    def __init__(
        self,
        topics: FakeTopics,
        settings: GroupSettings | None = None,
        config: GroupConfig | None = None,
    ) -> None:
        # Most tests want to see a target as soon as it is due.
        super().__init__(topics, settings, config or GroupConfig(share_assignment_interval_ms=0))
        self.states: dict[SharePartitionKey, tuple[int, int]] = {}  # state epoch, start offset

    @property
    def groups(self) -> ShareGroups:
        return self.shard.share_groups

    def share_heartbeat(self, request: ShareHeartbeat) -> ShareHeartbeatResponse:
        response = self.apply(self.groups.heartbeat(request, self.now_ms))
        assert isinstance(response, ShareHeartbeatResponse)
        return response

    def persist(self, initialization: Initialization) -> None:
        """The persister's part."""
        for key, offset in zip(
            initialization.share_partitions(), initialization.start_offsets.values(), strict=True
        ):
            self.states[key] = (initialization.state_epoch, offset)

    def initialize(self, initialization: Initialization) -> None:
        self.persist(initialization)
        partitions = list(initialization.start_offsets)
        self.apply(self.groups.state_initialized(initialization.group_id, partitions, self.now_ms))

    def alter(self, *positions: tuple[str, int, int], group_id: str = "g") -> AlteredOffsets:
        altered = self.apply(
            share_offsets.alter_offsets(self.groups, group_id, positions, self.now_ms)
        )
        assert isinstance(altered, AlteredOffsets)
        return altered

    def share_group(self, group_id: str = "g") -> ShareGroup:
        group = self.shard.groups[group_id]
        assert isinstance(group, ShareGroup)
        return group


class ShareClient:
    """A member that says what clients say, and whose new partitions are initialized at once."""

    def __init__(
        self, driver: ShareDriver, member_id: str, *topics: str, group_id: str = "g"
    ) -> None:
        self.driver = driver
        self.epoch = 0
        self.assigned: Assignment = {}
        self._beat = ShareHeartbeat(group_id, member_id, 0)
        self.topics = topics

    def join(self) -> ShareHeartbeatResponse:
        return self.send(replace(self._beat, topic_names=self.topics))

    def beat(self) -> ShareHeartbeatResponse:
        return self.send(replace(self._beat, member_epoch=self.epoch))

    def subscribe(self, *topics: str) -> ShareHeartbeatResponse:
        self.topics = topics
        return self.send(replace(self._beat, member_epoch=self.epoch, topic_names=topics))

    def leave(self) -> ShareHeartbeatResponse:
        return self.driver.share_heartbeat(replace(self._beat, member_epoch=-1))

    def send(self, request: ShareHeartbeat) -> ShareHeartbeatResponse:
        response = self.driver.share_heartbeat(request)
        if response.initialization is not None:
            self.driver.initialize(response.initialization)
            epoch = request.member_epoch or response.member_epoch
            response = self.driver.share_heartbeat(
                replace(request, member_epoch=epoch, topic_names=None)
            )
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = response.assignment
        return response

    @property
    def partitions(self) -> set[tuple[UUID, int]]:
        return {(t, partition) for t, held in self.assigned.items() for partition in held}
