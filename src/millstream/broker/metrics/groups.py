"""Metrics of consumer groups, under the names of kafka_exporter, and of share groups.

The coordinator of a group serves its committed offsets and its lag. Ends of partitions that other
brokers lead are asked for with each scrape; a broker that does not answer in time leaves out the
lag there, and nothing else. The lag counts up to the high watermark.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from millstream.broker.coordinators.groups import GroupCoordinator
from millstream.broker.peers.partitions import LATEST, RemotePartitions
from millstream.broker.services import Services
from millstream.errors import ApiError
from millstream.metrics.exposition import Family, Sample, counter, gauge, labels
from millstream.partitions import TopicPartition

if TYPE_CHECKING:
    from millstream.broker.sharing.partitions import SharePartitions

logger = logging.getLogger("millstream.metrics")

COMMITS_AT_ONCE = 200
COMMITS_MAX = 50_000  # that are shown one by one
ANSWER_SECONDS = 2.0
NO_LEADER = -1


class Commit(NamedTuple):
    group: str
    topic: str
    partition: int
    offset: int


class GroupSurvey:
    """The groups that this broker coordinates."""

    def __init__(self) -> None:
        self.commits: list[Commit] = []
        self.ends: dict[TopicPartition, int] = {}
        self.members: dict[str, int] = {}
        self.offset_sums: dict[tuple[str, str], int] = {}  # by group and topic
        self.lag_sums: dict[tuple[str, str], int] = {}

    async def add_up(self) -> None:
        """Sums per topic, of all commits; other work is done meanwhile."""
        offsets, lags, ends = self.offset_sums, self.lag_sums, self.ends
        async for it in _with_pauses(self.commits):
            key = it.group, it.topic
            offsets[key] = offsets.get(key, 0) + it.offset
            end = ends.get((it.topic, it.partition))
            if end is not None:
                lags[key] = lags.get(key, 0) + max(end - it.offset, 0)


async def _with_pauses(commits: list[Commit]) -> AsyncIterator[Commit]:
    for position, it in enumerate(commits, 1):
        yield it
        if position % COMMITS_AT_ONCE == 0:
            await asyncio.sleep(0)


async def survey(services: Services) -> GroupSurvey:
    """Read all groups, and ask other brokers for the ends of logs; other work is done meanwhile."""
    found = GroupSurvey()
    groups = services.coordinators.active_groups
    if groups is None:
        return found
    await _read_commits(groups, found)
    elsewhere: dict[int, set[TopicPartition]] = {}
    image, me = services.metadata.image, services.broker_id
    async for it in _with_pauses(found.commits):
        place = (it.topic, it.partition)
        if place in found.ends:
            continue
        known = image.partition(*place)
        if known is not None and known.leader == me:
            partition = services.partitions.get(*place)
            if partition is not None:
                found.ends[place] = partition.high_watermark
        elif known is not None and known.leader != NO_LEADER:
            elsewhere.setdefault(known.leader, set()).add(place)
    if elsewhere:
        await _ask(RemotePartitions(services.peers), elsewhere, found)
    await found.add_up()
    return found


async def _read_commits(groups: GroupCoordinator, found: GroupSurvey) -> None:
    for shard in groups.shards():
        for group_id in list(shard.groups):
            group = shard.groups.get(group_id)
            if group is not None:
                found.members[group_id] = group.member_count
        for group_id in shard.offsets.group_ids():
            found.members.setdefault(group_id, 0)
            before = len(found.commits)
            for key, value in shard.offsets.of_group(group_id):
                found.commits.append(Commit(group_id, key.topic, key.partition, value.offset))
            if len(found.commits) // COMMITS_AT_ONCE > before // COMMITS_AT_ONCE:
                await asyncio.sleep(0)
        await asyncio.sleep(0)


async def _ask(
    remote: RemotePartitions, elsewhere: dict[int, set[TopicPartition]], found: GroupSurvey
) -> None:
    async def ask(leader: int, places: set[TopicPartition]) -> None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                ends = await remote.offsets(leader, dict.fromkeys(places, LATEST))
        except (ApiError, TimeoutError) as error:
            logger.info("the lag on broker %d is not known: %s", leader, error or "no answer")
        else:
            found.ends |= ends

    await asyncio.gather(*(ask(leader, places) for leader, places in elsewhere.items()))


def families(found: GroupSurvey) -> Iterator[Family]:
    """Beyond `COMMITS_MAX`, commits are only in the sums per topic."""
    commits, ends = found.commits, found.ends
    shown = commits if len(commits) <= COMMITS_MAX else []
    yield gauge(
        "kafka_consumergroup_current_offset",
        "Committed offset of the group.",
        ((_place(it), it.offset) for it in shown),
    )
    yield gauge(
        "kafka_consumergroup_lag",
        "Records that the group has not committed yet.",
        (
            (_place(it), max(ends[it.topic, it.partition] - it.offset, 0))
            for it in shown
            if (it.topic, it.partition) in ends
        ),
    )
    for name, help, sums in (
        (
            "current_offset_sum",
            "Sum of the group's committed offsets in a topic.",
            found.offset_sums,
        ),
        ("lag_sum", "Records of a topic that the group has not committed yet.", found.lag_sums),
    ):
        yield gauge(
            f"kafka_consumergroup_{name}",
            help,
            ((labels(consumergroup=g, topic=t), value) for (g, t), value in sums.items()),
        )
    yield gauge(
        "kafka_consumergroup_members",
        "Members of the group.",
        ((labels(consumergroup=group), count) for group, count in found.members.items()),
    )


def _place(it: Commit) -> str:
    return labels(consumergroup=it.group, topic=it.topic, partition=it.partition)


def share_families(services: Services) -> Iterator[Family]:
    """Share groups whose partitions this broker leads."""
    sharing = services.active_share_partitions
    yield from _share_requests(services, sharing)
    yield counter(
        "kafka_server_sharegroupmetrics_recordacknowledgements_total",
        "Acknowledged records by type.",
        (
            (labels(ackType=name), 0 if sharing is None else sharing.acknowledged[number])
            for number, name in ((1, "Accept"), (2, "Release"), (3, "Reject"), (4, "Renew"))
        ),
    )
    if sharing is None:
        return
    leaders = [
        (labels(group=it.key.group_id, topic=it.partition.topic, partition=it.key.partition), it)
        for it in sharing.leaders()
        if it.window is not None
    ]
    for name, help, field in (
        ("in_flight", "Records that members hold.", "held_count"),
        ("delayed", "Records that wait until they may be delivered again.", "delayed_count"),
        ("dying", "Records whose dead letters are being written.", "dying_count"),
    ):
        yield gauge(
            f"millstream_share_{name}_records",
            help,
            ((text, getattr(it.window, field)) for text, it in leaders),
        )
    yield gauge(
        "millstream_share_start_offset",
        "All records before it are done.",
        ((text, it.window.start_offset) for text, it in leaders if it.window is not None),
    )
    yield gauge(
        "millstream_share_lag",
        "Records from the start offset on, in flight or not delivered yet.",
        (
            (text, max(it.partition.high_watermark - it.window.start_offset, 0))
            for text, it in leaders
            if it.window is not None
        ),
    )
    yield counter(
        "millstream_dead_letters_total",
        "Dead letters that were written.",
        (
            (labels(group=group), count)
            for group, count in list(sharing.dead_letters.written.items())
        ),
    )


def _share_requests(services: Services, sharing: SharePartitions | None) -> Iterator[Family]:
    topics = services.metadata.image.topics_by_id
    for name, help, counts in (
        ("sharefetch", "Reads of partitions by members of share groups", "fetch_requests"),
        ("shareacknowledgement", "Acknowledgements in partitions", "acknowledgement_requests"),
    ):
        found: Counter[UUID] = Counter() if sharing is None else getattr(sharing, counts)
        samples: list[Sample] = [("", sum(found.values()))]
        samples += [
            (labels(topic=topics[topic_id].name), count)
            for topic_id, count in found.items()
            if topic_id in topics
        ]
        yield counter(
            f"kafka_server_brokertopicmetrics_total{name}requests_total",
            f"{help}; without a topic: of all topics.",
            samples,
        )
