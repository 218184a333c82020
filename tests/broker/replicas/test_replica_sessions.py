"""Sessions of followers: which partitions a fetch looks at, and how long one stays in sync."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ErrorCode
from tests.broker.replication.cluster import Cluster, run, until
from tests.broker.serving import WireClient

FETCH = 1
LAG_MS = 2_000


class Follower:
    """Broker 2, whose own fetchers are stopped, fetches from broker 1 in a session."""

    def __init__(self, cluster: Cluster, client: WireClient) -> None:
        self._cluster = cluster
        self._client = client
        self.session = (0, 0)

    async def fetch(self, **offsets: int) -> dict[str, Any]:
        """The answers, by topic. All partitions are at an end, so that none is answered early."""
        topics = {name: self._cluster.image.topics[name].id for name in self._cluster.image.topics}
        answer = await self._client.call(
            FETCH,
            17,
            replica_state={"replica_id": 2, "replica_epoch": self._cluster.image.brokers[2].epoch},
            max_wait=50,
            min_bytes=1,
            max_bytes=100_000,
            isolation_level=0,
            session_id=self.session[0],
            session_epoch=self.session[1],
            topics=[
                {"topic_id": topics[name], "partitions": [_position(offset)]}
                for name, offset in offsets.items()
            ],
            forgotten_topics_data=[],
            rack_id="",
        )
        if answer.error_code:
            return {"error": answer.error_code}
        self.session = (answer.session_id, self.session[1] + 1)
        names = {topic_id: name for name, topic_id in topics.items()}
        return {names[it.topic_id]: it.partitions[0] for it in answer.responses}


def _position(offset: int) -> dict[str, int]:
    return {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": 0,
        "partition_max_bytes": 10_000,
    }


def test_incremental_answers_have_only_what_changed(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            for name in ("s", "t"):
                await cluster.create_topic(name, 1, 2)
                await cluster.produce(1, name, b"a")
            await cluster.brokers[2].replication.stop()
            async with WireClient.connected(cluster.brokers[1]) as client:
                follower = Follower(cluster, client)
                assert set(await follower.fetch(s=1, t=1)) == {"s", "t"}
                assert follower.session[0] != 0
                assert await follower.fetch() == {}
                await cluster.produce(1, "t", b"b", acks=1)
                answers = await follower.fetch()
                assert set(answers) == {"t"}
                assert b"b" in answers["t"].records
                answers = await follower.fetch(t=2)
                assert cluster.replica(1, "t").high_watermark == 2
                assert {name: it.high_watermark for name, it in answers.items()} == {"t": 2}
                cluster.replica(1, "s").delete_records_before(1)
                answers = await follower.fetch()
                assert {name: it.log_start_offset for name, it in answers.items()} == {"s": 1}
                assert await follower.fetch() == {}

    run(main)


def test_waiting_fetch_is_answered_when_a_quiet_log_grows(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.brokers[2].replication.stop()
            async with WireClient.connected(cluster.brokers[1]) as client:
                follower = Follower(cluster, client)
                await follower.fetch(t=0)
                assert await follower.fetch() == {}
                waiting = asyncio.create_task(follower.fetch())
                await asyncio.sleep(0)
                await cluster.produce(1, "t", b"a", acks=1)
                while "t" not in (answers := await waiting):
                    waiting = asyncio.create_task(follower.fetch())
                assert b"a" in answers["t"].records

    run(main)


def test_follower_that_stays_at_the_end_is_in_sync_after_the_next_append(tmp_path: Path) -> None:
    """Its fetches do not name the partition, for longer than replica.lag.time.max.ms."""

    async def main() -> None:
        async with Cluster.of(tmp_path, 2, replica_lag_time_max_ms=LAG_MS) as cluster:
            await cluster.create_topic("t", 1, 2)
            await cluster.brokers[2].replication.stop()
            async with WireClient.connected(cluster.brokers[1]) as client:
                follower = Follower(cluster, client)
                await follower.fetch(t=0)
                in_sync = cluster.replica(1, "t").in_sync
                assert in_sync is not None
                progress = in_sync._machine._followers[2]
                clock = cluster.brokers[1].services.clock
                while clock.monotonic_ms() - progress.caught_up_ms < LAG_MS:
                    assert await follower.fetch() == {}
                before_ms = clock.monotonic_ms()
                await follower.fetch()
                await cluster.produce(1, "t", b"a", acks=1)
                assert progress.caught_up_ms >= before_ms
                # And one that has stopped to fetch is not in sync.
                await until(lambda: cluster.partition_image("t").isr == (1,))

    run(main)


def test_session_ends_with_a_wrong_epoch_and_with_the_incarnation(tmp_path: Path) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            await cluster.create_topic("t", 1, 2)
            sessions = cluster.brokers[1].services.fetch_sessions
            await until(lambda: len(sessions) == 1)  # of broker 2 itself
            await cluster.stop(2)
            await cluster.start(2)
            await until(lambda: 2 in cluster.partition_image("t").isr)
            await until(lambda: len(sessions) == 1)  # the former one is gone
            async with WireClient.connected(cluster.brokers[1]) as client:
                follower = Follower(cluster, client)
                await follower.fetch(t=0)
                session_id, epoch = follower.session
                follower.session = (session_id, epoch + 1)
                refused = {"error": ErrorCode.INVALID_FETCH_SESSION_EPOCH}
                assert await follower.fetch() == refused
                follower.session = (session_id + 1, epoch)
                assert await follower.fetch() == {"error": ErrorCode.FETCH_SESSION_ID_NOT_FOUND}

    run(main)


@pytest.mark.parametrize("is_deleted", [True, False])
def test_partition_that_is_gone_is_an_error_in_the_next_answer(
    tmp_path: Path, is_deleted: bool
) -> None:
    async def main() -> None:
        async with Cluster.of(tmp_path, 2) as cluster:
            for name in ("s", "t"):
                await cluster.create_topic(name, 1, 2)
            former = cluster.image.topics["t"]
            await cluster.brokers[2].replication.stop()
            async with WireClient.connected(cluster.brokers[1]) as client:
                follower = Follower(cluster, client)
                await follower.fetch(s=0, t=0)
                assert await follower.fetch() == {}
                if is_deleted:
                    await cluster.brokers[1].actions.delete_topics([former.id])
                    await cluster.create_topic("t", 1, 2)  # another topic of that name
                    await cluster.produce(1, "t", b"x", acks=1)
                else:
                    await cluster.brokers[1].actions.shut_down()
                answer = await _raw(follower, client, cluster)
                errors = {it.topic_id: it.partitions[0].error_code for it in answer.responses}
                gone = {ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
                expected = gone if is_deleted else {ErrorCode.NOT_LEADER_OR_FOLLOWER}
                assert errors[former.id] in expected
                assert cluster.image.topics["t"].id not in errors or not is_deleted

    run(main)


async def _raw(follower: Follower, client: WireClient, cluster: Cluster) -> Any:
    return await client.call(
        FETCH,
        17,
        replica_state={"replica_id": 2, "replica_epoch": cluster.image.brokers[2].epoch},
        max_wait=50,
        min_bytes=1,
        max_bytes=100_000,
        isolation_level=0,
        session_id=follower.session[0],
        session_epoch=follower.session[1],
        topics=[],
        forgotten_topics_data=[],
        rack_id="",
    )
