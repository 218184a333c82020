"""Servers of calls: repeated and expired requests, share groups, and Java on the other side."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from millstream.client.cluster import Cluster
from millstream.client.topics import NewTopic, create_topics
from millstream.rpc import Client, Request, Server
from millstream.rpc.headers import new_correlation_id, parse_reply, request_headers
from millstream.rpc.server import Reply, ReplyMemory
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.cache import PeerMissing
from tests.peers.java_runtime import java_program

PATIENCE = 60.0


def make_topics(millstream: SharedBroker) -> tuple[str, str]:
    """The topics of requests and of replies."""
    name = millstream.unique_topic("calls")
    with Cluster(millstream.bootstrap_servers) as cluster:
        create_topics(cluster, [NewTopic(name, 1), NewTopic(f"{name}-replies", 8)])
    return name, f"{name}-replies"


def far_ms() -> int:
    return round((time.time() + PATIENCE) * 1000)


def send(millstream: SharedBroker, topic: str, *requests: tuple[bytes, list[object]]) -> None:
    producer = Producer({"bootstrap.servers": millstream.bootstrap_servers})
    for value, headers in requests:
        producer.produce(topic, value, headers=headers)
    assert producer.flush(PATIENCE) == 0


def wait_until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def read_replies(millstream: SharedBroker, topic: str, count: int) -> list[tuple[bytes, bytes]]:
    """Correlation ids and values of partition 0."""
    settings = {"bootstrap.servers": millstream.bootstrap_servers, "group.id": "unused"}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    found = []
    deadline = time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline
        message = consumer.poll(0.2)
        if message is not None and message.error() is None:
            correlation_id, _ = parse_reply(message.headers() or [])
            found.append((correlation_id or b"", message.value() or b""))
    consumer.close()
    return found


def test_a_repeated_request_runs_once_and_is_answered_again(millstream: SharedBroker) -> None:
    topic, replies = make_topics(millstream)
    seen: list[bytes | None] = []

    def handle(request: Request) -> bytes:
        seen.append(request.value)
        return b"%d" % len(seen)

    one, other = new_correlation_id(), new_correlation_id()
    repeated = request_headers(one, replies, 0, far_ms())
    send(
        millstream,
        topic,
        (b"a", list(repeated)),
        (b"a", list(repeated)),
        (b"b", list(request_headers(other, replies, 0, far_ms()))),
    )
    with Server(millstream.bootstrap_servers, topic, handle) as server:
        assert read_replies(millstream, replies, 3) == [(one, b"1"), (one, b"1"), (other, b"2")]
        assert (server.handled, server.repeated) == (2, 1)
    assert seen == [b"a", b"b"]


def test_an_expired_request_is_skipped_and_one_without_headers_is_run(
    millstream: SharedBroker,
) -> None:
    topic, replies = make_topics(millstream)
    seen: list[bytes | None] = []

    def handle(request: Request) -> None:
        seen.append(request.value)

    expired = request_headers(new_correlation_id(), replies, 0, 1000)
    nowhere = request_headers(new_correlation_id(), "no/such/topic", 99, far_ms())
    send(millstream, topic, (b"old", list(expired)), (b"lost", list(nowhere)), (b"plain", []))
    with Server(millstream.bootstrap_servers, topic, handle) as server:
        wait_until(lambda: server.handled == 2)
        assert server.expired == 1
    assert seen == [b"lost", b"plain"]


def test_no_request_and_no_reply_stops_a_server(millstream: SharedBroker) -> None:
    """Replies that are too large or of a wrong type are errors; places that do not exist, or that
    are not the callers', get none."""
    topic, replies = make_topics(millstream)
    results = {b"large": b"x" * 2_000_000, b"typed": {"a": 1}, b"half": "\ud800", b"good": b"done"}

    def handle(request: Request) -> bytes:
        return results[request.value or b""]  # type: ignore[return-value]

    ids = {it: new_correlation_id() for it in results}
    there = [(it, list(request_headers(ids[it], replies, 0, far_ms()))) for it in results]
    elsewhere = [
        (b"good", list(request_headers(new_correlation_id(), name, partition, far_ms())))
        for name, partition in [
            ("a\0b", 0), (replies, 999), (replies, -7), ("__consumer_offsets", 0), ("other", 0),
        ]
    ]  # fmt: skip
    send(millstream, topic, *elsewhere, *there[:3], *elsewhere, *there[3:])
    with Server(millstream.bootstrap_servers, topic, handle) as server:
        found = dict(read_replies(millstream, replies, 4))
        assert found == {ids[it]: b"done" if it == b"good" else b"" for it in results}
        wait_until(lambda: server.unanswered >= 10)
        assert server.problem is None
        assert server.failed == 3


