"""ShareAcknowledge over the wire."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from millstream.broker.server import BrokerServer
from millstream.errors import ErrorCode
from tests.broker.sharing.calls import ACCEPT, RELEASE, RENEW, acquired, joined, partition_of, run


@pytest.mark.parametrize("version", [1, 2])
def test_share_acknowledge_accepts_and_releases(tmp_path: Path, version: int) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            answer = await member.acknowledge(
                (0, 4, [ACCEPT]),
                (5, 9, [RELEASE, ACCEPT, ACCEPT, ACCEPT, RELEASE]),
                version=version,
            )
            assert answer.error_code == 0
            assert partition_of(answer).error_code == 0
            if version == 2:
                assert answer.acquisition_lock_timeout.total_seconds() == 30
            assert acquired(await member.fetch(max_wait=60_000)) == [(5, 5, 2), (9, 9, 2)]

    run(tmp_path, scenario)


def test_share_acknowledge_follows_the_session_s_epochs(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            for epoch, code in (
                (0, ErrorCode.INVALID_SHARE_SESSION_EPOCH),
                (1, ErrorCode.SHARE_SESSION_NOT_FOUND),
                (-1, ErrorCode.SHARE_SESSION_NOT_FOUND),
            ):
                assert (await member.acknowledge((0, 0, [ACCEPT]), epoch=epoch)).error_code == code
            await member.fetch(max_wait=60_000)
            answer = await member.acknowledge((0, 0, [ACCEPT]), epoch=7)
            assert answer.error_code == ErrorCode.INVALID_SHARE_SESSION_EPOCH
            assert (await member.acknowledge((0, 0, [ACCEPT]))).error_code == 0
            assert (await member.acknowledge((1, 1, [ACCEPT]))).error_code == 0

    run(tmp_path, scenario)


def test_share_acknowledge_that_closes_the_session_releases_the_rest(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id, "a") as a, joined(server, topic_id, "b") as b:
            await a.fetch(max_wait=60_000)
            answer = await a.acknowledge((0, 2, [ACCEPT]), epoch=-1)
            assert partition_of(answer).error_code == 0
            assert acquired(await b.fetch(max_wait=60_000)) == [(3, 9, 2)]

    run(tmp_path, scenario)


def test_share_acknowledge_names_what_is_wrong_with_each_partition(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            wrong = partition_of(await member.acknowledge((0, 0, [ACCEPT]), partition=1))
            assert wrong.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            wrong = partition_of(await member.acknowledge((0, 0, [RENEW])))
            assert wrong.error_code == ErrorCode.INVALID_REQUEST
            wrong = partition_of(await member.acknowledge((0, 99, [ACCEPT])))
            assert wrong.error_code == ErrorCode.INVALID_REQUEST
            assert "were not delivered" in wrong.error_message
            member.topic_id = uuid4()
            wrong = partition_of(await member.acknowledge((0, 0, [ACCEPT])))
            assert wrong.error_code == ErrorCode.UNKNOWN_TOPIC_ID

    run(tmp_path, scenario)


def test_share_acknowledge_renews_locks(tmp_path: Path) -> None:
    async def scenario(server: BrokerServer, topic_id: UUID) -> None:
        async with joined(server, topic_id) as member:
            await member.fetch(max_wait=60_000)
            answer = await member.acknowledge((0, 4, [RENEW]), is_renew_ack=True)
            assert partition_of(answer).error_code == 0
            answer = await member.acknowledge((0, 9, [ACCEPT]))
            assert partition_of(answer).error_code == 0

    run(tmp_path, scenario)
