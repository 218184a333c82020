"""What the time of an answer tells: nothing about who is a user, and which topics exist.

Two kinds of requests are sent in turns, in random order, so that what else the machine does affects
both. From the ranks of their times follows how probable it is that one of the first kind takes
longer than one of the second: a half, if nothing can be learned. With as many requests as here the
estimate is off by at most 0.02 in two of three runs; a leak is a difference of five times that.
"""

from __future__ import annotations

import base64
import os
import random
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

import pytest

from tests.peers.secured import ADMIN, Secured, SecuredWire, start_secured
from tests.peers.wire import batch, produce_fields, request_frame

REQUESTS = 400  # of each kind
ATTEMPTS = 3  # noise passes, a leak stays
LEAK = 0.1
USER, UNKNOWN = "alice", "alicf"
DENIED = 29

pytestmark = pytest.mark.slow

# Sends a request of one of two kinds, and returns how long the answer took.
Send = Callable[[bool], int]


def test_kinds_that_differ_are_told_apart() -> None:
    """By a tenth of what one request differs from the next."""
    choose = random.Random(1)
    some = [int(choose.gauss(100_000, 10_000)) for _ in range(REQUESTS)]
    others = [int(choose.gauss(100_000, 10_000)) for _ in range(REQUESTS)]
    slower = [int(choose.gauss(105_000, 10_000)) for _ in range(REQUESTS)]
    assert abs(is_slower(some, others) - 0.5) < LEAK / 2
    assert is_slower(slower, others) - 0.5 > LEAK
    assert is_slower([1, 1], [1, 1]) == 0.5
    assert is_slower([2, 3], [1, 1]) == 1


def is_slower(some: list[int], others: list[int]) -> float:
    """How probable it is that one of these takes longer than one of the others."""
    ordered = sorted([(it, True) for it in some] + [(it, False) for it in others])
    below, wins, position = 0, 0.0, 0
    while position < len(ordered):
        end = position
        while end < len(ordered) and ordered[end][0] == ordered[position][0]:
            end += 1
        equal = [is_first for _, is_first in ordered[position:end]]
        wins += equal.count(True) * (below + equal.count(False) / 2)
        below += equal.count(False)
        position = end
    return wins / (len(some) * len(others))


def difference(send: Send) -> float:
    times: dict[bool, list[int]] = {True: [], False: []}
    choose = random.Random(7)
    for is_first in (True, False) * 5:
        send(is_first)  # what is done once
    for _ in range(REQUESTS):
        for is_first in choose.sample((True, False), 2):
            times[is_first].append(send(is_first))
    return abs(is_slower(times[True], times[False]) - 0.5)


def check(send: Send) -> None:
    found = []
    for _ in range(ATTEMPTS):
        found.append(difference(send))
        if found[-1] < LEAK:
            return
    raise AssertionError(f"told apart in each attempt: {found}")


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """Failures are answered at once, and as many as one likes."""
    settings = {
        "connection.failed.authentication.delay.ms": "0",
        "millstream.authentication.delay.exempt": "127.0.0.0/8",
    }
    started = start_secured("millstream", tmp_path_factory.mktemp("timing"), (USER,), settings)
    started.add_scram_user(USER)
    yield started
    started.stop()


def timed(wire: SecuredWire, frame: bytes) -> tuple[int, bytes]:
    """In nanoseconds, and the answer."""
    began = perf_counter_ns()
    wire.socket.sendall(frame)
    answer = wire.receive_frame()
    return perf_counter_ns() - began, answer


def token(content: bytes) -> bytes:
    return request_frame("sasl_authenticate", 2, auth_bytes=content)


def test_time_does_not_tell_who_is_a_user_of_plain(secured: Secured) -> None:
    answers = set()

    def send(is_user: bool) -> int:
        with secured.stranger() as wire:
            wire.handshake("PLAIN")
            user = USER if is_user else UNKNOWN
            took, answer = timed(wire, token(f"\0{user}\0wrong".encode()))
            answers.add(answer)
            return took

    check(send)
    assert len(answers) == 1, "nor do their answers"


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("step", ["first message", "proof"])
def test_time_does_not_tell_who_is_a_user_of_scram(
    secured: Secured, mechanism: str, step: str
) -> None:
    size = 32 if mechanism.endswith("256") else 64
    proof = base64.b64encode(bytes(size)).decode()
    answers = set()

    def send(is_user: bool) -> int:
        with secured.stranger() as wire:
            wire.handshake(mechanism)
            nonce = os.urandom(12).hex()
            user = USER if is_user else UNKNOWN
            took, answer = timed(wire, token(f"n,,n={user},r={nonce}".encode()))
            if step == "proof":
                end = answer.index(b"r=") + 2
                whole = answer[end : answer.index(b",", end)].decode()
                took, answer = timed(wire, token(f"c=biws,r={whole},p={proof}".encode()))
                answers.add(answer)
            return took

    check(send)
    assert len(answers) <= 1


REQUESTS_FOR_A_TOPIC: dict[str, Callable[[str], tuple[str, int, dict[str, Any]]]] = {
    "metadata": lambda topic: ("metadata", 12, {"topics": [{"name": topic}]}),
    "list_offsets": lambda topic: (
        "list_offsets",
        7,
        {
            "replica_id": -1,
            "topics": [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        },
    ),
    "produce": lambda topic: ("produce", 9, produce_fields(topic, batch([b"x"], timestamp_ms=1))),
    "describe_configs": lambda topic: (
        "describe_configs",
        4,
        {"resources": [{"resource_type": 2, "resource_name": topic, "configuration_keys": None}]},
    ),
}


@pytest.mark.parametrize("api", REQUESTS_FOR_A_TOPIC)
def test_time_does_not_tell_which_topics_exist(secured: Secured, api: str) -> None:
    """To a user without rights."""
    existing, missing = f"secret-{api}", f"secreu-{api}"
    with secured.wire(ADMIN) as admin:
        topic = {"name": existing, "num_partitions": 1, "replication_factor": 1}
        answer = admin.call("create_topics", 7, topics=[topic], timeout=60_000)
        assert answer.topics[0].error_code == 0
    frames = {
        is_there: request_frame(name, version, **fields)
        for is_there, topic in ((True, existing), (False, missing))
        for name, version, fields in [REQUESTS_FOR_A_TOPIC[api](topic)]
    }
    answers: dict[bool, bytes] = {}
    with secured.wire(USER) as wire:

        def send(is_there: bool) -> int:
            took, answers[is_there] = timed(wire, frames[is_there])
            return took

        check(send)
    assert answers[True].replace(existing.encode(), missing.encode()) == answers[False]
    assert DENIED.to_bytes(2) in answers[True]
