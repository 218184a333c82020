"""ShareFetch over the wire."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from millstream.broker.server import BrokerServer
from millstream.coordination.share_state import DeliveryState, SharePartitionKey, StateBatch
from millstream.errors import ErrorCode
from millstream.records.record import decode_batch
from tests.broker.metadata.homes import decided_on
from tests.broker.sharing.calls import (
    ACCEPT,
    REJECT,
    RELEASE,
    RENEW,
    acquired,
    begin,
    configure,
    joined,
    partition_of,
    produce,
    run,
)
from tests.peers.wire import batch


@pytest.mark.parametrize("version", [1, 2])
def test_share_fetch_brings_records_with_their_delivery_count(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            response = await member.fetch(max_wait=5_000, version=version)
            assert acquired(response) == [(0, 9, 1)]
            assert response.acquisition_lock_timeout.total_seconds() == 30
            records = decode_batch(partition_of(response).records)
            assert [it.offset for it in records] == list(range(10))
            response = await member.fetch(acks=[(0, 9, [RELEASE])], version=version)
            assert partition_of(response).acknowledge_error_code == 0
            assert acquired(await member.fetch(version=version)) == [(0, 9, 2)]

    run(tmp_path, scenario)


def test_share_fetch_waits_for_records(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            fetch = asyncio.ensure_future(member.fetch(max_wait=30_000))
            await asyncio.sleep(0.05)
            assert not fetch.done()
            await produce(server, 3)
            assert acquired(await fetch) == [(0, 2, 1)]

    run(tmp_path, scenario, records=0)


def test_share_fetch_waits_for_its_minimum_of_bytes(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            fetch = asyncio.ensure_future(member.fetch(max_wait=30_000, min_bytes=300))
            for _ in range(3):
                await asyncio.sleep(0.02)
                assert not fetch.done()
                await produce(server, 4)
            assert acquired(await fetch) == [(0, 11, 1)]
            assert acquired(await member.fetch(max_wait=30, min_bytes=100_000)) == []

    run(tmp_path, scenario, records=0)


def test_share_fetch_that_waits_gets_what_another_member_releases(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id, "a") as a, joined(server, topic_id, "b") as b:
            await a.fetch(max_wait=5_000)
            fetch = asyncio.ensure_future(b.fetch(max_wait=30_000))
            await asyncio.sleep(0.05)
            await a.acknowledge((2, 4, [RELEASE]))
            assert acquired(await fetch) == [(2, 4, 2)]

    run(tmp_path, scenario)


def test_share_fetch_that_waits_gets_what_a_lost_connection_held(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id, "b") as b:
            async with joined(server, topic_id, "a") as a:
                await a.fetch(max_wait=5_000)
                fetch = asyncio.ensure_future(b.fetch(max_wait=30_000))
                await asyncio.sleep(0.05)
                assert not fetch.done()
            assert acquired(await fetch) == [(0, 9, 2)]

    run(tmp_path, scenario)


def test_share_fetch_that_waits_gets_what_a_lock_gives_free(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id, "a") as a, joined(server, topic_id, "b") as b:
            await a.fetch(max_wait=5_000)
            assert acquired(await b.fetch(max_wait=30_000)) == [(0, 9, 2)]
            answer = await a.acknowledge((0, 9, [ACCEPT]))
            assert partition_of(answer).error_code == ErrorCode.INVALID_RECORD_STATE

    run(tmp_path, scenario, group_share_record_lock_duration_ms=1_000)


def test_share_fetch_goes_on_when_the_window_has_room_again(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        for _ in range(3):
            await produce(server, 100)
        async with joined(server, topic_id) as member:
            assert acquired(await member.fetch(max_wait=5_000)) == [(0, 109, 1)]
            assert acquired(await member.fetch()) == []
            response = await member.fetch(acks=[(0, 49, [ACCEPT])], max_wait=30_000)
            assert acquired(response) == [(110, 209, 1)]

    run(tmp_path, scenario, group_share_partition_max_record_locks=100)


def test_share_fetch_keeps_to_the_record_limit(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            limits = {"max_records": 4, "max_wait": 5_000}
            assert acquired(await member.fetch(share_acquire_mode=1, **limits)) == [(0, 3, 1)]
            assert acquired(await member.fetch(share_acquire_mode=1, **limits)) == [(4, 7, 1)]
            assert acquired(await member.fetch(**limits)) == [(8, 9, 1)]

    run(tmp_path, scenario)


def test_share_fetch_takes_turns_between_partitions(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            seen = set()
            for number in range(3):
                partitions = () if number else (0, 1, 2)
                response = await member.fetch(partitions=partitions, max_records=1, max_wait=5_000)
                seen.add(partition_of(response).partition_index)
            assert seen == {0, 1, 2}

    run(tmp_path, scenario, partitions=3)


def test_share_fetch_no_longer_brings_what_is_forgotten(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            await member.fetch(partitions=(0, 1), max_records=1, max_wait=5_000)
            response = await member.fetch(partitions=(), forgotten=(0,), max_wait=5_000)
            assert acquired(response, 0) == []
            for _ in range(3):
                await produce(server, 1, index=0)
                assert acquired(await member.fetch(partitions=()), 0) == []

    run(tmp_path, scenario, partitions=2)


# Sessions


def test_share_session_epoch_must_follow(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            for epoch in (1, -1):
                response = await member.fetch(epoch=epoch)
                assert response.error_code == ErrorCode.SHARE_SESSION_NOT_FOUND
                assert response.responses == ()
            await member.fetch()
            for epoch in (2, 7):
                response = await member.fetch(epoch=epoch)
                assert response.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
            assert (await member.fetch(epoch=1)).error_code == 0
            assert (await member.fetch(epoch=0)).error_code == 0
            assert (await member.fetch(epoch=2)).error_code == (
                ErrorCode.INVALID_SHARE_SESSION_EPOCH
            )

    run(tmp_path, scenario)


def test_share_session_that_closes_releases_what_it_holds(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id, "a") as a, joined(server, topic_id, "b") as b:
            await a.fetch(max_wait=5_000)
            response = await a.fetch(acks=[(0, 3, [ACCEPT])], epoch=-1)
            assert partition_of(response).acknowledge_error_code == 0
            assert acquired(await b.fetch(max_wait=5_000)) == [(4, 9, 2)]
            assert (await a.fetch(epoch=-1)).error_code == ErrorCode.SHARE_SESSION_NOT_FOUND

    run(tmp_path, scenario)


def test_share_sessions_are_bounded(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id, "a") as a, joined(server, topic_id, "b") as b:
            await a.fetch()
            response = await b.fetch(max_wait=10)
            assert response.error_code == ErrorCode.SHARE_SESSION_LIMIT_REACHED
            await a.fetch(epoch=-1)
            assert (await b.fetch(epoch=0)).error_code == 0

    run(tmp_path, scenario, group_share_max_share_sessions=1)


def test_share_session_outlives_the_member_s_older_connection(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as new:
            async with joined(server, topic_id) as old:
                await old.fetch()
                await new.fetch(max_wait=5_000)
            await asyncio.sleep(0.05)
            assert (await new.acknowledge((0, 9, [ACCEPT]))).error_code == 0

    run(tmp_path, scenario)


# Bad input


@pytest.mark.parametrize("member_id", ["", "x" * 37, None])
def test_share_fetch_is_refused_without_a_usable_member_id(
    tmp_path: Path, member_id: str | None
) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            member.member_id = member_id  # type: ignore[assignment]
            response = await member.fetch()
            assert response.error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, scenario)


def test_share_fetch_that_opens_a_session_may_not_acknowledge(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            response = await member.fetch(acks=[(0, 0, [ACCEPT])])
            assert response.error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, scenario)


def test_share_fetch_names_partitions_that_do_not_exist(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            response = await member.fetch(partitions=(7,), max_wait=30_000)
            assert partition_of(response).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        async with joined(server, uuid4(), "b") as member:
            response = await member.fetch(max_wait=30_000)
            assert partition_of(response).error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(tmp_path, scenario)


def test_share_fetch_is_refused_where_share_groups_are_off(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        from millstream.coordination.cluster_records import FeatureLevelRecord

        image = server.metadata.image
        await server.metadata.change(
            decided_on(image.version, FeatureLevelRecord("share.version", 0))
        )
        async with joined(server, topic_id) as member:
            assert (await member.fetch()).error_code == ErrorCode.UNSUPPORTED_VERSION
            answer = await member.acknowledge((0, 0, [ACCEPT]))
            assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION

    run(tmp_path, scenario)


# Renewing locks


def test_share_fetch_that_renews_fetches_nothing(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        nothing = {"max_bytes": 0, "min_bytes": 0, "max_records": 0, "max_wait": 0}
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=5_000)
            await produce(server, 5)
            response = await member.fetch(acks=[(0, 4, [RENEW])], is_renew_ack=True, **nothing)
            assert acquired(response) == []
            assert partition_of(response).acknowledge_error_code == 0
            wrong = await member.fetch(acks=[(0, 4, [RENEW])], is_renew_ack=True, epoch=2)
            assert wrong.error_code == ErrorCode.INVALID_REQUEST

    run(tmp_path, scenario)


# Where a group begins


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("earliest", [(0, 9, 1)]), ("latest", []), ("by_duration:PT1H", [(0, 9, 1)])],
)
def test_share_group_begins_where_its_settings_say(
    tmp_path: Path, strategy: str, expected: list[tuple[int, int, int]]
) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        await configure(server, "new", {"share.auto.offset.reset": strategy})
        await begin(server, topic_id, group="new", offset=-1)
        key = SharePartitionKey("new", topic_id, 0)
        async with joined(server, topic_id, group="new") as member:
            # What shall come needs a flush first: where the group begins is written down.
            max_wait = 5_000 if expected else 200
            assert acquired(await member.fetch(max_wait=max_wait)) == expected
            await produce(server, 2)
            assert acquired(await member.fetch(max_wait=5_000)) == [(10, 11, 1)]
            state = await server.coordinators.share_state.read(key, 0)
            assert state.start_offset == (10 if not expected else 0)

    run(tmp_path, scenario)


# State


def test_share_state_is_persisted_before_the_answer_leaves(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        key = SharePartitionKey("g", topic_id, 0)
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=5_000)
            await member.acknowledge((0, 1, [ACCEPT]), (4, 6, [ACCEPT, RELEASE, REJECT]))
            state = await server.coordinators.share_state.read(key, 0)
            assert state.start_offset == 2
            assert state.delivery_complete_count == 2
            assert state.batches == (
                StateBatch(4, 4, DeliveryState.ACKNOWLEDGED, 1),
                StateBatch(5, 5, DeliveryState.AVAILABLE, 1),
                StateBatch(6, 6, DeliveryState.ARCHIVED, 1),
            )
            live = server.services.share_partitions.describe(key)
            assert StateBatch(2, 3, DeliveryState.ACQUIRED, 1) in live

    run(tmp_path, scenario)


def test_share_fetch_reads_the_state_anew_when_it_was_set_anew(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        key = SharePartitionKey("g", topic_id, 0)
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=5_000)
            fetch = asyncio.ensure_future(member.fetch(max_wait=30_000))
            await asyncio.sleep(0.05)
            await server.coordinators.share_state.initialize(key, 1, 6)
            server.services.share_partitions.forget(key)
            assert acquired(await fetch) == [(6, 9, 1)]
            answer = await member.acknowledge((6, 9, [ACCEPT]))
            assert partition_of(answer).error_code == 0

    run(tmp_path, scenario)


def test_share_acknowledgement_to_a_state_that_was_set_anew_is_fenced(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        key = SharePartitionKey("g", topic_id, 0)
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=5_000)
            await server.coordinators.share_state.initialize(key, 1, 6)
            answer = partition_of(await member.acknowledge((0, 9, [ACCEPT])))
            assert answer.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
            assert acquired(await member.fetch(max_wait=5_000)) == [(6, 9, 1)]

    run(tmp_path, scenario)


def test_share_fetch_skips_what_retention_took(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        await produce(server, 10)
        partition = server.partitions.find("t", 0)
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=5_000, max_records=1)
            partition.delete_records_before(12)
            assert acquired(await member.fetch(max_wait=5_000)) == [(12, 19, 1)]
            answer = await member.acknowledge((0, 9, [ACCEPT]))
            assert partition_of(answer).error_code == 0

    run(tmp_path, scenario)


def test_share_fetch_ends_with_its_topic(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            fetch = asyncio.ensure_future(member.fetch(max_wait=30_000))
            await asyncio.sleep(0.05)
            await server.topics.delete([topic_id])
            response = partition_of(await fetch)
            assert response.error_code in (
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                ErrorCode.UNKNOWN_TOPIC_ID,
            )

    run(tmp_path, scenario, records=0)


def test_share_fetch_hides_aborted_transactions_where_the_group_asks_for_it(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        partition = server.partitions.find("t", 0)
        await configure(server, "g", {"share.isolation.level": "read_committed"})
        await begin(server, topic_id, group="other")
        for producer_id, committed in ((1, False), (2, True)):
            records = batch(
                [b"x"] * 3,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=True,
            )
            await partition.append(records, acks=-1, verified=True)
            await partition.append_marker(
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
                committed=committed,
                transaction_version=1,
            )
        async with joined(server, topic_id) as member:
            response = await member.fetch(max_wait=5_000)
            assert acquired(response) == [(3, 7, 1)]  # 3 and 7 are the markers: gaps to the member
        async with joined(server, topic_id, group="other") as member:
            assert acquired(await member.fetch(max_wait=5_000)) == [(0, 7, 1)]

    run(tmp_path, scenario, records=0)
