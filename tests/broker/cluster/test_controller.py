"""The controller with a real ZooKeeper: elections of it, and what it decides."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import Sequence

import pytest

from millstream.broker.cluster.controller import CONTROLLER, CONTROLLER_EPOCH, Election
from millstream.broker.cluster.home import Fenced
from millstream.broker.cluster.session import Check
from millstream.coordination.cluster import PartitionImage
from millstream.coordination.cluster_records import ConfigRecord, PartitionRecord, TopicRecord
from tests.broker.cluster.clusters import Broker, Cluster, eventually, expire
from tests.peers.cutting_proxy import CuttingProxy

TOPIC_ID = uuid.uuid4()


async def create_topic(
    broker: Broker, *replicas: tuple[int, ...], isr: tuple[int, ...] | None = None
) -> None:
    partitions = [
        PartitionRecord(index, TOPIC_ID, each, isr or each, each[0])
        for index, each in enumerate(replicas)
    ]
    await broker.home.change(lambda image: [TopicRecord("t", TOPIC_ID), *partitions])


def partition(broker: Broker, index: int = 0) -> PartitionImage:
    return broker.home.image.topics["t"].partitions[index]


async def controller_among(brokers: Sequence[Broker]) -> Broker:
    await eventually(lambda: sum(broker.is_controller for broker in brokers) == 1)
    return next(broker for broker in brokers if broker.is_controller)


def test_one_broker_is_elected_and_its_node_is_as_kafka_writes_it(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one, cluster.broker(2) as two:
            assert await controller_among([one, two]) is one
            content = json.loads((await two.session.get(CONTROLLER)).data)
            assert (content["brokerid"], content["version"]) == (1, 2)
            assert (await two.session.get(CONTROLLER_EPOCH)).data == b"1"
            assert one.part.controller.epoch == 1
            await eventually(lambda: one.home.controller_id == two.home.controller_id == 1)
            await eventually(lambda: one.home.controller_epoch == two.home.controller_epoch == 1)

    asyncio.run(scenario())


def test_another_broker_is_elected_when_the_controller_stops(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one, cluster.broker(2) as two:
            await one.part.leave()
            await eventually(lambda: two.is_controller and two.is_fenced(1))
            assert two.part.controller.epoch == 2
            assert two.home.controller_epoch == 2
            assert not one.is_controller

    asyncio.run(scenario())


def test_another_broker_is_elected_when_the_session_of_the_controller_expires(
    cluster: Cluster,
) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one, cluster.broker(2) as two:
            await asyncio.to_thread(expire, cluster.address, one.session)
            await eventually(lambda: max(one.part.controller.epoch, two.part.controller.epoch) == 2)
            elected = await controller_among([one, two])
            await eventually(lambda: not elected.is_fenced(1) and not elected.is_fenced(2))
            assert (await two.session.get(CONTROLLER_EPOCH)).data == b"2"

    asyncio.run(scenario())


def test_deleted_node_leads_to_a_new_election(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one:
            await one.session.delete(CONTROLLER)
            await eventually(lambda: one.is_controller and one.part.controller.epoch == 2)

    asyncio.run(scenario())


def test_controller_that_is_cut_off_cannot_commit_afterwards(
    cluster: Cluster, proxy: CuttingProxy
) -> None:
    async def scenario() -> None:
        async with cluster.through(proxy.address).broker(1) as one, cluster.broker(2) as two:
            election = one.part.controller._election
            assert isinstance(election, Election)
            proxy.silence()
            await asyncio.to_thread(expire, cluster.address, one.session)
            await eventually(lambda: two.is_controller and two.is_fenced(1))
            proxy.heal()
            await one.session.wait_until_connected()
            former = Check(CONTROLLER_EPOCH, election.epoch_version)
            record = ConfigRecord(32, "g", "zombie", "1")
            with pytest.raises(Fenced):
                await one.home.change_if(lambda image: [record], former)
            await eventually(lambda: not two.is_fenced(1))
            assert not (await two.home.refresh()).configs

    asyncio.run(scenario())


def test_election_whose_answer_is_lost_counts(cluster: Cluster, proxy: CuttingProxy) -> None:
    async def scenario() -> None:
        async with cluster.through(proxy.address).broker(1) as one:
            proxy.lose_answer_to(b'"brokerid"')
            with contextlib.suppress(Exception):
                await one.session.delete(CONTROLLER)
            await eventually(lambda: not one.session.is_connected)
            proxy.heal()
            await eventually(lambda: one.is_controller and one.part.controller.epoch == 2)
            assert (await one.session.get(CONTROLLER_EPOCH)).data == b"2"

    asyncio.run(scenario())


def test_partitions_of_a_lost_broker_get_other_leaders(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one:
            two = await cluster.start_broker(2)
            await create_topic(one, (2, 1), (1, 2), (2,))
            await two.die()
            await eventually(lambda: one.is_fenced(2))
            assert [partition(one, it).leader for it in range(3)] == [1, 1, -1]
            assert [partition(one, it).isr for it in range(3)] == [(1,), (1,), (2,)]
            assert partition(one, 0).leader_epoch == 1
            async with cluster.broker(2):
                await eventually(lambda: partition(one, 2).leader == 2)

    asyncio.run(scenario())


def test_controller_takes_over_what_the_former_one_left_undone(cluster: Cluster) -> None:
    """Controller and leader are lost together."""

    async def scenario() -> None:
        one = await cluster.start_broker(1)
        async with cluster.broker(2) as two, cluster.broker(3) as three:
            await create_topic(two, (1, 2, 3))
            await one.die()
            elected = await controller_among([two, three])
            await eventually(lambda: partition(elected).leader == 2)
            assert partition(elected).isr == (2, 3)

    asyncio.run(scenario())


@pytest.mark.parametrize("source", ["topic", "cluster", "static", "none"])
def test_unclean_election_happens_only_where_it_is_allowed(cluster: Cluster, source: str) -> None:
    async def scenario() -> None:
        name = "unclean.leader.election.enable"
        static = {name: "true"} if source == "static" else {}
        async with cluster.broker(1, settings=static) as one:
            two = await cluster.start_broker(2)
            await create_topic(one, (2, 1), isr=(2,))
            if source in ("topic", "cluster"):
                where = (2, "t") if source == "topic" else (4, "")
                await one.home.change(lambda image: [ConfigRecord(*where, name, "true")])
            await two.die()
            await eventually(lambda: one.is_fenced(2) and partition(one).leader != 2)
            expected = (-1, (2,), 0) if source == "none" else (1, (1,), 1)
            it = partition(one)
            assert (it.leader, it.isr, it.leader_recovery_state) == expected

    asyncio.run(scenario())


def test_preferred_replicas_lead_again_after_the_interval(cluster: Cluster) -> None:
    async def scenario() -> None:
        settings: dict[str, object] = {"leader.imbalance.check.interval.seconds": 1}
        async with (
            cluster.broker(1, settings=settings) as one,
            cluster.broker(2, settings=settings),
        ):
            await create_topic(one, (2, 1))
            record = PartitionRecord(0, TOPIC_ID, (2, 1), (1, 2), 1, leader_epoch=3)
            await one.home.change(lambda image: [record])
            await eventually(lambda: partition(one).leader == 2)

    asyncio.run(scenario())
