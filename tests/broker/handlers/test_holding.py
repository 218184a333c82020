"""Produce requests that are held until a group has caught up."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.backlog import budget
from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from millstream.records.record import Record, encode_batch
from tests.broker.backlog.scenes import (
    RECORD_BYTES,
    answer,
    hurry,
    is_over,
    partition,
    produce,
    receive,
    records,
    remove_policy,
    send,
    set_policy,
    until,
)
from tests.broker.handlers.group_calls import commit, run
from tests.broker.serving import WireClient

BOUND = 10 * RECORD_BYTES
METADATA = 3


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)


async def hold(server: BrokerServer, client: WireClient, **settings: object) -> None:
    """orders-0 holds producers: group g has read none of its 12 records."""
    await commit(client, 0)
    for _ in range(12):
        await produce(client, records())
    await set_policy(server, **({"policy": "hold", "bytes": BOUND, "groups": "g"} | settings))
    await until(lambda: is_over(server))


def waiting(server: BrokerServer) -> int:
    admission: Any = partition(server).admission
    return len(admission._waiters)


def test_held_request_is_appended_once_the_group_has_caught_up(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            send(producer, records())
            await until(lambda: waiting(server))
            assert partition(server).log.log_end_offset == 12
            await commit(client, 12)
            (answered,) = await answer(producer)
            assert (answered.error_code.value, answered.base_offset) == (0, 12)
            assert partition(server).log.log_end_offset == 13
        ((key, seconds),) = server.backlog.counters.held_seconds.items()
        assert key == ("orders", "g")
        assert seconds > 0

    run(tmp_path, scenario)


def test_requests_keep_their_order(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            for number in range(5):
                batch = encode_batch(
                    [Record(0, 1_700_000_000_000, None, b"x" * 100)],
                    producer_id=9,
                    producer_epoch=0,
                    base_sequence=number,
                )
                send(producer, batch)
            await until(lambda: waiting(server) == 1)  # the others are not read
            await commit(client, 12)
            offsets = [(await answer(producer))[0] for _ in range(5)]
        assert [(it.error_code.value, it.base_offset) for it in offsets] == [
            (0, 12 + number) for number in range(5)
        ]

    run(tmp_path, scenario)


def test_producers_continue_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as one, WireClient.connected(server) as two:
            send(one, records(5))
            await until(lambda: waiting(server) == 1)
            send(two, records(5))
            await until(lambda: waiting(server) == 2)
            await commit(client, 8)  # room for about six records
            assert (await answer(one))[0].base_offset == 12
            await until(lambda: is_over(server) or partition(server).log.log_end_offset == 22)
            await commit(client, 17)
            assert (await answer(two))[0].base_offset == 17

    run(tmp_path, scenario)


def test_request_that_was_held_for_long_gets_an_error_that_clients_retry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "HOLD_MS_MAX", 300)
    monkeypatch.setattr(budget, "THROTTLE_MS_MAX", 40)

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            for _ in range(3):
                send(producer, records())
            for _ in range(3):
                response = await receive(producer)
                assert response.throttle_time == timedelta(milliseconds=40)
                (refused,) = response.responses[0].partition_responses
                assert refused.error_code.value == ErrorCode.NOT_ENOUGH_REPLICAS
                assert "group g has 12840 bytes unread of at most 10000" in refused.error_message
            assert partition(server).log.log_end_offset == 12
            await commit(client, 12)
            await until(lambda: not is_over(server))
            assert (await produce(producer, records())).base_offset == 12

    run(tmp_path, scenario)


def test_held_requests_leave_memory_for_other_topics(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as one, WireClient.connected(server) as two:
            send(one, records(size=30_000))
            await until(lambda: waiting(server))
            refused = await produce(two, records(size=30_000))  # a quarter is 50,000 bytes
            assert refused.error_code.value == ErrorCode.NOT_ENOUGH_REPLICAS
            assert waiting(server) == 1
            await commit(client, 12)
            assert (await answer(one))[0].base_offset == 12
            assert server.backlog.held_bytes == 0
            await until(lambda: is_over(server))  # by those 30,000 bytes
        async with WireClient.connected(server) as gone:
            send(gone, records(size=30_000))
            await until(lambda: waiting(server))
            assert server.backlog.held_bytes > 30_000
        await until(lambda: not waiting(server))
        assert server.backlog.held_bytes == 0

    run(tmp_path, scenario, queued_max_request_bytes=200_000)


@pytest.mark.parametrize("how", ["removed", "reject"])
def test_held_request_continues_when_the_policy_changes(tmp_path: Path, how: str) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            send(producer, records())
            await until(lambda: waiting(server))
            if how == "removed":
                await remove_policy(server)
                assert (await answer(producer))[0].base_offset == 12
            else:
                await set_policy(server, policy="reject")
                # Nothing is known of the new policy's state yet.
                code = (await answer(producer))[0].error_code.value
                assert code in (0, ErrorCode.POLICY_VIOLATION)
                await until(lambda: is_over(server))
                refused = await produce(producer, records())
                assert refused.error_code.value == ErrorCode.POLICY_VIOLATION

    run(tmp_path, scenario)


def test_held_request_gets_the_error_of_a_topic_that_was_deleted(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            send(producer, records())
            await until(lambda: waiting(server))
            await server.topics.delete([server.metadata.image.topics["orders"].id])
            code = (await answer(producer))[0].error_code.value
            assert code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(tmp_path, scenario)


def test_request_of_a_client_that_leaves_is_not_appended(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            send(producer, records())
            await until(lambda: waiting(server))
        await until(lambda: not waiting(server))
        await commit(client, 12)
        await until(lambda: not is_over(server))
        assert partition(server).log.log_end_offset == 12

    run(tmp_path, scenario)


def test_request_with_several_partitions_waits_for_all_of_them(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            send(producer, records(), partitions=(0, 1))
            await until(lambda: waiting(server))
            assert partition(server, 1).log.log_end_offset == 0
            await commit(client, 12)
            codes = [it.error_code.value for it in await answer(producer)]
            assert codes == [0, 0]
            assert partition(server, 1).log.log_end_offset == 1

    run(tmp_path, scenario)


def test_producer_without_acks_is_muted(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            send(producer, records(), acks=0)
            await until(lambda: partition(server).log.log_end_offset == 13)
            assert [it for it in server.connections._open if it.is_muted]
            await commit(client, 13)
            send(producer, records(), acks=0)
            await until(lambda: partition(server).log.log_end_offset == 14)

    run(tmp_path, scenario)


def test_reject_is_answered_with_the_reason(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client, policy="reject")
        for _ in range(2):
            refused = await produce(client, records())
            assert refused.error_code.value == ErrorCode.POLICY_VIOLATION
            assert refused.error_message.startswith(
                "orders-0 rejects records (millstream.backlog.policy=reject): group g has 12840 "
            )
        assert server.backlog.counters.rejected == {("orders", "g"): 2}
        assert partition(server).log.log_end_offset == 12

    run(tmp_path, scenario)


def test_other_clients_are_served_while_a_producer_is_held(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await hold(server, client)
        async with WireClient.connected(server) as producer:
            send(producer, records())
            await until(lambda: waiting(server))
            assert await commit(client, 1) == 0
            assert (await produce(client, records(), partitions=(1,))).error_code.value == 0
            found = await server.survey_connections()
            assert (found.waiting_produces, found.waiting_fetches) == (1, 0)

    run(tmp_path, scenario)


def test_bound_is_exact_to_one_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also between two measurements of the monitor."""
    monkeypatch.setattr("millstream.broker.backlog.monitor.INTERVAL_SECONDS", 3600)

    async def scenario(server: BrokerServer, client: WireClient) -> None:
        await commit(client, 0)
        await set_policy(server, policy="reject", bytes=BOUND, groups="g")
        await until(lambda: [*server.backlog.partitions()])
        await asyncio.sleep(0.1)  # the first measurement
        codes = [(await produce(client, records())).error_code.value for _ in range(20)]
        accepted = codes.count(0)
        assert accepted == -(-BOUND // len(records()))
        assert set(codes[accepted:]) == {ErrorCode.POLICY_VIOLATION}

    run(tmp_path, scenario)
