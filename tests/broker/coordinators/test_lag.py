"""Lag against real logs, and the lines that are logged."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from millstream.broker.coordinators.lag import Threat, _lag
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import OFFSETS_TOPIC
from millstream.coordination.group_records import OffsetCommitKey
from millstream.records.record import Record, encode_batch
from millstream.storage.retention import apply_all
from millstream.storage.steps import run_in_thread
from tests.broker.handlers.group_calls import commit, run
from tests.broker.peers.cluster import Cluster
from tests.broker.peers.cluster import run as run_cluster
from tests.broker.serving import WireClient, serving

HOUR_MS = 3_600_000


async def produce(server: BrokerServer, *timestamps_ms: int) -> Partition:
    """One record per timestamp into orders-0, each in a segment of its own."""
    partition = server.partitions.get("orders", 0)
    assert partition is not None
    for timestamp_ms in timestamps_ms:
        await partition.append(
            encode_batch([Record(0, timestamp_ms, None, b"x" * 100)]), acks=ACKS_ALL
        )
        partition.log.roll(timestamp_ms)
    return partition


def test_lag_of_a_group_is_told(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        now_ms = server.clock.now_ms()
        await produce(server, now_ms, now_ms, now_ms)
        await commit(client, 1)
        await commit(client, 5, group_id="other", partition=1)
        (lag,) = server.coordinators.lag.of_group("g")
        assert (lag.topic, lag.partition, lag.committed, lag.lag, lag.lost) == (
            "orders",
            0,
            1,
            2,
            0,
        )
        assert server.coordinators.lag.of_group("nobody") == []

    run(tmp_path, scenario)


def test_warning_comes_before_retention_and_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        now_ms = server.clock.now_ms()
        await produce(server, now_ms - 9 * HOUR_MS, now_ms - HOUR_MS)
        await commit(client, 0)
        await commit(client, 1, group_id="far enough")
        check = server.coordinators.lag.find_threats
        assert [(lag.group_id, threat) for lag, threat in await check(now_ms)] == [
            ("g", Threat.ENDANGERED)
        ]
        assert "group g, orders-0: retention will soon delete" in caplog.text
        assert await check(now_ms) == []
        await commit(client, 0)  # the same place: still the same complaint
        assert await check(now_ms) == []
        later = await check(now_ms + 8 * HOUR_MS)
        assert [lag.group_id for lag, _ in later] == ["far enough"]

    with caplog.at_level(logging.WARNING, "millstream.lag"):
        run(tmp_path, scenario, **{"log.retention.hours": 10})


def test_ratio_of_one_warns_only_of_losses(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        now_ms = server.clock.now_ms()
        await produce(server, now_ms - 9 * HOUR_MS, now_ms)
        await commit(client, 0)
        assert await server.coordinators.lag.find_threats(now_ms) == []

    run(
        tmp_path,
        scenario,
        **{"log.retention.hours": 10, "millstream.lag.retention.warning.ratio": 1},
    )


def test_loss_is_kept_over_a_restart_until_the_next_commit(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def lose(server: BrokerServer, client: WireClient) -> None:
        now_ms = server.clock.now_ms()
        partition = await produce(server, now_ms - 20 * HOUR_MS, now_ms - 15 * HOUR_MS, now_ms)
        await commit(client, 0)
        candidates = [partition.retention_candidate()]
        await run_in_thread(apply_all(candidates, now_ms), asyncio.to_thread)
        logged = await server.coordinators.lag.find_threats(now_ms)
        assert [threat for _, threat in logged] == [Threat.LOST]

    async def look_again() -> None:
        async with (
            serving(tmp_path, **{"log.retention.hours": 10}) as server,
            WireClient.connected(server) as client,
        ):
            await server.coordinators.groups.all_loaded()
            (lag,) = server.coordinators.lag.of_group("g")
            assert (lag.lost, lag.log_start) == (2, 2)
            assert await commit(client, 3) == 0
            (lag,) = server.coordinators.lag.of_group("g")
            assert (lag.lag, lag.lost) == (0, 0)
            assert await server.coordinators.lag.find_threats(server.clock.now_ms()) == []

    with caplog.at_level(logging.WARNING, "millstream.lag"):
        run(tmp_path, lose, **{"log.retention.hours": 10})
    assert "2 records were deleted before the group had read them" in caplog.text
    asyncio.run(look_again())


def test_partitions_of_another_broker_are_compared_too(tmp_path: Path) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.create(OFFSETS_TOPIC, 1, cleanup_policy="compact")
        await cluster.create("orders", 2)
        first, second = cluster.brokers[1], cluster.brokers[2]
        now_ms = first.clock.now_ms()
        partition = await produce(second, now_ms - 9 * HOUR_MS, now_ms - HOUR_MS)
        await commit(cluster.clients[1], 0)
        await commit(cluster.clients[1], 1, group_id="far enough")
        check = first.coordinators.lag.find_threats
        threats = [(lag.group_id, lag.lag, threat) for lag, threat in await check(now_ms)]
        assert threats == [("g", 2, Threat.ENDANGERED)]
        assert await check(now_ms) == []
        partition.delete_records_before(1)
        threats = [(lag.group_id, lag.lost, threat) for lag, threat in await check(now_ms)]
        assert threats == [("g", 1, Threat.LOST)]
        await cluster.stop(2)
        assert await check(now_ms) == []  # not known
        await cluster.start(2)
        assert await check(now_ms) == []  # known, and not new

    run_cluster(tmp_path, scenario, log_retention_hours=10)


@pytest.mark.parametrize(("known_start", "lost"), [(0, 0), (None, 0), (4, 3)])
def test_archived_records_are_not_lost(known_start: int | None, lost: int) -> None:
    """Nor is it known what is, while the archive is not loaded."""
    partition: Any = SimpleNamespace(
        known_start_offset=known_start, log_start_offset=7, high_watermark=9
    )
    value: Any = SimpleNamespace(offset=1)
    found = _lag(OffsetCommitKey("g", "orders", 0), value, partition)
    assert (found.lost, found.log_end) == (lost, 9)
