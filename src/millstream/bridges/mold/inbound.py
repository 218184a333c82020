"""A stream of MoldUDP64 to a topic, in the order of its sequence numbers.

Records have headers `mold-session` and `mold-sequence`. What did not come is a record with the key
`millstream.bridge.gap`. After a restart, the stream is continued after its last record in the
topic: what came meanwhile is asked for.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import Consumer, TopicPartition

from millstream.admin.outgoing import Outgoing
from millstream.bridges.config import MoldInConfig
from millstream.bridges.counts import Counts
from millstream.bridges.mold.gaps import Gap, Message, Ordered
from millstream.bridges.mold.packets import BadPacket, Request, encode_request, parse_packet
from millstream.bridges.mold.sockets import receiving
from millstream.bridges.sending import Sender
from millstream.metrics.threaded import parse_address

PACKET_BYTES_MAX = 65_536
PACKETS_PER_TURN = 256
TURN_SECONDS = 0.005
METADATA_SECONDS = 10.0
PARTITION = 0
SESSION, SEQUENCE, GAP_KEY = "mold-session", "mold-sequence", b"millstream.bridge.gap"


def record_of(found: Message | Gap) -> Outgoing:
    """The record of a message, or of a gap."""
    if isinstance(found, Message):
        headers: list[tuple[str, bytes | None]] = [
            (SESSION, found.session),
            (SEQUENCE, str(found.sequence).encode()),
        ]
        return Outgoing(found.data, None, headers, PARTITION)
    body = {
        "session": found.session.decode("latin-1").strip(),
        "first": found.first,
        "last": found.last,
        "reason": found.reason,
    }
    headers = [(SESSION, found.session), (SEQUENCE, str(found.last).encode())]
    return Outgoing(json.dumps(body).encode(), GAP_KEY, headers, PARTITION)


def last_position(settings: Mapping[str, Any], topic: str) -> tuple[bytes | None, int | None]:
    """Session and sequence of the last record in the topic."""
    consumer = Consumer({"group.id": "millstream-bridge", "log_level": 0, **settings})
    try:
        if topic not in consumer.list_topics(timeout=METADATA_SECONDS).topics:
            return None, None
        place = TopicPartition(topic, PARTITION)
        low, high = consumer.get_watermark_offsets(place, METADATA_SECONDS)
        if high <= low:
            return None, None
        consumer.assign([TopicPartition(topic, PARTITION, high - 1)])
        found = consumer.poll(METADATA_SECONDS)
        if found is None or found.error() is not None:
            return None, None
        headers = dict(found.headers() or [])
        if SESSION not in headers or SEQUENCE not in headers:
            return None, None
        return headers[SESSION], int(headers[SEQUENCE])
    finally:
        consumer.close()


class Inbound:
    """Listens when it is made; receives from `start` to `stop`. `is_lost` drops packets, for
    tests."""

    def __init__(
        self,
        config: MoldInConfig,
        settings: Mapping[str, Any],
        sender: Sender,
        counts: Counts,
        is_lost: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        self._config = config
        self._sender = sender
        self._counts = counts
        self._is_lost = is_lost
        session, last = last_position(settings, config.topic)
        self._ordered = Ordered(session, None if last is None else last + 1)
        self._stream = receiving(config.listen, config.interface)
        self._answers = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        for each in (self._stream, self._answers):
            each.setblocking(False)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"bridge-mold-{config.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        self._stream.close()
        self._answers.close()

    def _run(self) -> None:
        while not self._stopping.is_set():
            ready, _, _ = select.select([self._stream, self._answers], [], [], TURN_SECONDS)
            for each in ready:
                self._drain(each)
            now = time.monotonic()
            self._ask(now)
            self._write(self._ordered.expire(now))

    def _drain(self, ready: socket.socket) -> None:
        for _ in range(PACKETS_PER_TURN):
            try:
                data = ready.recv(PACKET_BYTES_MAX)
            except OSError:  # nothing more, or the server does not listen
                return
            if ready is self._stream and self._is_lost(data):
                continue
            self._counts.add("mold_packets", stream=self._config.name)
            try:
                packet = parse_packet(data)
            except BadPacket as bad:
                reason = str(bad)
                self._counts.add("mold_bad_packets", stream=self._config.name, reason=reason)
                continue
            self._write(self._ordered.take(packet, time.monotonic()))

    def _ask(self, now: float) -> None:
        for first, count in self._ordered.requests(now):
            self._counts.add("mold_requests", stream=self._config.name)
            if self._config.request is not None and self._ordered.session is not None:
                request = encode_request(Request(self._ordered.session, first, count))
                self._answers.sendto(request, parse_address(self._config.request))

    def _write(self, found: list[Message | Gap]) -> None:
        for one in found:
            if isinstance(one, Gap):
                number = one.last - one.first + 1
                self._counts.add("mold_lost", number, stream=self._config.name)
            elif not one.data:
                continue  # an offset of our own outbound stream that has no record
            self._sender.send(self._config.topic, record_of(one))
