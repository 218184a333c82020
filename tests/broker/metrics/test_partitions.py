"""Counters of partitions that are gone; in-sync sets that change; open transactions."""

from __future__ import annotations

import asyncio
from pathlib import Path

from millstream.broker.counters import Counters
from millstream.broker.metadata.topics import NewTopic
from millstream.broker.metrics.partitions import PartitionMetrics
from millstream.broker.replicas.pending import ACKS_LEADER
from millstream.coordination.cluster import RECOVERING, PartitionImage
from millstream.metrics.exposition import render
from tests.broker.metrics.scraping import Metrics
from tests.broker.serving import serving
from tests.storage.store import make_batch

IN = "kafka_server_brokertopicmetrics_messagesin_total"


async def look(metrics: PartitionMetrics) -> Metrics:
    survey = await metrics.survey(now_ms=0, with_rows=True)
    return Metrics("".join(render(metrics.families(survey))))


def test_counters_never_fall_while_the_topic_exists(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            metrics = PartitionMetrics(server.services, Counters())
            await server.topics.create([NewTopic("t", 2)])
            for index in (0, 1):
                partition = server.partitions.find("t", index)
                partition.append(make_batch(b"x", b"y", b"z"), acks=ACKS_LEADER)
            assert (await look(metrics)).value(IN, topic="t") == 6
            # As when it is reassigned to another broker.
            removed = server.partitions.remove("t", 1)
            assert removed is not None
            now = await look(metrics)
            assert now.value(IN, topic="t") == now.value(IN) == 6
            assert now.value("kafka_server_replicamanager_partitioncount") == 1

    asyncio.run(scenario())


def test_changes_of_in_sync_sets_are_counted_by_the_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            metrics = PartitionMetrics(server.services, Counters())
            me, other = server.id, server.id + 1
            both = _partition(me, (me, other))
            metrics._count_change(both, _partition(me, (me,)), me)
            metrics._count_change(_partition(me, (me,)), both, me)
            metrics._count_change(_partition(other, (me, other)), _partition(other, (other,)), me)
            assert (metrics.isr_shrinks, metrics.isr_expands) == (1, 1)
            unclean = _partition(me, (me,))._replace(leader_recovery_state=RECOVERING)
            metrics._count_change(_partition(other, (other,)), unclean, me)
            # It joined the in-sync set and became the leader; only the result was seen.
            metrics._count_change(_partition(other, (other,)), both, me)
            metrics._count_change(both, both, me)
            assert metrics.unclean_elections == 1

    asyncio.run(scenario())


def _partition(leader: int, isr: tuple[int, ...]) -> PartitionImage:
    return PartitionImage((1, 2), isr, leader, leader_epoch=1, partition_epoch=1)
