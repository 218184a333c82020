"""Logs follow the metadata: opened, reconfigured, deleted; strays and missing ones at the start."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from millstream.broker.metadata.configs import Change, Operation
from millstream.broker.metadata.reconciler import PARTITIONS_AT_ONCE
from millstream.broker.metadata.topics import MorePartitions, NewTopic
from millstream.broker.server import BrokerServer
from millstream.coordination.cluster import Resource, ResourceType
from tests.broker.metadata.homes import home
from tests.broker.serving import serving


@asynccontextmanager
async def with_topic(directory: Path) -> AsyncIterator[BrokerServer]:
    async with serving(directory) as server:
        await server.topics.create([NewTopic("t", 2)])
        yield server


def test_partitions_open_grow_and_go_with_their_topic(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_topic(tmp_path) as server:
            assert server.partitions.get("t", 1) is not None
            await server.topics.create_partitions([MorePartitions("t", 3)])
            assert server.partitions.get("t", 2) is not None
            await server.topics.delete([server.metadata.image.topics["t"].id])
            assert server.partitions.get("t", 0) is None
            assert not (tmp_path / "t-0").exists()

    asyncio.run(scenario())


def test_topic_made_anew_has_empty_logs_of_the_new_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_topic(tmp_path) as server:
            await server.topics.delete([server.metadata.image.topics["t"].id])
            await server.topics.create([NewTopic("t", 1)])
            log = server.directories.logs["t", 0]
            assert log.topic_id == server.metadata.image.topics["t"].id
            assert server.partitions.get_by_id(log.topic_id, 0) is not None

    asyncio.run(scenario())


def test_settings_reach_the_logs_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with with_topic(tmp_path) as server:
            log = server.directories.logs["t", 0]
            changes = (
                (Resource(ResourceType.TOPIC, "t"), "retention.ms"),
                (Resource(ResourceType.BROKER, ""), "log.segment.bytes"),
            )
            for resource, name in changes:
                change = Change(name, Operation.SET, "2000000")
                await server.configs.alter({resource: [change]}, validate_only=False)
            assert log.config.retention_ms == 2_000_000
            assert log.config.segment_bytes == 2_000_000

    asyncio.run(scenario())


def test_missing_logs_are_made_and_strays_deleted_at_the_start(tmp_path: Path) -> None:
    """A crash may come between a commit and what it does to the logs."""
    with home(tmp_path) as it:
        asyncio.run(it.topics.create([NewTopic("t", 1)]))  # nobody follows here
        it.directories.create("deleted", 0, uuid.uuid4(), it.configs.topic("deleted"))

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            assert server.partitions.get("t", 0) is not None
            assert server.partitions.get("deleted", 0) is None
            assert not (tmp_path / "deleted-0").exists()

    asyncio.run(scenario())


def test_log_of_an_earlier_topic_of_that_name_is_not_served(tmp_path: Path) -> None:
    with home(tmp_path) as it:
        asyncio.run(it.topics.create([NewTopic("t", 1)]))
        it.directories.create("t", 0, uuid.uuid4(), it.configs.topic("t"))

    async def scenario() -> None:
        async with serving(tmp_path) as server:
            log = server.directories.logs["t", 0]
            assert log.topic_id == server.metadata.image.topics["t"].id

    asyncio.run(scenario())


def test_others_get_their_turn_while_many_logs_are_made(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            creation = asyncio.create_task(server.topics.create([NewTopic("t", 500)]))
            turns = 0
            while not creation.done():
                await asyncio.sleep(0)
                turns += 1
            assert turns > 500 // PARTITIONS_AT_ONCE
            assert all(server.partitions.get("t", index) for index in range(500))

    asyncio.run(scenario())


def test_topic_deleted_while_its_logs_are_made_leaves_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with serving(tmp_path) as server:
            creation = asyncio.create_task(server.topics.create([NewTopic("t", 500)]))
            while "t" not in server.metadata.image.topics:
                await asyncio.sleep(0)
            await server.topics.delete([server.metadata.image.topics["t"].id])
            await creation
            assert len(server.partitions) == 0
            assert not [key for key in server.directories.logs if key[0] == "t"]

    asyncio.run(scenario())


def test_logs_not_made_before_a_stop_are_made_at_the_next_start(tmp_path: Path) -> None:
    async def stopped_early() -> None:
        async with serving(tmp_path) as server:
            creation = asyncio.create_task(server.topics.create([NewTopic("t", 500)]))
            while "t" not in server.metadata.image.topics:
                await asyncio.sleep(0)
        with contextlib.suppress(asyncio.CancelledError):
            await creation

    async def started_again() -> None:
        async with serving(tmp_path) as server:
            assert len(server.partitions) == 500

    asyncio.run(stopped_early())
    asyncio.run(started_again())
