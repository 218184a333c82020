"""Calls over a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.rpc import (
    CallFailed,
    CallTimeout,
    Client,
    NoResponders,
    RemoteError,
    Request,
    Server,
)
from millstream.testing.pytest_plugin import SharedBroker

PATIENCE = 60.0


def make_topic(millstream: SharedBroker) -> str:
    name = millstream.unique_topic("calls")
    with Cluster(millstream.bootstrap_servers) as cluster:
        create_topics(cluster, [NewTopic(name, 2)])
    return name


def answer(request: Request) -> bytes:
    if request.value == b"bad":
        raise ValueError("no price for it")
    return (request.value or b"").upper() + b"".join(value or b"" for _, value in request.headers)


@pytest.fixture(scope="module")
def topic(millstream: SharedBroker) -> Iterator[str]:
    name = make_topic(millstream)
    with Server(millstream.bootstrap_servers, name, answer):
        yield name


def test_calls_return_the_reply_of_the_function(millstream: SharedBroker, topic: str) -> None:
    with Client(millstream.bootstrap_servers, topic, timeout=PATIENCE) as client:
        assert client.call(b"apples") == b"APPLES"
        assert client.call("pears", key="k", headers=[("trace", b"!")]) == b"PEARS!"


def test_errors_of_the_function_reach_the_caller(millstream: SharedBroker, topic: str) -> None:
    with Client(millstream.bootstrap_servers, topic, timeout=PATIENCE) as client:
        with pytest.raises(RemoteError, match="ValueError: no price for it") as failed:
            client.call(b"bad")
        assert (failed.value.type, failed.value.message) == ("ValueError", "no price for it")


def test_clients_of_one_partition_and_threads_get_their_own_replies(
    millstream: SharedBroker, topic: str
) -> None:
    address = millstream.bootstrap_servers
    with (
        Client(address, topic, reply_partition=3, timeout=PATIENCE) as one,
        Client(address, topic, reply_partition=3, timeout=PATIENCE) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        values = [b"v%d" % number for number in range(100)]
        found = list(pool.map(lambda it: (one if it[-1] % 2 else other).call(it), values))
        assert found == [it.upper() for it in values]
        deadline = time.monotonic() + PATIENCE
        while one.foreign_replies + other.foreign_replies < 100:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert one.late_replies == other.late_replies == 0


def test_calls_can_be_awaited(millstream: SharedBroker, topic: str) -> None:
    async def call_many() -> list[bytes | None]:
        calls = [client.call_async(b"v%d" % number) for number in range(50)]
        return await asyncio.gather(*calls)

    async def fail() -> None:
        await client.call_async(b"bad")

    with Client(millstream.bootstrap_servers, topic, timeout=PATIENCE) as client:
        assert asyncio.run(call_many()) == [b"V%d" % number for number in range(50)]
        with pytest.raises(RemoteError, match="no price"):
            asyncio.run(fail())


def test_nobody_answers_is_known_at_once(millstream: SharedBroker) -> None:
    topic = make_topic(millstream)
    address = millstream.bootstrap_servers
    with Client(address, topic, group=f"{topic}-servers", timeout=PATIENCE) as client:
        with pytest.raises(NoResponders, match="has no members"):
            client.call(b"x")
        with pytest.raises(NoResponders):
            asyncio.run(client.call_async(b"x"))
        with Server(address, topic, answer):
            deadline = time.monotonic() + PATIENCE
            while True:
                try:
                    assert client.call(b"x") == b"X"
                    break
                except NoResponders:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)


def test_late_replies_are_counted(millstream: SharedBroker) -> None:
    topic = make_topic(millstream)
    may_answer = threading.Event()

    def wait(request: Request) -> bytes:
        may_answer.wait(PATIENCE)
        return b"late"

    async def give_up() -> None:
        call = asyncio.create_task(client.call_async(b"x", timeout=PATIENCE))
        while not client._waiting:
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    with (
        Server(millstream.bootstrap_servers, topic, wait) as server,
        Client(millstream.bootstrap_servers, topic) as client,
    ):
        asyncio.run(give_up())  # its deadline is far, so that the server answers it
        may_answer.set()
        deadline = time.monotonic() + PATIENCE
        while client.late_replies == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert (server.handled, client.late_replies, client.foreign_replies) == (1, 1, 0)


def test_a_call_without_a_reply_times_out(millstream: SharedBroker) -> None:
    topic = make_topic(millstream)
    with Client(millstream.bootstrap_servers, topic) as client:
        with pytest.raises(CallTimeout, match=f"no reply from {topic} within 0.2 s"):
            client.call(b"x", timeout=0.2, attempts=2)
        with pytest.raises(CallTimeout):
            asyncio.run(client.call_async(b"x", timeout=0.2, attempts=2))


def test_a_closed_client_fails_its_calls(millstream: SharedBroker) -> None:
    topic = make_topic(millstream)
    client = Client(millstream.bootstrap_servers, topic)
    failures: list[Exception] = []

    def call() -> None:
        try:
            client.call(b"x", timeout=PATIENCE)
        except CallFailed as error:
            failures.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    deadline = time.monotonic() + PATIENCE
    while not client._waiting and time.monotonic() < deadline:
        time.sleep(0.01)
    client.close()
    thread.join(PATIENCE)
    assert [str(it) for it in failures] == ["the client was closed"]
    with pytest.raises(CallFailed, match="closed"):
        client.call(b"x")


def test_a_partition_that_does_not_exist_is_refused(millstream: SharedBroker, topic: str) -> None:
    with pytest.raises(CallFailed, match="has 8 partitions, and no 99"):
        Client(millstream.bootstrap_servers, topic, reply_partition=99)


def test_a_call_is_settled_by_one_thread_only(millstream: SharedBroker, topic: str) -> None:
    """As if producer and consumer learned of it at the same time."""
    with Client(millstream.bootstrap_servers, topic) as client, ThreadPoolExecutor(4) as pool:
        for _ in range(500):
            correlation_id, future = client._register(None)
            threads_ready = threading.Barrier(4)

            def fail(number: int, ready: threading.Barrier = threads_ready) -> None:
                ready.wait()
                client._fail_all(CallFailed(f"by thread {number}"))

            list(pool.map(fail, range(4)))
            with pytest.raises(CallFailed, match="by thread"):
                future.result(PATIENCE)
            client._forget(correlation_id, future)
