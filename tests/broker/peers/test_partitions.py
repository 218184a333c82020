"""Partitions of another broker: records for them, and their ends."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.broker.metadata.configs import Change, Operation
from millstream.broker.peers.partitions import RemotePartitions
from millstream.broker.sharing.dead_letters import MESSAGES, DeadLetter
from millstream.coordination.cluster import Resource, ResourceType
from millstream.coordination.sharing.runs import REJECTED
from millstream.errors import ApiError, ErrorCode
from tests.broker.peers.cluster import Cluster, run
from tests.broker.sharing.test_dead_letters import letters_in
from tests.peers.wire import batch


def test_records_are_appended_on_another_broker(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create("t", 2)
        remote = RemotePartitions(cluster.brokers[1].peers)
        assert await remote.end_offset(2, "t", 0) == 0
        await remote.append(2, "t", 0, batch([b"a", b"b"]))
        assert await remote.end_offset(2, "t", 0) == 2
        with pytest.raises(ApiError) as refused:
            await remote.append(2, "t", 1, batch([b"a"]))
        assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        with pytest.raises(ApiError) as refused:
            await remote.append(1, "t", 0, batch([b"a"]))
        assert refused.value.code is ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(tmp_path, scenario)


def test_dead_letters_go_to_the_partition_of_another_broker(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        settings = {"errors_deadletterqueue_group_enable": "true"}
        await cluster.create("orders", 1)
        await cluster.create("dlq", 2, **settings)
        first = cluster.brokers[1]
        change = Change("errors.deadletterqueue.topic.name", Operation.SET, "dlq")
        resource = Resource(ResourceType.GROUP, "g")
        await first.configs.alter({resource: [change]}, validate_only=False)
        orders = first.partitions.find("orders", 0)
        await orders.append(batch([b"a", b"b"]), acks=-1)
        letters = [DeadLetter(offset, 5, REJECTED, MESSAGES[REJECTED]) for offset in (0, 1)]
        write = first.services.share_partitions.dead_letters.write
        await write("g", orders, letters)
        assert len(letters_in(cluster.brokers[2], "dlq")) == 2
        await cluster.stop(2)
        with pytest.raises(ApiError) as refused:
            await write("g", orders, letters)
        assert refused.value.code is ErrorCode.LEADER_NOT_AVAILABLE  # kept, and repeated later

    run(tmp_path, scenario, errors_deadletterqueue_topic_name_prefix="")
