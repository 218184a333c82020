"""A SUB or PULL socket to one partition of a topic, in the order in which messages come.

Records of numbered messages have the headers `zmq-sender` and `zmq-sequence`; what is missing
between them is a record with the key `millstream.bridge.gap`. A foreign sender numbers nothing:
its records have no number, and a record with the key `millstream.bridge.loss` says that loss is
unknown.

Memory is bounded: when many records wait for the cluster, the socket is not read. Then a PUSH
socket at the other end waits, and a PUB socket drops, which is seen as a gap. What the cluster does
not take for now is sent again. Too large, or not valid, may be another record of the same batch: so
such a record is sent again alone, and given up as a gap only if it is refused then, too.

The socket's descriptor is edge-triggered: each time, it is read until nothing is left.
"""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import zmq

from millstream.admin.outgoing import Outgoing
from millstream.bridges.config import ZeromqInConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.shapes import Written
from millstream.bridges.sending import Sender
from millstream.bridges.tail import last_headers
from millstream.bridges.zeromq.frames import (
    BadMessage,
    Foreign,
    Heartbeat,
    Numbered,
    parse_frames,
)
from millstream.bridges.zeromq.numbers import Gap, Numbers
from millstream.bridges.zeromq.sockets import address_of, close, opened

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


class Waiting(NamedTuple):
    """A record that the cluster has not acknowledged, and the message that it has."""

    record: Outgoing
    message: Numbered | Foreign | None = None
    is_alone: bool = False  # in its batch

    @property
    def size(self) -> int:
        return len(self.record.key or b"") + len(self.record.value or b"")


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


