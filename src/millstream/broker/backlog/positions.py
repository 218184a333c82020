"""Where groups are, for the partitions that this broker leads.

A group's offsets are with its coordinator, which may be another broker:

    here        read from the coordinator's shards at any time
    elsewhere   asked of that broker: for its groups every few seconds (ListGroups), for their
                offsets continuously (OffsetFetch). What it answered last counts for `STALE_MS`.
                Then its groups do not count until it answers again: producers must not wait for a
                group of which nothing is known
    share group the start offset of its share partition, from the share coordinator

Requests to other brokers run in the background: nothing here waits for them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from millstream.broker.backlog.state import Position
from millstream.coordination.cluster import OFFSETS_TOPIC
from millstream.coordination.groups.group import GroupKind
from millstream.coordination.groups.offsets import is_other_topic
from millstream.coordination.share_state import (
    NO_LEADER_EPOCH,
    NO_START_OFFSET,
    SharePartitionKey,
)
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.coordinators.registry import Coordinators
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.peers.peers import Peers
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.config.backlog import BacklogPolicy
    from millstream.coordination.groups.shard import GroupShard

logger = logging.getLogger("millstream.backlog")

LIST_MS = 5_000  # between two lists of a broker's groups
ASK_MS = 200  # between two requests for offsets
STALE_MS = 10_000
TIMEOUT_SECONDS = 5.0
OFFSET_FETCH_VERSION = 9  # several groups; topics by name
WITHOUT_MEMBERS = ("Empty", "Dead")

Place: TypeAlias = tuple[str, int]  # a topic and a partition


class Wanted(NamedTuple):
    """A topic with a policy, and its partitions that this broker leads."""

    policy: BacklogPolicy
    partitions: frozenset[int]


class _RemoteGroup(NamedTuple):
    has_members: bool
    is_share: bool


class _RemoteBroker:
    """What another broker answered."""

    def __init__(self) -> None:
        self.groups: dict[str, _RemoteGroup] = {}
        self.offsets: dict[Place, dict[str, int]] = {}
        self.listed_ms: int | None = None
        self.asked_ms: int | None = None
        self.answered_ms: int | None = None
        self.first_asked_ms: int | None = None
        self.is_asking = False
        self.is_reported = False  # that it does not answer

    def is_known(self, now_ms: int) -> bool:
        return self.answered_ms is not None and now_ms - self.answered_ms <= STALE_MS


class GroupPositions:
    """See the module. Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        broker_id: int,
        metadata: MetadataStore,
        coordinators: Coordinators,
        peers: Peers,
        tasks: Tasks,
        clock: Clock,
    ) -> None:
        self._broker_id = broker_id
        self._metadata = metadata
        self._coordinators = coordinators
        self._peers = peers
        self._tasks = tasks
        self._clock = clock
        self._wanted: Mapping[str, Wanted] = {}
        self._local: dict[str, list[str]] = {}  # by topic: ids of groups of this broker
        self._remote: dict[int, _RemoteBroker] = {}
        self._share_groups: dict[str, list[tuple[str, bool]]] = {}  # by topic: id, has members
        self._share_offsets: dict[Place, dict[str, int]] = {}
        self._share_is_asking = False

    def of(self, topic: str, index: int) -> list[Position]:
        """The groups that count for the topic by their names, and have a position."""
        return [
            *self._here(topic, index),
            *self._elsewhere(topic, index),
            *self._shared(topic, index),
        ]

    def groups_of(self, topic: str) -> set[str]:
        """The groups that exist and count for the topic by their names."""
        found = {it for it in self._local.get(topic, ()) if self._find_here(it) is not None}
        found.update(group for group, _ in self._share_groups.get(topic, ()))
        policy = self._wanted[topic].policy
        for broker in self._remote.values():
            found.update(filter(policy.counts, broker.groups))
        return found

    def _here(self, topic: str, index: int) -> Iterator[Position]:
        image = self._metadata.image.topics.get(topic)
        for group_id in self._local.get(topic, ()):
            shard = self._find_here(group_id)
            if shard is None:
                continue
            group = shard.groups[group_id]
            committed = shard.offsets.get(group_id, topic, index)
            if committed is None or group.kind is GroupKind.SHARE:
                continue
            if image is None or is_other_topic(committed.topic_id, image.id):
                continue
            yield Position(
                group_id, committed.offset, not group.is_empty, committed.commit_timestamp_ms
            )

    def _find_here(self, group_id: str) -> GroupShard | None:
        """The shard of a group that exists, and that this broker coordinates."""
        if OFFSETS_TOPIC not in self._metadata.image.topics:
            return None
        shard = self._coordinators.groups.shard_of(group_id)
        return shard if shard is not None and group_id in shard.groups else None

    def _elsewhere(self, topic: str, index: int) -> Iterator[Position]:
        now_ms = self._clock.monotonic_ms()
        for broker in self._remote.values():
            if not broker.is_known(now_ms):
                continue
            for group_id, offset in broker.offsets.get((topic, index), {}).items():
                group = broker.groups.get(group_id)
                if group is not None:
                    yield Position(group_id, offset, group.has_members)

    def _shared(self, topic: str, index: int) -> Iterator[Position]:
        offsets = self._share_offsets.get((topic, index), {})
        for group_id, has_members in self._share_groups.get(topic, ()):
            if group_id in offsets:
                yield Position(group_id, offsets[group_id], has_members)

    # Keeping up

    async def refresh(self, wanted: Mapping[str, Wanted], *, search: bool) -> None:
        """Look for groups again if `search`, and begin to ask other brokers for offsets."""
        self._wanted = wanted
        brokers = self._coordinating_brokers()
        if search:
            await self._search(is_coordinator=self._broker_id in brokers)
        for broker_id in self._remote.keys() - brokers:
            del self._remote[broker_id]
        for broker_id in brokers - {self._broker_id}:
            self._begin_to_ask(broker_id)
        if any(self._share_groups.values()) and not self._share_is_asking:
            self._share_is_asking = True
            self._tasks.start(self._ask_share_offsets())

    def _coordinating_brokers(self) -> set[int]:
        """The brokers that lead a partition of `__consumer_offsets`, and are live."""
        image = self._metadata.image
        topic = image.topics.get(OFFSETS_TOPIC)
        leaders = set() if topic is None else {it.leader for it in topic.partitions}
        return {it for it in leaders if it in image.brokers}

    async def _search(self, *, is_coordinator: bool) -> None:
        """Find the groups of each topic. The results are replaced when all are found."""
        # Groups that are named are found as soon as they exist.
        local = {topic: list(wanted.policy.names) for topic, wanted in self._wanted.items()}
        shared: dict[str, dict[str, bool]] = {topic: {} for topic in self._wanted}
        for shard in self._coordinators.groups.shards() if is_coordinator else ():
            for group_id, group in list(shard.groups.items()):
                for topic, wanted in self._wanted.items():
                    if not wanted.policy.counts(group_id):
                        continue
                    if group.kind is GroupKind.SHARE:
                        shared[topic][group_id] = not group.is_empty
                    elif group_id not in wanted.policy.names:
                        local[topic].append(group_id)
            await asyncio.sleep(0)  # there may be many groups
        for broker in self._remote.values():
            for group_id, it in broker.groups.items():
                for topic, wanted in self._wanted.items():
                    if it.is_share and wanted.policy.counts(group_id):
                        shared[topic][group_id] = it.has_members
        self._local = local
        self._share_groups = {topic: list(groups.items()) for topic, groups in shared.items()}

    # Other brokers

    def _begin_to_ask(self, broker_id: int) -> None:
        broker = self._remote.setdefault(broker_id, _RemoteBroker())
        now_ms = self._clock.monotonic_ms()
        if broker.is_asking or (broker.asked_ms is not None and now_ms - broker.asked_ms < ASK_MS):
            return
        broker.is_asking, broker.asked_ms = True, now_ms
        if broker.first_asked_ms is None:
            broker.first_asked_ms = now_ms
        self._tasks.start(self._ask(broker_id, broker))

    async def _ask(self, broker_id: int, broker: _RemoteBroker) -> None:
        try:
            now_ms = self._clock.monotonic_ms()
            if broker.listed_ms is None or now_ms - broker.listed_ms >= LIST_MS:
                broker.groups = await self._list_groups(broker_id)
                broker.listed_ms = now_ms
            broker.offsets = await self._fetch_offsets(broker_id, broker)
            broker.answered_ms = self._clock.monotonic_ms()
            if broker.is_reported:
                logger.info("groups on broker %d count again for backlog policies", broker_id)
            broker.is_reported = False
        except ApiError as error:
            self._report(broker_id, broker, error)
        finally:
            broker.is_asking = False

    def _report(self, broker_id: int, broker: _RemoteBroker, error: ApiError) -> None:
        """Write one line once what is known is too old to count."""
        now_ms = self._clock.monotonic_ms()
        since = broker.answered_ms if broker.answered_ms is not None else broker.first_asked_ms
        if not broker.is_reported and since is not None and now_ms - since > STALE_MS:
            broker.is_reported = True
            logger.warning(
                "the offsets of groups on broker %d are not known: they do not count for backlog "
                "policies until it answers (%s)",
                broker_id,
                error,
            )

    async def _list_groups(self, broker_id: int) -> dict[str, _RemoteGroup]:
        answer = await self._peers.call(
            broker_id,
            "list_groups",
            {"states_filter": [], "types_filter": []},
            timeout_seconds=TIMEOUT_SECONDS,
        )
        _check(answer.error_code, "ListGroups")
        return {
            it.group_id: _RemoteGroup(
                it.group_state not in WITHOUT_MEMBERS,
                it.group_type.lower() == GroupKind.SHARE.value,
            )
            for it in answer.groups
            if any(wanted.policy.counts(it.group_id) for wanted in self._wanted.values())
        }

    async def _fetch_offsets(
        self, broker_id: int, broker: _RemoteBroker
    ) -> dict[Place, dict[str, int]]:
        groups = []
        for group_id, group in broker.groups.items():
            topics = [
                {"name": topic, "partition_indexes": sorted(wanted.partitions)}
                for topic, wanted in self._wanted.items()
                if wanted.partitions and not group.is_share and wanted.policy.counts(group_id)
            ]
            if topics:
                groups.append(
                    {"group_id": group_id, "member_id": None, "member_epoch": -1, "topics": topics}
                )
        if not groups:
            return {}
        answer = await self._peers.call(
            broker_id,
            "offset_fetch",
            {"groups": groups, "require_stable": False},
            version=OFFSET_FETCH_VERSION,
            timeout_seconds=TIMEOUT_SECONDS,
        )
        found: dict[Place, dict[str, int]] = {}
        for group in answer.groups:
            _check(group.error_code, "OffsetFetch")
            for topic in group.topics:
                for it in topic.partitions:
                    if it.committed_offset >= 0 and it.error_code is ErrorCode.NONE:
                        place = (topic.name, int(it.partition_index))
                        found.setdefault(place, {})[group.group_id] = int(it.committed_offset)
        return found

    async def _ask_share_offsets(self) -> None:
        found: dict[Place, dict[str, int]] = {}
        try:
            for topic, wanted in list(self._wanted.items()):
                image = self._metadata.image.topics.get(topic)
                groups = list(self._share_groups.get(topic, ()))
                if image is None:
                    continue
                for index in wanted.partitions:
                    for group_id, _ in groups:
                        key = SharePartitionKey(group_id, image.id, index)
                        offset = await self._share_offset(key)
                        if offset is not None:
                            found.setdefault((topic, index), {})[group_id] = offset
            self._share_offsets = found
        finally:
            self._share_is_asking = False

    async def _share_offset(self, key: SharePartitionKey) -> int | None:
        try:
            persister = self._coordinators.share_persister
            summary = await persister.read_summary(key, NO_LEADER_EPOCH)
        except ApiError:  # not known: it does not count
            return None
        return None if summary.start_offset == NO_START_OFFSET else summary.start_offset


def _check(code: ErrorCode, api: str) -> None:
    if code is not ErrorCode.NONE:
        raise ApiError(code, f"{api} was answered with {code.name}")
