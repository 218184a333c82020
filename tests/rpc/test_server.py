"""Servers of calls: repeated and expired requests, share groups, and Java on the other side."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Message

from millstream.rpc import Client, NoResponders, Request, Server
from millstream.rpc.headers import new_correlation_id, request_headers
from millstream.testing.pytest_plugin import SharedBroker
from tests.peers.cache import PeerMissing
from tests.peers.java_runtime import java_program
from tests.peers.patience import wait_until
from tests.rpc.scene import PATIENCE, far_ms, make_topics, read_replies, send


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
    learn, problems = server._learn, list[str | None]()

    def fail_once(messages: Sequence[Message]) -> None:
        problems.append(server.problem)
        if len(problems) == 1:
            raise RuntimeError("broken")
        learn(messages)

    server._learn = fail_once  # type: ignore[method-assign]
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


def test_a_repeated_request_gets_its_first_reply_from_the_next_server(
    millstream: SharedBroker,
) -> None:
    """After a restart, and with a server that does not remember."""
    topic, replies = make_topics(millstream)
    ids = {it: new_correlation_id() for it in (b"good", b"bad", b"null")}
    requests = [(it, list(request_headers(ids[it], replies, 0, far_ms()))) for it in ids]
    address, calls = millstream.bootstrap_servers, list[bytes | None]()

    def handle(request: Request) -> bytes | None:
        calls.append(request.value)
        if request.value == b"bad":
            raise ValueError(f"call {len(calls)}")
        return None if request.value == b"null" else b"%d" % len(calls)

    for expected_calls in (3, 3):
        send(millstream, topic, *requests)
        with Server(address, topic, handle) as server:
            wait_until(lambda it=server: it.handled + it.failed + it.repeated == 3)
        assert len(calls) == expected_calls
    found = read_replies(millstream, replies, 6)
    assert found[:3] == found[3:]
    assert found[0] == (ids[b"good"], b"1")
    send(millstream, topic, *requests)
    with Server(address, topic, handle, remember_seconds=0) as server:
        wait_until(lambda: server.handled + server.failed == 3)
    assert len(calls) == 6


def test_a_repeated_request_gets_its_first_reply_after_a_rebalance(
    millstream: SharedBroker,
) -> None:
    topic, _ = make_topics(millstream, partitions=4)
    address, calls = millstream.bootstrap_servers, list[str]()

    def handle(name: str) -> Callable[[Request], str]:
        def run(request: Request) -> str:
            calls.append(name)
            return f"{name} {len(calls)}"

        return run

    ids = [b"order-%d" % number for number in range(12)]  # any bytes
    with Client(address, topic, timeout=PATIENCE) as client:
        with Server(address, topic, handle("one")) as one:
            first = {it: client.call(b"x", correlation_id=it) for it in ids}
            assert calls == ["one"] * 12
            with Server(address, topic, handle("other")) as other:
                deadline = time.monotonic() + PATIENCE
                while other.repeated == 0:  # until it has partitions
                    assert {it: client.call(b"x", correlation_id=it) for it in ids} == first
                    assert time.monotonic() < deadline
                assert other.problem is one.problem is None
        assert len(calls) == 12


def test_servers_of_a_share_group_remember_together(millstream: SharedBroker) -> None:
    topic, _ = make_topics(millstream)
    address, calls = millstream.bootstrap_servers, list[bytes | None]()

    def handle(request: Request) -> bytes:
        calls.append(request.value)
        return b"%d" % len(calls)

    group = f"{topic}-servers"
    with (
        Server(address, topic, handle, share=True),
        Client(address, topic, timeout=PATIENCE) as client,
    ):
        assert client.call(b"a", correlation_id=b"once") == b"1"
    with (
        Server(address, topic, handle, share=True) as server,
        Client(address, topic, group=group, timeout=PATIENCE) as client,
    ):
        wait_until(lambda: has_responders(client))
        assert client.call(b"a", correlation_id=b"once") == b"1"
        assert (calls, server.repeated) == ([b"a"], 1)


def has_responders(client: Client) -> bool:
    try:
        client._check_responders()
    except NoResponders:
        return False
    return True


def test_a_server_that_is_never_started_can_be_closed(millstream: SharedBroker) -> None:
    topic, _ = make_topics(millstream)
    Server(millstream.bootstrap_servers, topic, lambda request: None).close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_servers_that_are_killed_give_each_request_one_reply(
    millstream: SharedBroker, tmp_path: Path
) -> None:
    """kill -9, at random moments: whatever replies a request has are the same, and were the result
    of one call of the function."""
    topic, replies = make_topics(millstream, partitions=2)
    address = millstream.bootstrap_servers
    chance = random.Random(7)
    called = tmp_path / "called"
    servers = [start_server(address, topic, called, 0.005) for _ in range(2)]
    ids = [b"call-%d" % number for number in range(300)]
    first: dict[bytes, bytes | None] = {}
    try:
        with (
            Client(address, topic, reply_partition=0, timeout=120) as client,
            ThreadPoolExecutor(4) as pool,
        ):

            def ask(id_: bytes) -> bytes | None:
                return client.call(b"x", correlation_id=id_, attempts=8)

            for start in range(0, 300, 60):
                some = ids[start : start + 60]
                calls = [pool.submit(ask, it) for it in some]
                wait_until(lambda it=calls: any(call.done() for call in it))
                time.sleep(chance.uniform(0, 0.2))  # any moment
                victim = chance.randrange(2)
                servers[victim].kill()
                servers[victim].wait()
                first |= {it: call.result() for it, call in zip(some, calls, strict=True)}
                servers[victim] = start_server(address, topic, called, 0.005)
            assert dict(zip(ids, pool.map(ask, ids), strict=True)) == first
    finally:
        for it in servers:
            it.kill()
            it.wait()
    by_id: dict[bytes, set[bytes]] = {}
    for id_, value in read_replies(millstream, replies, 600):
        by_id.setdefault(id_, set()).add(value)
    assert by_id == {it: {first[it] or b""} for it in ids}
    results = {line.split()[1].encode() for line in called.read_text().splitlines()}
    assert results >= set(first.values())


def start_server(address: str, topic: str, called: Path, pause: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.rpc.killed_server", address, topic, called, str(pause)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_that_was_taken_for_dead_answers_nothing(millstream: SharedBroker) -> None:
    """Its function is longer at work than the group waits; another server answers meanwhile."""
    topic, replies = make_topics(millstream)
    address = millstream.bootstrap_servers
    may_end, begun = threading.Event(), threading.Event()

    def stall(request: Request) -> bytes:
        begun.set()
        may_end.wait(PATIENCE)
        return b"of the dead"

    impatient = {"session.timeout.ms": "6000", "max.poll.interval.ms": "6000"}
    with (
        Server(address, topic, stall, settings=impatient) as dead,
        Client(address, topic, reply_partition=0, timeout=4 * PATIENCE) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        call = pool.submit(client.call, b"x", correlation_id=b"once")
        assert begun.wait(PATIENCE)
        with Server(address, topic, lambda request: b"of the living") as living:
            assert call.result(PATIENCE) == b"of the living"
            may_end.set()
            wait_until(lambda: dead.problem is not None)
            assert client.call(b"x", correlation_id=b"once") == b"of the living"
            assert living.handled == 1
    found = read_replies(millstream, replies, 2)
    assert {value for _, value in found} == {b"of the living"}


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
