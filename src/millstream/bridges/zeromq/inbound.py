"""A SUB or PULL socket to one partition of a topic, in the order in which messages come.

Records of numbered messages have the headers `zmq-sender` and `zmq-sequence`; what is missing
between them is a record with the key `millstream.bridge.gap`. A foreign sender numbers nothing:
its records have no number, and a record with the key `millstream.bridge.loss` says that loss is
unknown.

Memory is bounded: while many records wait for the cluster, or one has to be sent again, the socket
is not read. Then a PUSH socket at the other end waits, and a PUB socket drops, which is seen as a
gap. What the cluster does not take for now is sent again. Too large, or not valid, may be another
record of the same batch: so such a record is sent again alone, and given up as a gap only if it is
refused then, too.

Messages are read until nothing is left, and sent in batches, with little work for each: what is
counted for each is counted without a lock, and records are plain tuples.
"""

from __future__ import annotations

import json
import logging
import time
from collections import Counter, deque
from collections.abc import Mapping
from typing import Any

import zmq
from confluent_kafka import KafkaError

from millstream.admin.outgoing import Outgoing
from millstream.bridges.config import ZeromqInConfig
from millstream.bridges.counts import Counts
from millstream.bridges.sending import Sender, status_of
from millstream.bridges.tail import last_headers
from millstream.bridges.zeromq.frames import (
    BadMessage,
    Foreign,
    Heartbeat,
    Numbered,
    parse_frames,
)
from millstream.bridges.zeromq.numbers import Gap, Numbers
from millstream.bridges.zeromq.sockets import Stream

SENDER, SEQUENCE, FRAME = "zmq-sender", "zmq-sequence", "zmq-frame"
GAP_KEY, LOSS_KEY, LOSS = b"millstream.bridge.gap", b"millstream.bridge.loss", "millstream-loss"
MESSAGES_PER_TURN = 500
TURN_SECONDS = 0.02
ALONE_SECONDS = 0.002
AGAIN_SECONDS = 0.5
LAST_SECONDS = 1.0  # for what is in the socket when the bridge stops
WAITING_RECORDS_MAX = 10_000
WAITING_BYTES_MAX = 16 * 1024 * 1024
TAIL_RECORDS = 1_000
FOREIGN = "the sender does not number its messages"
SHARED = "other receivers get messages of the same senders"
_REFUSED = (413, 422)
_log = logging.getLogger(__name__)


def record_of(found: Numbered | Foreign | Gap, partition: int) -> Outgoing:
    """The record of a message, or of a gap."""
    if isinstance(found, Foreign):
        return Outgoing(found.value, found.key, [(FRAME, it) for it in found.between], partition)
    number = found.last if isinstance(found, Gap) else found.number
    headers: list[tuple[str, bytes | None]] = [
        (SENDER, found.sender.hex().encode()),
        (SEQUENCE, str(number).encode()),
    ]
    if isinstance(found, Numbered):
        return Outgoing(found.value, found.key, headers, partition)
    body = {
        "sender": found.sender.hex(),
        "first": found.first,
        "last": found.last,
        "reason": found.reason,
    }
    return Outgoing(json.dumps(body).encode(), GAP_KEY, headers, partition)


def loss_record(name: str, lost: int | None, reason: str, partition: int) -> Outgoing:
    """Messages without a number that are lost; None: nobody knows how many."""
    shown = "unknown" if lost is None else lost
    body = {"bridge": name, "lost": shown, "reason": reason}
    return Outgoing(json.dumps(body).encode(), LOSS_KEY, [(LOSS, str(shown).encode())], partition)


def last_numbers(settings: Mapping[str, Any], topic: str, partition: int) -> dict[bytes, int]:
    """The last number of each sender in the last records of the topic."""
    found: dict[bytes, int] = {}
    for headers in last_headers(settings, topic, partition, TAIL_RECORDS):
        try:
            sender, number = bytes.fromhex(headers[SENDER].decode()), int(headers[SEQUENCE])
        except (KeyError, ValueError):
            continue  # of something else
        found[sender] = max(number, found.get(sender, 0))
    return found


