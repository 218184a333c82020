"""Administrative requests while a real ZooKeeper is frozen, or dead: each item gets an answer.

A change that was sent and not answered may have been carried out. So each item is answered with
REQUEST_TIMED_OUT, which clients repeat. Afterwards, the same requests succeed, or say that it was
done.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.server import BrokerServer
from millstream.config.broker import BrokerConfig
from millstream.errors import ErrorCode
from millstream.testing.zookeeper import ZooKeeperProcess
from tests.broker.handlers.each_item import Request, each_request
from tests.broker.serving import WireClient
from tests.peers.cache import PeerMissing
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.zookeeper import running_zookeeper

pytestmark = pytest.mark.slow

SESSION_MS = 20_000
AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
TIMED_OUT = [ErrorCode.REQUEST_TIMED_OUT] * 2
# What a repeated request is answered with, if the first one was carried out after all.
DONE = {
    ErrorCode.NONE,
    ErrorCode.TOPIC_ALREADY_EXISTS,
    ErrorCode.INVALID_PARTITIONS,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.ELECTION_NOT_NEEDED,
}


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeperProcess]:
    """One that the test may stop."""
    try:
        with running_zookeeper() as server:
            yield server
    except PeerMissing as missing:
        pytest.skip(str(missing))


@contextlib.asynccontextmanager
async def running(zookeeper: ZooKeeperProcess, directory: Path) -> AsyncIterator[BrokerServer]:
    settings = {
        "zookeeper.connect": f"{zookeeper.address}/cluster",
        "zookeeper.session.timeout.ms": SESSION_MS,
        "node.id": 1,
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "log.dirs": str(directory),
        "authorizer.class.name": AUTHORIZER,
        "super.users": "User:ANONYMOUS",
    }
    server = BrokerServer(BrokerConfig.from_values(settings))
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


async def send(server: BrokerServer, request: Request) -> list[int]:
    """On a connection of its own: a broker answers a connection's requests in order."""
    async with WireClient.connected(server) as client, asyncio.timeout(PATIENCE_SECONDS):
        return request.codes(await client.call(request.key, request.version, **request.fields))


async def send_all(server: BrokerServer, suffix: str) -> dict[str, list[int]]:
    topics = server.metadata.image.topics
    ids = (topics[f"gone-{suffix}-1"].id, topics[f"gone-{suffix}-2"].id)
    requests = each_request(suffix, ids)
    answers = await asyncio.gather(*(send(server, it) for it in requests.values()))
    return dict(zip(requests, answers, strict=True))


async def until_done(server: BrokerServer, suffix: str, ids: tuple[object, object]) -> None:
    """Repeat the requests, as clients do, until each item is done."""
    for name, request in each_request(suffix, ids).items():  # type: ignore[arg-type]
        deadline = asyncio.get_running_loop().time() + PATIENCE_SECONDS
        while True:
            codes = await send(server, request)
            assert len(codes) == 2, name
            if DONE.issuperset(codes):
                break
            assert set(codes) <= DONE | set(TIMED_OUT), (name, codes)
            assert asyncio.get_running_loop().time() < deadline, (name, codes)


def exercise(
    zookeeper: ZooKeeperProcess,
    directory: Path,
    suffix: str,
    lose: Callable[[], None],
    find: Callable[[], None],
) -> None:
    async def scenario() -> None:
        async with running(zookeeper, directory) as server:
            gone = [f"gone-{suffix}-{it}" for it in (1, 2)]
            await server.actions.create_topics([NewTopic(it, 1) for it in ("a", "b", *gone)])
            await server.metadata.refresh()
            topics = server.metadata.image.topics
            ids = (topics[gone[0]].id, topics[gone[1]].id)
            await asyncio.to_thread(lose)
            try:
                answers = await send_all(server, suffix)
            finally:
                await asyncio.to_thread(find)
            assert answers == dict.fromkeys(answers, TIMED_OUT)
            await until_done(server, suffix, ids)
            image = await server.metadata.refresh()
            assert {"a", "b", f"x{suffix}", f"y{suffix}"} == set(image.topics)
            assert [len(image.topics[it].partitions) for it in "ab"] == [2, 2]
            assert len(image.acls) <= 2
        async with running(zookeeper, directory) as server:
            assert set(server.metadata.image.topics) == set(image.topics)
            assert set(server.metadata.image.scram) == set(image.scram)

    asyncio.run(scenario())


def test_each_item_is_answered_while_zookeeper_is_frozen(
    own_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    exercise(own_zookeeper, tmp_path, "-f", own_zookeeper.pause, own_zookeeper.resume)


def test_each_item_is_answered_while_zookeeper_is_dead(
    own_zookeeper: ZooKeeperProcess, tmp_path: Path
) -> None:
    exercise(own_zookeeper, tmp_path, "-k", own_zookeeper.kill, own_zookeeper.start)