def test_a_server_goes_on_after_a_failure(millstream: SharedBroker) -> None:
    topic, replies = make_topics(millstream)
    server = Server(millstream.bootstrap_servers, topic, lambda request: request.value)
    answer_all, problems = server._answer_all, list[str | None]()

    def fail_once(messages: Sequence[Message]) -> None:
        problems.append(server.problem)
        if len(problems) == 1:
            raise RuntimeError("broken")
        answer_all(messages)

    server._answer_all = fail_once  # type: ignore[method-assign]
    correlation_id = new_correlation_id()
    send(millstream, topic, (b"a", list(request_headers(correlation_id, replies, 0, far_ms()))))
    with server:
        assert read_replies(millstream, replies, 1) == [(correlation_id, b"a")]
        wait_until(lambda: server.problem is None)
    assert problems[1] == "RuntimeError: broken"


def test_a_server_continues_where_the_last_one_stopped(millstream: SharedBroker) -> None:
    topic, _ = make_topics(millstream)
    seen: list[bytes | None] = []

    def handle(request: Request) -> None:
        seen.append(request.value)

    for value in (b"first", b"second"):
        send(millstream, topic, (value, []))
        with Server(millstream.bootstrap_servers, topic, handle) as server:
            wait_until(lambda it=server: it.handled == 1)
    assert seen == [b"first", b"second"]


def test_servers_of_a_share_group_answer(millstream: SharedBroker) -> None:
    topic, _ = make_topics(millstream)
    address = millstream.bootstrap_servers

    def handle(request: Request) -> bytes:
        return (request.value or b"").upper()

    with (
        Server(address, topic, handle, share=True) as one,
        Server(address, topic, handle, share=True) as other,
        Client(address, topic, timeout=PATIENCE) as client,
    ):
        for number in range(20):
            assert client.call(b"v%d" % number) == b"V%d" % number
        assert one.handled + other.handled == 20


def test_reply_memory_is_bounded() -> None:
    memory = ReplyMemory(count_max=3, bytes_max=100)
    for number in range(5):
        memory.put(b"%d" % number, Reply(b"x" * 20, None))
    assert [memory.get(b"%d" % number) is not None for number in range(5)] == [
        False, False, True, True, True,
    ]  # fmt: skip
    memory.put(b"large", Reply(b"x" * 70, None))
    assert memory.get(b"3") is None
    assert memory.get(b"large") is not None
    memory.put(b"larger", Reply(b"x" * 101, None))
    assert memory.get(b"larger") is None
    memory.put(None, Reply(b"", None))
    assert memory.get(None) is None


def java(*arguments: str) -> list[str]:
    try:
        return [*java_program("RpcProgram", sources="java/rpc"), *arguments]
    except PeerMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.java
def test_springs_callers_are_answered(millstream: SharedBroker) -> None:
    topic, replies = make_topics(millstream)

    def handle(request: Request) -> bytes:
        if request.value == b"bad":
            raise ValueError("no")
        return (request.value or b"")[::-1]

    command = java("call", millstream.bootstrap_servers, topic, replies, "5", "abc", "bad", "xyz")
    with Server(millstream.bootstrap_servers, topic, handle):
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.splitlines() == [
        "cba",
        'error: {"type": "ValueError", "message": "no"}',
        "zyx",
    ]


@pytest.mark.slow
@pytest.mark.java
def test_springs_listeners_answer(millstream: SharedBroker) -> None:
    topic, _ = make_topics(millstream)
    command = java("serve", millstream.bootstrap_servers, topic, "java-servers")
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    drain = threading.Thread(target=process.stdout.read, daemon=True)
    drain.start()
    address = millstream.bootstrap_servers
    with Client(address, topic, group="java-servers", timeout=PATIENCE) as client:
        assert client.call(b"apples") == b"APPLES"
        assert client.call("pears") == b"PEARS"
    process.stdin.write("stop\n")
    process.stdin.flush()
    assert process.wait(PATIENCE) == 0
