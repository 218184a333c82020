"""A client that costs next to nothing, so that the broker is what is measured.

Requests are encoded once; answers are counted by their size, which is the same for every
one-record Produce to one topic. Each connection keeps a window of requests in flight.
"""

from __future__ import annotations

import selectors
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from millstream.records.record import Record, encode_batch

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
PRODUCE_VERSION, FETCH_VERSION, METADATA_VERSION = 8, 16, 1


def produce_request(topic: str, partition: int, acks: int, value_bytes: int = 100) -> bytes:
    """A Produce request (v8) with one record, framed and ready to send."""
    batch = encode_batch([Record(0, int(time.time() * 1000), None, b"x" * value_bytes, ())])
    return produce_request_of(topic, partition, acks, batch)


def produce_request_of(topic: str, partition: int, acks: int, batch: bytes) -> bytes:
    """The same with any batch."""
    name = topic.encode()
    body = (
        struct.pack(">hhi", -1, acks, 30_000)
        + struct.pack(">ih", 1, len(name))
        + name
        + struct.pack(">iii", 1, partition, len(batch))
        + batch
    )
    return _frame(PRODUCE, PRODUCE_VERSION, body)


def fetch_request(topic_id: bytes, partition: int, offset: int) -> bytes:
    """A Fetch request (v16) for one partition, without a session, as librdkafka sends it."""
    body = struct.pack(">iiibii", 500, 1, 50 << 20, 1, 0, -1)
    body += struct.pack(">B16sBiiqiqi", 2, topic_id, 2, partition, -1, offset, -1, -1, 1 << 20)
    return _frame(FETCH, FETCH_VERSION, b"\0" + body + b"\0\0\x01\x01\0")


def metadata_request() -> bytes:
    """A Metadata request (v1) for every topic."""
    return _frame(METADATA, METADATA_VERSION, struct.pack(">i", -1))


def api_versions_request() -> bytes:
    """An ApiVersions request (v0): what a broker answers without looking at anything."""
    return _frame(API_VERSIONS, 0, b"")


def _frame(api_key: int, version: int, body: bytes) -> bytes:
    client = b"bench"
    header = struct.pack(">hhih", api_key, version, 7, len(client)) + client
    return struct.pack(">i", len(header) + len(body)) + header + body


def connect(bootstrap: str, timeout: float = 10.0) -> socket.socket:
    host, port = bootstrap.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def receive_frame(connection: socket.socket) -> bytes:
    size = struct.unpack(">i", _receive(connection, 4))[0]
    return _receive(connection, size)


def _receive(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise ConnectionError("the broker closed the connection")
        data += piece
    return bytes(data)


@dataclass
class Window:
    """One connection with a bounded number of requests in flight.

    Nothing is allocated or joined per answer: what is sent next is a slice of the requests, which
    lie one after another twice, and answers are read into one buffer.
    """

    connection: socket.socket
    requests: Sequence[bytes]
    response_bytes: int
    sent: int = 0
    answered: int = 0
    partial_bytes: int = 0

    def __post_init__(self) -> None:
        self._ring = memoryview(b"".join([*self.requests, *self.requests]))
        self._starts = [0, *accumulate(len(it) for it in (*self.requests, *self.requests))]
        self._answers = bytearray(1 << 16)

    def send(self, count: int) -> None:
        total = len(self.requests)
        while count:
            first = self.sent % total
            some = min(count, total)
            self.connection.sendall(self._ring[self._starts[first] : self._starts[first + some]])
            self.sent += some
            count -= some

    def receive(self) -> int:
        size = self.connection.recv_into(self._answers)
        if not size:
            raise ConnectionError("the broker closed the connection")
        answers, self.partial_bytes = divmod(self.partial_bytes + size, self.response_bytes)
        self.answered += answers
        return answers


def run_windows(
    bootstrap: str, requests: Sequence[bytes], *, connections: int, in_flight: int, seconds: float
) -> list[int]:
    """Send for `seconds` over several connections; return how many answers each one got."""
    return run_windows_to(
        {bootstrap: requests}, connections=connections, in_flight=in_flight, seconds=seconds
    )


def run_windows_to(
    requests: Mapping[str, Sequence[bytes]], *, connections: int, in_flight: int, seconds: float
) -> list[int]:
    """The same with the requests for each of several brokers; each gets its share of the
    connections."""
    each = connections // len(requests)
    windows = [
        window
        for bootstrap, wanted in requests.items()
        for window in _windows(bootstrap, wanted, each)
    ]
    try:
        with selectors.DefaultSelector() as selector:
            for window in windows:
                selector.register(window.connection, selectors.EVENT_READ, window)
                window.send(in_flight)
            deadline = time.perf_counter() + seconds
            while time.perf_counter() < deadline:
                for key, _ in selector.select(timeout=5.0):
                    answers = key.data.receive()
                    if answers:
                        key.data.send(answers)
    finally:
        for window in windows:
            window.connection.close()
    return [window.answered for window in windows]


def _windows(bootstrap: str, requests: Sequence[bytes], connections: int) -> list[Window]:
    with connect(bootstrap) as probe:
        probe.sendall(requests[0])
        response_bytes = 4 + len(receive_frame(probe))
    windows = [Window(connect(bootstrap), requests, response_bytes) for _ in range(connections)]
    for number, window in enumerate(windows):
        window.sent = number * len(requests) // connections
    return windows
