"""A partition as a stream of MoldUDP64: the sequence number of a record is its offset plus one.

So the log itself is the re-request server: any message can be asked for as long as its record is
kept. Offsets without a record (of compaction, transactions, excision) are messages of length 0.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, TopicPartition

from millstream.bridges.config import MoldOutConfig
from millstream.bridges.counts import Counts
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
FILLERS_MAX = 100_000


class Outbound:
    """Publishes from `start` to `stop`."""

    def __init__(self, config: MoldOutConfig, settings: Mapping[str, Any], counts: Counts) -> None:
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
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._publish, name="bridge-mold", daemon=True)]
        if self._requests is not None:
            self._threads.append(
                threading.Thread(target=self._serve, name="bridge-mold-requests", daemon=True)
            )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        self._out.close()
        if self._requests is not None:
            self._requests.close()

    def _consumer(self, offset: int) -> Any:
        consumer = Consumer(self._settings)
        place = TopicPartition(self._config.topic, self._config.partition, offset)
        consumer.assign([place])
        return consumer

    def _publish(self) -> None:
        is_new = self._config.start == "latest"
        consumer = self._consumer(OFFSET_END if is_new else OFFSET_BEGINNING)
        sequence: int | None = None
        heard = 0.0
        while not self._stopping.is_set():
            found = [
                it for it in consumer.consume(RECORDS_PER_TURN, POLL_SECONDS) if not it.error()
            ]
            if found:
                sequence = found[0].offset() + 1 if sequence is None else sequence
                messages = with_fillers(sequence - 1, found)
                self._send(sequence, messages, self._out, self._group)
                sequence += len(messages)
                heard = time.monotonic()
            elif sequence is not None and time.monotonic() - heard >= HEARTBEAT_SECONDS:
                heard = time.monotonic()
                self._out.sendto(encode_packet(Packet(self._session, sequence)), self._group)
        if sequence is not None:
            end = encode_packet(Packet(self._session, sequence, (), True))
            self._out.sendto(end, self._group)
        consumer.close()

    def _send(
        self, sequence: int, messages: list[bytes], to: socket.socket, address: tuple[str, int]
    ) -> None:
        for packet in packets_of(self._session, sequence, messages):
            to.sendto(packet, address)
            self._counts.add("mold_packets", stream=self._config.name)

    def _serve(self) -> None:
        """Answers requests from the log."""
        assert self._requests is not None
        consumer: Any = None
        while not self._stopping.is_set():
            try:
                data, address = self._requests.recvfrom(2048)
                request = parse_request(data)
            except TimeoutError:
                continue
            except (OSError, BadPacket):
                self._counts.add("mold_bad_packets", stream=self._config.name, reason="no request")
                continue
            if request.session != self._session or not 0 < request.sequence < 2**63:
                continue
            consumer = consumer or self._consumer(OFFSET_END)
            self._counts.add("mold_answers", stream=self._config.name)
            count = min(max(request.count, 1), ANSWERED_MAX)
            messages = self._read(consumer, request.sequence - 1, count)
            self._send(request.sequence, messages, self._requests, address)
        if consumer is not None:
            consumer.close()

    def _read(self, consumer: Any, offset: int, count: int) -> list[bytes]:
        place = TopicPartition(self._config.topic, self._config.partition, offset)
        consumer.assign([place])
        found: list[bytes] = []
        until = time.monotonic() + ANSWER_SECONDS
        while len(found) < count and time.monotonic() < until:
            records = [it for it in consumer.consume(count, POLL_SECONDS) if not it.error()]
            if records:
                found += with_fillers(offset + len(found), records)
            elif found:
                break
        return found[:count]


def with_fillers(offset: int, records: list[Any]) -> list[bytes]:
    """The values of records from an offset on, with an empty one for each offset without a record.
    Values that do not fit into a message are empty, too."""
    found: list[bytes] = []
    for record in records:
        missing = record.offset() - offset - len(found)
        if not 0 <= missing <= FILLERS_MAX:
            break
        found += [b""] * missing
        value = record.value() or b""
        found.append(value if len(value) <= MESSAGE_BYTES_MAX else b"")
    return found
