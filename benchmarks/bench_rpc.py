"""Latency of calls over topics (`millstream.rpc`), on Millstream and on Apache Kafka, beside NATS.

One caller and one server in this process, one call at a time, 128 bytes each way: with replies in
transactions, which the group remembers, and with `remember_seconds=0`. Millstream flushes each step
before it is answered, and Apache Kafka none of them; Millstream without flushes shows what of the
difference is the disk's. NATS, which keeps nothing on disk, is what a request without a log costs:
a responder and a requester with plain sockets, if `nats-server` is installed. Its latency is the
floor, not a goal.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from benchmarks.measurement import Measurement, percentile
from benchmarks.targets import MillstreamTarget, Scale, Target, create_topic, running
from millstream.rpc import CallTimeout, Client, Request, Server

CALLS = 2000
WARM_UP = 200
PAYLOAD = b"x" * 128
NATS = "NATS"
MODES = {"durable replies": 600.0, "`remember_seconds=0`": 0.0}

Call = Callable[[], object]


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    count = scale.of(CALLS)
    found: list[Measurement] = []
    with ExitStack() as stack:
        brokers = [it for it in targets if it.name != "null"]
        if any(isinstance(it, MillstreamTarget) for it in brokers):
            brokers.append(stack.enter_context(running(UnflushedMillstream())))
        nats = {}
        if shutil.which("nats-server"):
            nats[NATS] = stack.enter_context(over_nats())
        for title, remember_seconds in MODES.items():
            half = Measurement(f"{title}, median", "ms", "lower is better")
            most = Measurement(f"{title}, 99th percentile", "ms", "lower is better")
            found += [half, most]
            contenders: dict[str, Call] = {
                it.name: stack.enter_context(over_topics(it, remember_seconds)) for it in brokers
            }
            measure(contenders | nats, half, most, count, scale.rounds)
    yield from found


class UnflushedMillstream(MillstreamTarget):
    def __init__(self) -> None:
        super().__init__()
        self.name = "not flushed"
        self.settings = {"millstream.acks.all.flush": "false"}


def measure(
    contenders: Mapping[str, Call], half: Measurement, most: Measurement, count: int, rounds: int
) -> None:
    for call in contenders.values():
        times_ms(call, min(WARM_UP, count))
    for _ in range(rounds):
        for name, call in contenders.items():
            taken = times_ms(call, count)
            half.add(name, percentile(taken, 0.5))
            most.add(name, percentile(taken, 0.99))


def times_ms(call: Call, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        start = time.perf_counter()
        call()
        taken.append((time.perf_counter() - start) * 1000)
    return taken


def echo(request: Request) -> bytes | None:
    return request.value


@contextmanager
def over_topics(target: Target, remember_seconds: float) -> Iterator[Call]:
    topic = create_topic(target, partitions=1)
    with (
        Server(target.bootstrap, topic, echo, remember_seconds=remember_seconds),
        Client(target.bootstrap, topic) as client,
    ):
        while True:
            try:
                client.call(PAYLOAD)
                break
            except CallTimeout:
                continue
        yield lambda: client.call(PAYLOAD)


@contextmanager
def over_nats() -> Iterator[Call]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    command = ["nats-server", "-a", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        responder, caller = connect(port), connect(port)
        responder.sendall(b"SUB calls 1\r\n")
        caller.sendall(b"SUB inbox 1\r\n")
        threading.Thread(target=respond, args=[responder], daemon=True).start()
        reader = caller.makefile("rb")

        def call() -> object:
            caller.sendall(b"PUB calls inbox %d\r\n%s\r\n" % (len(PAYLOAD), PAYLOAD))
            return next_message(reader, caller)

        yield call
    finally:
        process.terminate()
        process.wait()


def connect(port: int) -> socket.socket:
    while True:
        try:
            made = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.05)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    made.sendall(b'CONNECT {"verbose":false}\r\n')
    return made


def next_message(reader: object, connection: socket.socket) -> tuple[list[bytes], bytes]:
    """The words and the payload of the next MSG; answers pings."""
    while True:
        line = reader.readline().split()  # type: ignore[attr-defined]
        if line[0] == b"PING":
            connection.sendall(b"PONG\r\n")
        elif line[0] == b"MSG":
            payload = reader.read(int(line[-1]) + 2)[:-2]  # type: ignore[attr-defined]
            return line, payload


def respond(connection: socket.socket) -> None:
    reader = connection.makefile("rb")
    try:
        while True:
            words, payload = next_message(reader, connection)
            connection.sendall(b"PUB %s %d\r\n%s\r\n" % (words[3], len(payload), payload))
    except (OSError, IndexError):
        return
