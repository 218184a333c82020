"""Measures the backlogs of all partitions under a policy, periodically, and drops records.

Every `INTERVAL_SECONDS` all partitions that this broker leads are measured. Those that hold or
reject producers are measured more often, and with every commit at this broker, so that producers
continue soon after the group has caught up. It ends when no topic has a policy any more.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from millstream.broker.backlog.positions import GroupPositions, Wanted
from millstream.broker.backlog.state import GroupActivity
from millstream.broker.backlog.watch import Span, Watch
from millstream.config.backlog import BacklogPolicy, has_policy, policy_of
from millstream.config.topic import DROP, NO_BOUND
from millstream.coordination.cluster import INTERNAL_TOPICS, ResourceType
from millstream.errors import ApiError, MillstreamError, NotCached
from millstream.storage.distance import offset_within

if TYPE_CHECKING:
    from millstream.broker.backlog.counters import BacklogCounters
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.coordination.cluster import ClusterImage
    from millstream.storage.directories import LogDirectories

logger = logging.getLogger("millstream.backlog")

INTERVAL_SECONDS = 1.0
STOPPED_INTERVAL_SECONDS = 0.1  # of partitions that hold or reject producers
PAUSE_SECONDS = 0.01  # between two commits that are acted on
PARTITIONS_PER_TURN = 50


class BacklogMonitor:
    """Belongs to the event loop's thread."""

    def __init__(
        self,
        *,
        positions: GroupPositions,
        metadata: MetadataStore,
        configs: ConfigManager,
        partitions: PartitionTable,
        directories: LogDirectories,
        tasks: Tasks,
        clock: Clock,
        counters: BacklogCounters,
    ) -> None:
        self._positions = positions
        self._metadata = metadata
        self._configs = configs
        self._partitions = partitions
        self._directories = directories
        self._tasks = tasks
        self._clock = clock
        self._counters = counters
        self._policies: dict[str, BacklogPolicy] = {}
        self._activities: dict[str, GroupActivity] = {}  # by topic
        self._watches: dict[tuple[str, int], Watch] = {}
        self._is_running = False
        self._soon = asyncio.Event()
        self._next_full = 0.0  # loop time when all partitions are measured again
        partitions.on_remove.append(self._removed)

    @property
    def watches(self) -> Iterable[Watch]:
        return self._watches.values()

    def policies_changed(self, image: ClusterImage) -> None:
        """The settings or the topics have changed."""
        self._policies = dict(self._find_policies(image))
        self._place_watches()
        self._next_full = 0.0
        self._soon.set()
        if self._policies and not self._is_running:
            self._is_running = True
            self._tasks.start(self._run())

    def measure_soon(self) -> None:
        """Measure partitions that hold or reject producers."""
        self._soon.set()

    def _find_policies(self, image: ClusterImage) -> Iterator[tuple[str, BacklogPolicy]]:
        names = {it.name for it in image.configs if it.type is ResourceType.TOPIC}
        for name in sorted(names & image.topics.keys() - INTERNAL_TOPICS):
            if has_policy(image.topic_overrides(name)):
                policy = policy_of(self._configs.topic(name))
                if policy is not None:
                    yield name, policy

    def _removed(self, partition: Partition) -> None:
        watch = self._watches.get((partition.topic, partition.index))
        if watch is not None and watch.partition is partition:
            del self._watches[partition.topic, partition.index]
            watch.stop()

    # Which partitions are watched

    def _place_watches(self) -> None:
        wanted: dict[tuple[str, int], Partition] = {}
        for topic in self._policies:
            for index in range(self._metadata.image.partition_count_of(topic)):
                partition = self._partitions.get(topic, index)  # opens a new one
                if partition is not None and partition.offline_error is None:
                    wanted[topic, index] = partition
        for place, watch in list(self._watches.items()):
            policy = self._policies.get(place[0])
            is_same = wanted.get(place) is watch.partition
            if policy is None or not is_same or policy.kind != watch.policy.kind:
                del self._watches[place]
                watch.stop()
            elif policy != watch.policy:
                watch.change_policy(policy)
        for place, partition in wanted.items():
            if place not in self._watches:
                self._watches[place] = self._watch(partition)
        for topic in self._activities.keys() - self._policies.keys():
            del self._activities[topic]

    def _watch(self, partition: Partition) -> Watch:
        watch = Watch(
            partition,
            self._policies[partition.topic],
            self._activities.setdefault(partition.topic, GroupActivity()),
            self._positions.of,
            self._counters,
            self._clock,
        )
        if watch.policy.kind != DROP:
            partition.admission = watch
        return watch

    # Measuring

    async def _run(self) -> None:
        try:
            await self._measure_periodically()
        finally:
            self._is_running = False

    async def _measure_periodically(self) -> None:
        loop = self._tasks.loop
        while self._policies:
            is_full = loop.time() >= self._next_full
            if is_full:
                self._next_full = loop.time() + INTERVAL_SECONDS
            if is_full or self._stopped():
                try:
                    await self._measure_all(is_full=is_full)
                except Exception:
                    logger.exception("backlogs could not be measured")
            await asyncio.sleep(PAUSE_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOPPED_INTERVAL_SECONDS):
                    await self._soon.wait()
            self._soon.clear()

    def _stopped(self) -> list[Watch]:
        """The partitions that hold or reject producers now."""
        return [it for it in self._watches.values() if it.state.is_over and it.policy.kind != DROP]

    async def _measure_all(self, *, is_full: bool) -> None:
        if is_full:
            self._place_watches()
        await self._positions.refresh(self._wanted(), search=is_full)
        watches = list(self._watches.values()) if is_full else self._stopped()
        moved = False
        for count, watch in enumerate(watches, 1):
            moved |= await self._measure(watch)
            if count % PARTITIONS_PER_TURN == 0:
                await asyncio.sleep(0)
        if moved:
            # As DeleteRecords: what was deleted shall not come back after a crash.
            await self._tasks.run_steps(self._directories.checkpoint_steps())
        if is_full:
            self._report_groups()

    def _wanted(self) -> dict[str, Wanted]:
        led: dict[str, set[int]] = {topic: set() for topic in self._policies}
        for topic, index in self._watches:
            led[topic].add(index)
        return {
            topic: Wanted(policy, frozenset(led[topic])) for topic, policy in self._policies.items()
        }

    async def _measure(self, watch: Watch) -> bool:
        """Returns whether records were dropped."""
        policy = watch.policy
        if not self._applies(policy, watch):  # any more
            return False
        try:
            span = watch.span()
            if span is None:
                watch.update(None, None)
                return False
            try:
                measured = watch.measure(span, may_block=False)
            except NotCached:
                measured = await self._tasks.run_blocking(watch.measure, span, may_block=True)
                if not self._applies(policy, watch):
                    return False
            watch.update(span, measured)
            if policy.kind == DROP and watch.state.is_over:
                return await self._drop(watch, policy, span)
        except MillstreamError as error:
            # A failed disk, or a partition that was deleted meanwhile: producers find out.
            logger.info("the backlog of %r is not known: %s", watch.partition, error)
            watch.update(None, None)
        return False

    def _applies(self, policy: BacklogPolicy, watch: Watch) -> bool:
        """Whether it still does; settings can change whenever a thread is waited for."""
        partition = watch.partition
        is_watched = self._watches.get((partition.topic, partition.index)) is watch
        return is_watched and watch.policy == policy

    # Dropping

    async def _drop(self, watch: Watch, policy: BacklogPolicy, span: Span) -> bool:
        partition = watch.partition
        end = min(span.end, partition.last_stable_offset)
        offset = await self._tasks.run_blocking(self._offset_to_keep, policy, partition, end)
        start = partition.log_start_offset
        if offset <= start or not self._applies(policy, watch):
            return False
        positions = self._positions.of(partition.topic, partition.index)
        try:
            partition.delete_records_before(offset)
        except ApiError as error:
            logger.warning("cannot drop records of %r: %s", partition, error)
            return False
        for position in positions:
            lost = offset - max(position.offset, start)
            if lost > 0:
                self._counters.dropped_records[partition.topic, position.group] += lost
        return True

    def _offset_to_keep(self, policy: BacklogPolicy, partition: Partition, end: int) -> int:
        """The first record to keep, so that the backlog is within its bound. Reads the disk."""
        offset = partition.log_start_offset
        if policy.bytes_max != NO_BOUND:
            offset = max(offset, offset_within(partition.log, end, policy.bytes_max))
        if policy.age_ms_max != NO_BOUND:
            oldest_ms = self._clock.now_ms() - policy.age_ms_max
            found = partition.offset_for_timestamp(max(oldest_ms, 0))
            offset = max(offset, end if found is None else min(found.offset, end))
        return offset

    # Groups that do not count

    def _report_groups(self) -> None:
        now_ms = self._clock.now_ms()
        for topic, activity in self._activities.items():
            policy = self._policies.get(topic)
            if policy is None:
                continue
            activity.keep(self._positions.groups_of(topic))
            gone, back = activity.changes(policy.idle_ms, now_ms)
            for group in gone:
                logger.warning(
                    "group %s no longer counts for the backlog policy of topic %s: it has had no "
                    "members and committed nothing for %d ms (millstream.backlog.group.idle.ms)",
                    group,
                    topic,
                    policy.idle_ms,
                )
            for group in back:
                logger.info("group %s counts again for the backlog policy of %s", group, topic)
