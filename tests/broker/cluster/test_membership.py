"""Membership with a real ZooKeeper: registration, expiry, and brokers with the same id."""

from __future__ import annotations

import asyncio
import json
import uuid

import pytest

from millstream.broker.cluster import membership as membership_module
from millstream.broker.cluster.membership import IDS, incarnation_of, node_content, read_node
from millstream.broker.cluster.session import SessionEvent
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import (
    BrokerEndpoint,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from millstream.errors import MillstreamError
from tests.broker.cluster.clusters import SHORT_SESSION_MS, Cluster, eventually, expire
from tests.peers.cutting_proxy import CuttingProxy


def test_registered_broker_has_a_node_as_kafka_writes_it(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(7) as broker:
            node = await broker.session.get(f"{IDS}/7")
            content = json.loads(node.data)
            assert content["endpoints"] == ["PLAINTEXT://127.0.0.1:9007"]
            assert (content["version"], content["port"]) == (5, 9007)
            assert content["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT"}
            assert node.ephemeral_owner == broker.session.id
            registered = broker.home.image.brokers[7]
            assert registered.incarnation_id == incarnation_of(node.data)
            assert not registered.fenced
            await eventually(lambda: broker.home.is_live)

    asyncio.run(scenario())


def test_broker_that_stops_is_fenced_and_its_node_deleted(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one:
            async with cluster.broker(2) as two:
                await eventually(lambda: not one.is_fenced(2))
            assert not two.home.is_live
            await one.home.refresh()
            assert one.is_fenced(2)
            assert await one.session.children(IDS) == ["1"]

    asyncio.run(scenario())


def test_broker_whose_session_expires_registers_as_a_new_incarnation(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one, cluster.broker(2) as two:
            await eventually(lambda: one.home.is_live and two.home.is_live)
            before = two.home.image.brokers[2]
            fenced: list[bool] = []
            one.home.subscribe(lambda old, new: fenced.append(new.brokers[2].fenced))
            await asyncio.to_thread(expire, cluster.address, two.session)
            await eventually(lambda: one.home.image.brokers[2].epoch > before.epoch)
            await eventually(lambda: not one.is_fenced(2) and two.home.is_live)
            after = one.home.image.brokers[2]
            assert after.incarnation_id != before.incarnation_id
            assert after.endpoints == before.endpoints
            assert True in fenced

    asyncio.run(scenario())


def test_broker_whose_node_is_deleted_registers_again(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one:
            before = one.home.image.brokers[1]
            await one.session.delete(f"{IDS}/1")
            await eventually(lambda: one.home.image.brokers[1].epoch > before.epoch)
            await eventually(lambda: not one.is_fenced(1) and one.home.is_live)

    asyncio.run(scenario())


def test_broker_that_is_unregistered_while_it_starts_registers_again(cluster: Cluster) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one:
            two = await cluster.start_broker(2, is_registered=False)
            unregistered: list[int] = []

            def unregister_at_once(before: ClusterImage, now: ClusterImage) -> None:
                if 2 in now.brokers and now.brokers[2].fenced and not unregistered:
                    unregistered.append(now.brokers[2].epoch)
                    forget = UnregisterBrokerRecord(2, now.brokers[2].epoch)
                    tasks.append(asyncio.ensure_future(two.home.change(lambda image: [forget])))

            tasks: list[asyncio.Future[ClusterImage]] = []
            two.home.subscribe(unregister_at_once)
            await two.home.register(two.registration())
            await asyncio.gather(*tasks)
            await eventually(lambda: 2 in one.home.image.brokers and not one.is_fenced(2))
            assert one.home.image.brokers[2].epoch > unregistered[0]
            assert two.home.is_live
            await two.stop()

    asyncio.run(scenario())


def test_broker_that_is_cut_off_is_not_live_when_another_takes_over(
    cluster: Cluster, proxy: CuttingProxy
) -> None:
    async def scenario() -> None:
        async with cluster.broker(1) as one:
            through = cluster.through(proxy.address)
            async with through.broker(2, timeout_ms=SHORT_SESSION_MS) as two:
                await eventually(lambda: two.home.is_live)
                epoch = two.home.image.brokers[2].epoch
                proxy.silence()
                await eventually(lambda: one.is_fenced(2))
                assert not two.home.is_live
                proxy.heal()
                await eventually(lambda: not one.is_fenced(2) and two.home.is_live)
                assert one.home.image.brokers[2].epoch > epoch

    asyncio.run(scenario())


def test_broker_that_is_cut_off_for_a_short_time_stays_a_member(
    cluster: Cluster, proxy: CuttingProxy
) -> None:
    async def scenario() -> None:
        async with cluster.through(proxy.address).broker(1) as one:
            await eventually(lambda: one.home.is_live)
            before, session_id = one.home.image.brokers[1], one.session.id
            events: list[SessionEvent] = []
            one.session.listeners.append(events.append)
            proxy.cut()
            await eventually(lambda: len(events) >= 2 and one.home.is_live)
            assert events[0] is SessionEvent.DISCONNECTED
            if one.session.id == session_id:
                assert (await one.home.refresh()).brokers[1] == before

    asyncio.run(scenario())


def test_node_of_a_killed_process_is_replaced_at_once(cluster: Cluster) -> None:
    """It holds the same log directory, whose lock only a living process has."""

    async def scenario() -> None:
        directory = uuid.uuid4()
        former = await cluster.start_broker(1, directory=directory)
        incarnation = former.home.image.brokers[1].incarnation_id
        await former.vanish()
        async with cluster.session() as session:
            assert await session.children(IDS) == ["1"]
            async with cluster.broker(1, directory=directory) as broker:
                assert broker.home.image.brokers[1].incarnation_id != incarnation
                assert broker.is_controller

    asyncio.run(scenario())


def test_second_broker_with_the_same_id_is_refused(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(membership_module, "GRACE_SECONDS", 0.0)

    async def scenario() -> None:
        async with cluster.broker(1) as one:
            before = one.home.image.brokers[1]
            with pytest.raises(
                MillstreamError, match=r"another broker with id 1 .*:9001"
            ) as caught:
                await cluster.start_broker(1, timeout_ms=SHORT_SESSION_MS)
            assert "--node-id" in str(caught.value)
            assert (await one.home.refresh()).brokers[1] == before
            await eventually(lambda: one.home.is_live)

    asyncio.run(scenario())


def test_node_of_a_replaced_disk_is_waited_for(cluster: Cluster) -> None:
    """The former process is dead, but only the end of its session shows it."""

    async def scenario() -> None:
        former = await cluster.start_broker(1, timeout_ms=SHORT_SESSION_MS)
        await former.vanish()
        async with cluster.broker(1) as broker:
            assert not broker.is_fenced(1)

    asyncio.run(scenario())


def test_content_of_foreign_nodes_is_no_obstacle() -> None:
    assert read_node(b"") == {}
    assert read_node(b"[1]") == {}
    assert incarnation_of(b'{"version": 5, "host": "kafka"}') is None
    endpoints = (BrokerEndpoint("PLAINTEXT", "h", 1), BrokerEndpoint("INSIDE", "i", 2))
    broker = RegisterBrokerRecord(3, uuid.uuid4(), 0, endpoints, rack="r")
    content = read_node(node_content(broker, 5))
    assert content["rack"] == "r"
    assert content["endpoints"] == ["PLAINTEXT://h:1", "INSIDE://i:2"]
    assert incarnation_of(node_content(broker, 5)) == broker.incarnation_id
