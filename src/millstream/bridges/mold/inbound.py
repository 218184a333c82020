"""A stream of MoldUDP64 to a topic, in the order of its sequence numbers.

Records have headers `mold-session` and `mold-sequence`. What did not come is a record with the key
`millstream.bridge.gap`; so is what the cluster did not take, as soon as it takes records again.
After a restart, the stream is continued after its last record in the topic: what came meanwhile is
asked for.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from millstream.admin.outgoing import Outgoing
from millstream.bridges.config import MoldInConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.shapes import Written
from millstream.bridges.loops import Loop, Part
from millstream.bridges.mold.gaps import Gap, Message, Ordered
from millstream.bridges.mold.packets import BadPacket, Request, encode_request, parse_packet
from millstream.bridges.mold.sockets import receiving
from millstream.bridges.sending import Sender
from millstream.bridges.tail import last_headers
from millstream.metrics.threaded import parse_address

PACKET_BYTES_MAX = 65_536
PACKETS_PER_TURN = 256
TURN_SECONDS = 0.005
REPORT_SECONDS = 1.0
REFUSED_MAX = 10_000  # ranges
LOOKED_BACK = (100, 10_000)  # offsets at the end of the topic
PARTITION = 0
SESSION, SEQUENCE, GAP_KEY = "mold-session", "mold-sequence", b"millstream.bridge.gap"


def record_of(found: Message | Gap, position: tuple[bytes, int] | None = None) -> Outgoing:
    """The record of a message, or of a gap. `position`: where the stream is, if that is not where
    the gap is."""
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
    session, last = position or (found.session, found.last)
    headers = [(SESSION, session), (SEQUENCE, str(last).encode())]
    return Outgoing(json.dumps(body).encode(), GAP_KEY, headers, PARTITION)


def last_position(settings: Mapping[str, Any], topic: str) -> tuple[bytes | None, int | None]:
    """Session and sequence of the last record in the topic. Raises `MillstreamError` if it cannot
    be read: to continue anywhere would hide what is missing."""
    for count in LOOKED_BACK:
        # The last offset may be of a transaction's marker, or of a record that is no longer there.
        for headers in reversed(last_headers(settings, topic, PARTITION, count)):
            if SESSION in headers and SEQUENCE in headers:
                return headers[SESSION], int(headers[SEQUENCE])
    return None, None


class Inbound(Part):
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
        super().__init__()
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
        self._lock = threading.Lock()
        self._refused: list[Gap] = []  # what the cluster did not take
        self._report_at = 0.0
        self.loops = [Loop(f"mold {config.name}", self._run, self._stopping, counts)]

    def _close(self) -> None:
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
            self._report(now)

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
            refused, strays = self._ordered.refused, self._ordered.strays
            self._write(self._ordered.take(packet, time.monotonic()))
            if self._ordered.refused > refused:
                reason = "implausible sequence"
                self._counts.add("mold_bad_packets", stream=self._config.name, reason=reason)
            if self._ordered.strays > strays:
                reason = "only packet of its session"
                self._counts.add("mold_bad_packets", stream=self._config.name, reason=reason)

    def _ask(self, now: float) -> None:
        for first, count in self._ordered.requests(now):
            self._counts.add("mold_requests", stream=self._config.name)
            if self._config.request is not None and self._ordered.session is not None:
                request = encode_request(Request(self._ordered.session, first, count))
                # While the network is down, it is asked again until the gap is given up.
                with contextlib.suppress(OSError):
                    self._answers.sendto(request, parse_address(self._config.request))

    def _write(self, found: list[Message | Gap]) -> None:
        for one in found:
            if isinstance(one, Gap):
                number = one.last - one.first + 1
                self._counts.add("mold_lost", number, stream=self._config.name)
            elif not one.data and self._config.skip_empty:
                continue  # an offset of another bridge's topic that has no record
            self._sender.send(self._config.topic, record_of(one), partial(self._done, one))

    def _done(self, one: Message | Gap, written: Written) -> None:
        """Called in the sender's thread, in most cases."""
        if written.error is None:
            return
        if isinstance(one, Message):
            self._counts.add("mold_lost", stream=self._config.name)
            reason = f"not written: {written.error}"
            one = Gap(one.session, one.sequence, one.sequence, reason)
        with self._lock:
            before = self._refused[-1] if self._refused else None
            if (
                before is not None
                and before.session == one.session
                and (one.first == before.last + 1 or len(self._refused) >= REFUSED_MAX)
            ):
                first, last = min(one.first, before.first), max(one.last, before.last)
                self._refused[-1] = Gap(one.session, first, last, before.reason)
            else:
                self._refused.append(one)

    def _report(self, now: float) -> None:
        """Write what the cluster did not take as gaps, so that readers see it; again and again
        while it takes nothing."""
        if not self._refused or now < self._report_at or self._ordered.session is None:
            return
        self._report_at = now + REPORT_SECONDS
        with self._lock:
            gaps, self._refused = self._refused, []
        assert self._ordered.expected is not None
        position = self._ordered.session, self._ordered.expected - 1
        for gap in gaps:
            self._sender.send(
                self._config.topic, record_of(gap, position), partial(self._done, gap)
            )
