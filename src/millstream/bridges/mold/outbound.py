"""A partition as a stream of MoldUDP64: the sequence number of a record is its offset plus one.

So the log itself is the re-request server: any message can be asked for as long as its record is
kept. Offsets without a record (of compaction, transactions, excision) are messages of length 0.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

from millstream.bridges.config import MoldOutConfig
from millstream.bridges.counts import Counts
from millstream.bridges.loops import Loop, Part
from millstream.bridges.mold.packets import (
    MESSAGE_BYTES_MAX,
    BadPacket,
    Packet,
    encode_packet,
    packets_of,
    parse_request,
    session_of,
)
from millstream.bridges.mold.sockets import receiving, sending
from millstream.metrics.threaded import parse_address

RECORDS_PER_TURN = 500
POLL_SECONDS = 0.1
HEARTBEAT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
ANSWERED_MAX = 1_000  # messages of one request
ANSWER_BYTES_PER_SECOND = 4 * 1024 * 1024  # to one address
FILLERS_MAX = 10_000  # of one hole


class Outbound(Part):
    """Publishes from `start` to `stop`."""

    def __init__(self, config: MoldOutConfig, settings: Mapping[str, Any], counts: Counts) -> None:
        super().__init__()
        self._config = config
        self._counts = counts
        self._session = session_of(config.session)
        self._settings = {
            "group.id": "millstream-bridge",  # nothing is committed
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "queued.max.messages.kbytes": 4096,
            "log_level": 0,
            **settings,
        }
        self._group = parse_address(config.to)
        self._out = sending(config.interface, config.ttl)
        self._requests = receiving(config.requests, "127.0.0.1") if config.requests else None
        self.requests_address = ""
        if self._requests is not None:
            self._requests.settimeout(POLL_SECONDS)
            self.requests_address = "{}:{}".format(*self._requests.getsockname()[:2])
        self._budget = Budget()
        self._sequence: int | None = None  # of the next message
        name = f"mold {config.name}"
        self.loops = [Loop(name, self._publish, self._stopping, counts)]
        if self._requests is not None:
            self.loops.append(Loop(f"{name} requests", self._serve, self._stopping, counts))

    def _close(self) -> None:
        self._out.close()
        if self._requests is not None:
            self._requests.close()

    def _consumer(self, offset: int) -> Any:
        consumer = Consumer(self._settings)
        place = TopicPartition(self._config.topic, self._config.partition, offset)
        consumer.assign([place])
        return consumer

    def _publish(self) -> None:
        """Continues where it failed, if it did."""
        first = OFFSET_END if self._config.start == "latest" else OFFSET_BEGINNING
        consumer = self._consumer(first if self._sequence is None else self._sequence - 1)
        try:
            heard = 0.0
            while not self._stopping.is_set():
                found = [
                    it for it in consumer.consume(RECORDS_PER_TURN, POLL_SECONDS) if not it.error()
                ]
                if found:
                    self._send_records(found)
                    heard = time.monotonic()
                elif self._sequence is not None and time.monotonic() - heard >= HEARTBEAT_SECONDS:
                    heard = time.monotonic()
                    self._send_state(Packet(self._session, self._sequence))
            if self._sequence is not None:
                self._send_state(Packet(self._session, self._sequence, (), True))
        finally:
            consumer.close()

    def _send_records(self, records: list[Any]) -> None:
        if self._sequence is None:
            self._sequence = records[0].offset() + 1
        if large := sum(len(it.value() or b"") > MESSAGE_BYTES_MAX for it in records):
            self._counts.add("mold_too_large", large, stream=self._config.name)
        for offset, messages in runs(self._sequence - 1, records):
            self._send(offset + 1, messages, self._out, self._group)
            self._sequence = offset + 1 + len(messages)

    def _send_state(self, packet: Packet) -> None:
        self._out.sendto(encode_packet(packet), self._group)

    def _send(
        self, sequence: int, messages: list[bytes], to: socket.socket, address: tuple[str, int]
    ) -> None:
        for packet in packets_of(self._session, sequence, messages):
            to.sendto(packet, address)
            self._counts.add("mold_packets", stream=self._config.name)

    def _serve(self) -> None:
        """Answers requests from the log."""
        assert self._requests is not None
        consumer = self._consumer(OFFSET_END)
        try:
            while not self._stopping.is_set():
                self._serve_one(consumer)
        finally:
            consumer.close()

    def _serve_one(self, consumer: Any) -> None:
        assert self._requests is not None
        try:
            data, address = self._requests.recvfrom(2048)
            request = parse_request(data)
        except TimeoutError:
            return
        except (OSError, BadPacket):
            self._counts.add("mold_bad_packets", stream=self._config.name, reason="no request")
            return
        if request.session != self._session or not 0 < request.sequence < 2**63:
            return
        if not self._budget.has_some(address[0], time.monotonic()):
            self._counts.add("mold_bad_packets", stream=self._config.name, reason="too many")
            return
        count = min(max(request.count, 1), ANSWERED_MAX)
        messages = self._read(consumer, request.sequence - 1, count)
        self._budget.take(address[0], sum(map(len, messages)))
        self._counts.add("mold_answers", stream=self._config.name)
        self._send(request.sequence, messages, self._requests, address)

    def _read(self, consumer: Any, offset: int, count: int) -> list[bytes]:
        place = TopicPartition(self._config.topic, self._config.partition, offset)
        consumer.assign([place])
        found: list[bytes] = []
        until = time.monotonic() + ANSWER_SECONDS
        while len(found) < count and time.monotonic() < until:
            records = [it for it in consumer.consume(count, POLL_SECONDS) if not it.error()]
            if records:
                found += with_fillers(offset + len(found), records, count - len(found))
            elif found:
                break
        return found[:count]


class Budget:
    """Bytes of answers by address: senders of requests can be forged, and the answers are larger.
    Time is passed in."""

    def __init__(self, bytes_per_second: int = ANSWER_BYTES_PER_SECOND) -> None:
        self._bytes_per_second = bytes_per_second
        self._left: dict[str, int] = {}
        self._began = 0.0

    def has_some(self, address: str, now: float) -> bool:
        if now - self._began >= 1.0:
            self._left.clear()
            self._began = now
        return self._left.get(address, self._bytes_per_second) > 0

    def take(self, address: str, size: int) -> None:
        self._left[address] = self._left.get(address, self._bytes_per_second) - size


def with_fillers(offset: int, records: list[Any], count_max: int) -> list[bytes]:
    """The values of records from an offset on, with an empty one for each offset without a record.
    Values that do not fit into a message are empty, too."""
    found: list[bytes] = []
    for record in records:
        missing = record.offset() - offset - len(found)
        if missing < 0 or len(found) >= count_max:
            break
        found += [b""] * min(missing, count_max - len(found))
        if len(found) < count_max:
            value = record.value() or b""
            found.append(value if len(value) <= MESSAGE_BYTES_MAX else b"")
    return found


def runs(offset: int, records: list[Any]) -> Iterator[tuple[int, list[bytes]]]:
    """The messages of records, with the offset of the first of each run. Behind a large hole, or
    where the log was cut and goes on at an earlier offset, another run begins: receivers see a gap,
    or messages that they know."""
    begin = 0
    expected = offset
    for at, record in enumerate(records):
        if not 0 <= record.offset() - expected <= FILLERS_MAX:
            if at > begin:
                yield offset, with_fillers(offset, records[begin:at], expected - offset)
            begin, offset = at, record.offset()
        expected = record.offset() + 1
    yield offset, with_fillers(offset, records[begin:], expected - offset)