class Inbound:
    """Listens when it is made; receives from `start` to `stop`."""

    def __init__(
        self, config: ZeromqInConfig, settings: Mapping[str, Any], sender: Sender, counts: Counts
    ) -> None:
        self.config = config
        self._sender = sender
        self._counts = counts
        self._numbers = Numbers(last_numbers(settings, config.topic, config.partition))
        self._said: set[str] = set()  # why loss is unknown
        self._tally: Counter[str] = Counter()
        self._lock = threading.Lock()
        self._records = self._bytes = 0  # waiting for the cluster
        self._sent = 0  # of these, with the producer
        self._again: deque[Waiting] = deque()
        self._alone: deque[Waiting] = deque()
        self._refused: deque[tuple[Waiting, str]] = deque()
        self.problem: str | None = None
        self._is_paused = self._is_scheduled = False
        self._socket = opened(config)
        self.address = address_of(self._socket)
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name=f"bridge-zeromq-{config.name}", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Read what the socket has, and stop."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        close(self._socket)

    def _run(self) -> None:
        import uvloop  # only where it is used

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._receive())

    async def _receive(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_reader(self._socket.FD, self._drain)
        self._drain()  # what came before
        tried = 0.0
        while not self._stopping.is_set():
            await asyncio.sleep(ALONE_SECONDS if self._alone else TURN_SECONDS)
            self._give_up()
            if self._alone and not self._sent:
                self._send(self._alone.popleft())
            if self._again and time.monotonic() - tried >= AGAIN_SECONDS:
                tried = time.monotonic()
                self._send_again()
            if self._is_paused and not self._is_full(0.5):
                self._is_paused = False
                loop.add_reader(self._socket.FD, self._drain)
                self._drain()
        if not self._is_paused:
            loop.remove_reader(self._socket.FD)
        until = time.monotonic() + LAST_SECONDS
        while self._read() and time.monotonic() < until:
            pass
        self._again.extend(self._alone)
        self._send_again()
        self._give_up()

    def _drain(self) -> None:
        """Read until nothing is left; others of the loop have their turn in between."""
        self._is_scheduled = False
        if self._is_paused:
            return
        loop = asyncio.get_running_loop()
        if self._is_full():
            self._is_paused = True
            loop.remove_reader(self._socket.FD)  # it would be ready all the time
            self._counts.add("zeromq_pauses", stream=self.config.name)
        elif self._read() and not self._is_scheduled:
            self._is_scheduled = True
            loop.call_soon(self._drain)

    def _read(self) -> bool:
        """Read some messages. Whether there may be more."""
        more = True
        try:
            for _ in range(MESSAGES_PER_TURN):
                if self._is_full():
                    break
                self._take(self._socket.recv_multipart(zmq.NOBLOCK))
        except zmq.Again:
            more = False
        for name, amount in self._tally.items():
            self._counts.add(name, amount, stream=self.config.name)
        self._tally.clear()
        return more

    def _take(self, frames: list[bytes]) -> None:
        self._tally["zeromq_messages"] += 1
        try:
            found = parse_frames(frames)
        except BadMessage as bad:
            self._counts.add("zeromq_bad_messages", stream=self.config.name, reason=str(bad))
            return
        if isinstance(found, Foreign):
            self._tally["zeromq_unnumbered"] += 1
            self._say_unknown(FOREIGN)
        elif self.config.shared:
            self._say_unknown(SHARED)
        else:
            self._compare(found)
        if not isinstance(found, Heartbeat):
            self._write(Waiting(record_of(found, self.config.partition), found))

    def _compare(self, found: Numbered | Heartbeat) -> None:
        late = self._numbers.late
        if isinstance(found, Heartbeat):
            gap = self._numbers.hear(found.sender, found.next)
        else:
            gap = self._numbers.take(found.sender, found.number)
        self._tally["zeromq_late"] += self._numbers.late - late
        if gap is not None:
            self._write_gap(gap, gap.reason)

    def _write_gap(self, gap: Gap, kind: str) -> None:
        self._counts.add("zeromq_lost", gap.lost, stream=self.config.name, reason=kind)
        self._write(Waiting(record_of(gap, self.config.partition)))

    def _say_unknown(self, reason: str) -> None:
        """Once in each run."""
        if reason not in self._said:
            self._said.add(reason)
            name = self.config.name
            _log.warning("zeromq %s: loss is unknown: %s", name, reason)
            self._write(Waiting(loss_record(name, None, reason, self.config.partition)))

    def _write(self, waiting: Waiting) -> None:
        with self._lock:
            self._records += 1
            self._bytes += waiting.size
        self._send(waiting)

    def _send(self, waiting: Waiting) -> None:
        with self._lock:
            self._sent += 1
        self._sender.send(self.config.topic, waiting.record, partial(self._done, waiting))

    def _done(self, waiting: Waiting, written: Written) -> None:
        """Called by the producer's thread, or at once."""
        is_settled = False
        if written.error is None:
            self.problem = None
            is_settled = True
        elif written.status not in _REFUSED:
            self.problem = f"zeromq {self.config.name}: {self.config.topic}: {written.error}"
            self._again.append(waiting)
        elif not waiting.is_alone:
            self._alone.append(waiting._replace(is_alone=True))
        else:
            self._refused.append((waiting, written.error))
            is_settled = True
        with self._lock:
            self._sent -= 1
            if is_settled:
                self._records -= 1
                self._bytes -= waiting.size

    def _is_full(self, part: float = 1.0) -> bool:
        with self._lock:
            return (
                self._records >= WAITING_RECORDS_MAX * part
                or self._bytes >= WAITING_BYTES_MAX * part
                or bool(self._alone)
            )

    def _send_again(self) -> None:
        for _ in range(len(self._again)):
            self._send(self._again.popleft())

    def _give_up(self) -> None:
        """Write what the cluster refused as a gap, or as a loss where there are no numbers."""
        while self._refused:
            waiting, error = self._refused.popleft()
            message = waiting.message
            reason, name = f"refused by the cluster: {error}", self.config.name
            if isinstance(message, Numbered):
                gap = Gap(message.sender, message.number, message.number, reason)
                self._write_gap(gap, "refused by the cluster")
            elif isinstance(message, Foreign):
                kind = "refused by the cluster"
                self._counts.add("zeromq_lost", stream=name, reason=kind)
                self._write(Waiting(loss_record(name, 1, reason, self.config.partition)))
            else:
                _log.error("zeromq %s: a record of a loss was refused: %s", name, error)
