"""A topic to a PUB or PUSH socket, as the consumer group `zeromq.NAME`.

Messages are numbered, for receivers that are bridges, unless `numbered` is false. A PUSH socket
waits for its receivers, and the group with it. A PUB socket drops what a subscriber does not take
in time: the numbers show it, and a heartbeat every second shows what was lost at the end.

Offsets are committed behind what the socket took. ZeroMQ acknowledges nothing: what it had not sent
when the process was killed is lost.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import zmq
from confluent_kafka import Consumer, KafkaException, TopicPartition

from millstream.bridges.config import ZeromqOutConfig
from millstream.bridges.counts import Counts
from millstream.bridges.zeromq.frames import (
    SENDER_BYTES,
    Heartbeat,
    Numbered,
    encode_foreign,
    encode_heartbeat,
    encode_numbered,
)
from millstream.bridges.zeromq.sockets import Stream

RECORDS_PER_TURN = 500
POLL_SECONDS = 0.1
HEARTBEAT_SECONDS = 1.0
_log = logging.getLogger(__name__)
WAIT_MS_MAX = 24 * 3600 * 1000  # how long receivers may be away before the group goes on without us


class Outbound(Stream):
    """Sends from `start` to `stop`."""

    def __init__(
        self, config: ZeromqOutConfig, settings: Mapping[str, Any], counts: Counts
    ) -> None:
        super().__init__(config, counts)
        self.config = config
        self._settings = {
            "group.id": config.group,
            "auto.offset.reset": config.start,
            "enable.auto.offset.store": False,
            "auto.commit.interval.ms": 1000,
            "isolation.level": "read_committed",
            "max.poll.interval.ms": WAIT_MS_MAX,
            "queued.max.messages.kbytes": 4096,
            "log_level": 0,
            **settings,
        }
        self._id = os.urandom(SENDER_BYTES)
        self._next = 0
        self._sent_at = time.monotonic()

    def start(self) -> None:
        if self.config.type == "pub" and not self.config.numbered:
            name = self.config.name
            _log.warning("zeromq %s: loss is unknown: without numbers nobody sees drops", name)
        super().start()

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([self.config.topic])
        try:
            while not self._stopping.is_set():
                found = consumer.consume(RECORDS_PER_TURN, POLL_SECONDS)
                sent = self._send_all([it for it in found if it.error() is None])
                if sent:
                    self._store(consumer, sent)
                elif time.monotonic() - self._sent_at >= HEARTBEAT_SECONDS:
                    self._beat()
            self._beat()
        finally:
            consumer.close()  # commits

    def _send_all(self, records: list[Any]) -> dict[int, int]:
        """Send records in order. The offset behind the last that was sent, by partition."""
        sent: dict[int, int] = {}
        number = 0
        for record in records:
            key, value = record.key(), record.value()
            if self.config.numbered:
                frames = encode_numbered(Numbered(self._id, self._next, key, value))
            else:
                frames = encode_foreign(key, value)
            if not self._send(frames):
                break
            self._next += 1
            number += 1
            sent[record.partition()] = record.offset() + 1
        if number:
            self._sent_at = time.monotonic()
            self._counts.add("records_out", number, topic=self.config.topic)
        return sent

    def _send(self, frames: list[bytes]) -> bool:
        """Send a message; waits while no receiver takes it. False if the bridge stops meanwhile."""
        is_waiting = False
        while True:
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
                return True
            except zmq.Again:
                if self._stopping.is_set():
                    return False
                if not is_waiting:
                    is_waiting = True
                    self._counts.add("zeromq_pauses", stream=self.config.name)
                self._socket.poll(int(POLL_SECONDS * 1000), zmq.POLLOUT)

    def _beat(self) -> None:
        """A receiver that missed the last message learns it from the number."""
        self._sent_at = time.monotonic()
        if self.config.numbered:
            with contextlib.suppress(zmq.Again):
                frames = encode_heartbeat(Heartbeat(self._id, self._next))
                self._socket.send_multipart(frames, zmq.NOBLOCK)

    def _store(self, consumer: Any, sent: dict[int, int]) -> None:
        """To be committed soon."""
        with contextlib.suppress(KafkaException):  # a partition that went to another member
            consumer.store_offsets(
                offsets=[TopicPartition(self.config.topic, *it) for it in sent.items()]
            )