class Inbound(Stream):
    """Receives from `start` to `stop`. What the socket has then is read, too."""

    def __init__(
        self, config: ZeromqInConfig, settings: Mapping[str, Any], sender: Sender, counts: Counts
    ) -> None:
        self._numbers = Numbers(last_numbers(settings, config.topic, config.partition))
        super().__init__(config, counts)
        self.config = config
        self._sender = sender
        self._said: set[str] = set()  # why loss is unknown
        self._tally: Counter[str] = Counter()
        # What waits for the cluster: the loop counts what it sends, the producer's thread what is
        # settled. Nobody else writes these, so they need no lock.
        self._sent = self._sent_bytes = 0
        self._settled = self._settled_bytes = 0
        self._count_written = counts.series("records_in", topic=config.topic)
        self._is_alone = False  # a record is with the producer alone
        self._again: deque[Outgoing] = deque()
        self._alone: deque[Outgoing] = deque()
        self._refused: deque[tuple[Outgoing, str]] = deque()
        self._error: str | None = None

    @property
    def problem(self) -> str | None:
        error = self._error
        return None if error is None else f"zeromq {self._name}: {self.config.topic}: {error}"

    def _run(self) -> None:
        tried, is_paused = 0.0, False
        while not self._stopping.is_set():
            if self._is_full(0.5 if is_paused else 1.0):
                if not is_paused:
                    self._counts.add("zeromq_pauses", stream=self._name)
                is_paused = True
                self._stopping.wait(ALONE_SECONDS if self._alone else TURN_SECONDS)
            else:
                is_paused = False
                if self._socket.poll(int(TURN_SECONDS * 1000)):
                    self._read()
            self._give_up()
            self._count()
            if self._alone and self._sent == self._settled:
                self._is_alone = True
                self._write([self._alone.popleft()])
            if self._again and time.monotonic() - tried >= AGAIN_SECONDS:
                tried = time.monotonic()
                self._send_again()
        until = time.monotonic() + LAST_SECONDS
        while not self._is_full() and self._read() and time.monotonic() < until:
            pass
        self._again.extend(self._alone)
        self._send_again()
        self._give_up()
        self._count()

    def _read(self) -> bool:
        """Read some messages, and send their records. Whether there may be more."""
        records: list[Outgoing] = []
        size, more = 0, True
        room = self._room()
        try:
            while len(records) < MESSAGES_PER_TURN and size < room:
                found = self._take(self._receive())
                for record in found:
                    size += len(record.value or b"")
                records += found
        except zmq.Again:
            more = False
        finally:
            self._write(records, size)  # also if the next message made the loop fail
        return more

    def _receive(self) -> list[bytes]:
        """The frames of a message. As `recv_multipart`, which takes half as long again, because it
        asks the socket after each frame whether there are more. Raises `zmq.Again`."""
        frame = self._socket.recv(zmq.NOBLOCK, copy=False)
        found = [frame.bytes]
        while frame.more:
            frame = self._socket.recv(copy=False)
            found.append(frame.bytes)
        return found

    def _room(self) -> int:
        """How many bytes may still be read."""
        return WAITING_BYTES_MAX - (self._sent_bytes - self._settled_bytes)

    def _take(self, frames: list[bytes]) -> list[Outgoing]:
        """The records of a message: what is missing before it, and the message."""
        self._tally["zeromq_messages"] += 1
        try:
            found = parse_frames(frames)
        except BadMessage as bad:
            self._counts.add("zeromq_bad_messages", stream=self._name, reason=str(bad))
            return []
        records: list[Outgoing] = []
        if isinstance(found, Foreign):
            self._tally["zeromq_unnumbered"] += 1
            records += self._say_unknown(FOREIGN)
        elif self.config.shared:
            records += self._say_unknown(SHARED)
        else:
            records += self._compare(found)
        if not isinstance(found, Heartbeat):
            records.append(record_of(found, self.config.partition))
        return records

    def _compare(self, found: Numbered | Heartbeat) -> list[Outgoing]:
        late = self._numbers.late
        if isinstance(found, Heartbeat):
            gap = self._numbers.hear(found.sender, found.next)
        else:
            gap = self._numbers.take(found.sender, found.number)
        if self._numbers.late != late:
            self._tally["zeromq_late"] += 1
        if gap is None:
            return []
        self._counts.add("zeromq_lost", gap.lost, stream=self._name, reason=gap.reason)
        return [record_of(gap, self.config.partition)]

    def _say_unknown(self, reason: str) -> list[Outgoing]:
        """Once in each run."""
        if reason in self._said:
            return []
        self._said.add(reason)
        _log.warning("zeromq %s: loss is unknown: %s", self._name, reason)
        return [loss_record(self._name, None, reason, self.config.partition)]

    def _write(self, records: list[Outgoing], size: int | None = None) -> None:
        """`size` is that of their values, if it is known."""
        self._sent += len(records)
        if size is None:
            size = sum(len(it.value or b"") for it in records)
        self._sent_bytes += size
        refused = self._sender.send_many(self.config.topic, records, self._delivered)
        for record, error in refused:
            self._sent -= 1
            self._sent_bytes -= len(record.value or b"")
            self._put_back(record, error)

    def _delivered(self, record: Outgoing, error: KafkaError | None, _: Any) -> None:
        """Called by the producer's thread."""
        if error is None:
            self._count_written()
            self._is_alone = False
            self._error = None
        else:
            self._put_back(record, error)
        self._settled_bytes += len(record.value or b"")
        self._settled += 1

    def _put_back(self, record: Outgoing, error: KafkaError) -> None:
        """Keep a record that was not taken: to be sent again, alone, or to be given up."""
        is_alone, self._is_alone = self._is_alone, False
        if status_of(error) not in _REFUSED:
            self._error = error.str()
            self._again.append(record)
        elif not is_alone:
            self._alone.append(record)
        else:
            self._refused.append((record, error.str()))

    def _is_full(self, part: float = 1.0) -> bool:
        return (
            self._sent - self._settled >= WAITING_RECORDS_MAX * part
            or self._sent_bytes - self._settled_bytes >= WAITING_BYTES_MAX * part
            or bool(self._alone or self._again or self._is_alone)
        )

    def _send_again(self) -> None:
        self._write([self._again.popleft() for _ in range(len(self._again))])

    def _count(self) -> None:
        for name, amount in self._tally.items():
            self._counts.add(name, amount, stream=self._name)
        self._tally.clear()

    def _give_up(self) -> None:
        """Write what the cluster refused as a gap, or as a loss where there are no numbers."""
        while self._refused:
            record, error = self._refused.popleft()
            reason = f"refused by the cluster: {error}"
            self._counts.add("records_refused", topic=self.config.topic)
            if record.key in (GAP_KEY, LOSS_KEY):
                _log.error("zeromq %s: a record of a loss was refused: %s", self._name, error)
                continue
            self._counts.add("zeromq_lost", stream=self._name, reason="refused by the cluster")
            headers = dict(record.headers)
            if SEQUENCE in headers:
                sender = bytes.fromhex((headers[SENDER] or b"").decode())
                number = int(headers[SEQUENCE] or b"")
                gap = Gap(sender, number, number, reason)
                self._write([record_of(gap, self.config.partition)])
            else:
                self._write([loss_record(self._name, 1, reason, self.config.partition)])
