"""Where keys belong, and what the coordinators hear of the rest of the broker."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from millstream.broker.coordinators.registry import TOPIC_OF
from millstream.broker.server import BrokerServer
from millstream.protocol.apis import CoordinatorKind
from tests.broker.coordinators.test_lag import produce
from tests.broker.handlers.group_calls import commit, run
from tests.broker.serving import WireClient, serving

PARTITIONS_SETTING_OF = {
    CoordinatorKind.GROUP: "offsets.topic.num.partitions",
    CoordinatorKind.TRANSACTION: "transaction.state.log.num.partitions",
    CoordinatorKind.SHARE: "share.coordinator.state.topic.num.partitions",
}


@pytest.mark.parametrize("kind", list(CoordinatorKind))
def test_first_question_makes_the_topic_of_its_kind(tmp_path: Path, kind: CoordinatorKind) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            assert TOPIC_OF[kind] not in server.metadata.image.topics
            broker = await server.coordinators.find(kind, "key")
            assert broker.id == server.id
            assert TOPIC_OF[kind] in server.metadata.image.topics

    asyncio.run(scenario())


def test_many_first_questions_make_one_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            find = server.coordinators.find
            found = await asyncio.gather(
                *(find(CoordinatorKind.GROUP, f"g{number}") for number in range(10))
            )
            assert {broker.id for broker in found} == {server.id}

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", list(CoordinatorKind))
def test_everyone_who_asks_first_waits_until_all_logs_are_open(
    tmp_path: Path, kind: CoordinatorKind
) -> None:
    """The topic is known before that, but a partition without a log coordinates nothing."""
    count = 100

    async def scenario() -> None:
        async with serving(tmp_path, **{PARTITIONS_SETTING_OF[kind]: count}) as server:

            async def open_logs_when_answered() -> int:
                await server.coordinators.find(kind, "key")
                logs = (server.partitions.get(TOPIC_OF[kind], it) for it in range(count))
                return sum(it is not None for it in logs)

            answers = await asyncio.gather(*(open_logs_when_answered() for _ in range(3)))
            assert answers == [count] * 3

    asyncio.run(scenario())


def test_lag_is_checked_in_the_interval_of_retention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(server: BrokerServer, client: WireClient) -> None:
        now_ms = server.clock.now_ms()
        partition = await produce(server, now_ms, now_ms)
        partition.delete_records_before(1)
        await commit(client, 0)
        while "1 records were deleted before the group had read them" not in caplog.text:
            await asyncio.sleep(0.001)

    with caplog.at_level(logging.WARNING, "millstream.lag"):
        run(tmp_path, scenario, **{"log.retention.check.interval.ms": 5})
