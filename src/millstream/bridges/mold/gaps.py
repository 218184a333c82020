"""The messages of a stream in order: what is missing, what to ask for, what is given up.

Pure: packets, requests and time come in, messages and gaps go out. A gap is asked for after a
moment, because packets may only be out of order; then again and again; after a time it is given up
and reported. What waits behind a gap is bounded.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from typing import NamedTuple

from millstream.bridges.mold.packets import Packet

REORDER_SECONDS = 0.005
AGAIN_SECONDS = 0.05
GIVE_UP_SECONDS = 2.0
WAITING_MAX = 100_000
WAITING_BYTES_MAX = 64 * 1024 * 1024
ASKED_MAX = 1_000  # messages of one request
GAPS_ASKED_MAX = 64  # at a time
LOOKED_AT_MAX = 10_000  # messages that wait behind the first gap
SESSIONS_KEPT = 16
JUMP_MAX = 10_000_000  # messages; one packet further on is not believed


class Message(NamedTuple):
    session: bytes
    sequence: int
    data: bytes


class Gap(NamedTuple):
    """Messages that did not come."""

    session: bytes
    first: int
    last: int
    reason: str


class Ordered:
    """The state of one stream."""

    def __init__(self, session: bytes | None = None, expected: int | None = None) -> None:
        """Continues after what was received before, if that is known."""
        self.session = session
        self.expected = expected
        self.repeated = 0
        self.refused = 0  # packets with a number that cannot be
        self._suspect: int | None = None  # the number of the last one
        self.strays = 0  # packets of sessions of which nothing else came
        self._held: Packet | None = None  # the first of another session
        self._ended: OrderedDict[bytes, int] = OrderedDict()  # what was expected next in each
        self._waiting: dict[int, tuple[bytes, float]] = {}  # with the time when each came
        self._waiting_bytes = 0
        self._ahead = 0  # the sequence after the last message that is known to exist
        self._missing_since: float | None = None
        self._asked_at: float | None = None

    def take(self, packet: Packet, now: float) -> list[Message | Gap]:
        """What follows from a packet, in order."""
        found: list[Message | Gap] = []
        packets = [packet]
        if packet.session != self.session:
            if packet.sequence + len(packet.messages) <= self._ended.get(packet.session, -1):
                self.repeated += len(packet.messages)  # late, of a session that has ended
                return []
            packets = self._believed(packet)
            if not packets:
                return []
            found += self._begin(packets[0])
        elif self._is_implausible(packet):
            self.refused += 1
            return []
        for each in packets:
            self._keep(each, now)
        found += self._ready(now)
        while len(self._waiting) > WAITING_MAX or self._waiting_bytes > WAITING_BYTES_MAX:
            found += self._skip("too many messages behind it", now)
        return found

    def requests(self, now: float) -> list[tuple[int, int]]:
        """(first, count) of the messages to ask for now: of all gaps, not only of the first, which
        may never come."""
        if self._missing_since is None:
            return []
        if self._asked_at is not None and now < self._asked_at + AGAIN_SECONDS:
            return []
        found = [
            (first, min(end - first, ASKED_MAX))
            for first, end, since in self._gaps()
            if now >= since + REORDER_SECONDS
        ]
        if found:
            self._asked_at = now
        return found

    def _gaps(self) -> list[tuple[int, int, float]]:
        """The first gaps: (first, sequence behind it, since when)."""
        assert self.expected is not None
        assert self._missing_since is not None
        found: list[tuple[int, int, float]] = []
        at = self.expected
        for sequence in heapq.nsmallest(LOOKED_AT_MAX, self._waiting):
            if sequence > at and len(found) < GAPS_ASKED_MAX:
                found.append((at, sequence, self._waiting[sequence][1]))
            at = sequence + 1
        if not self._waiting:
            found.append((at, self._ahead, self._missing_since))
        return found

    def expire(self, now: float) -> list[Message | Gap]:
        """Gives up what has been missing for too long."""
        found: list[Message | Gap] = []
        while self._missing_since is not None and now - self._missing_since >= GIVE_UP_SECONDS:
            found += self._skip("not received in time", now)
        return found

    def _believed(self, packet: Packet) -> list[Packet]:
        """What is known of a session, if its first packet is not the only one: a stray packet would
        end the session that goes on. Sessions that were known before are believed at once."""
        if self.session is None or packet.session in self._ended:
            return [packet]
        held, self._held = self._held, packet
        if held is None:
            return []
        if held.session == packet.session and abs(packet.sequence - held.sequence) <= JUMP_MAX:
            self._held = None
            return [held, packet]
        self.strays += 1
        return []

    def _keep(self, packet: Packet, now: float) -> None:
        assert self.expected is not None
        for sequence, data in enumerate(packet.messages, packet.sequence):
            if sequence < self.expected or sequence in self._waiting:
                self.repeated += 1
            else:
                self._waiting[sequence] = (data, now)
                self._waiting_bytes += len(data)
        self._ahead = max(self._ahead, packet.sequence + len(packet.messages))

    def _begin(self, packet: Packet) -> list[Message | Gap]:
        """Another session: nothing more comes of the one before."""
        found: list[Message | Gap] = []
        while (
            self.session is not None and self.expected is not None and self._ahead > self.expected
        ):
            found += self._skip("the session ended", 0.0)
        first = packet.sequence
        if self.session is not None:
            assert self.expected is not None
            self._ended[self.session] = self.expected
            # The stream has been listened to since before the session began.
            first = self._ended.pop(packet.session, 1)
        while len(self._ended) > SESSIONS_KEPT:
            self._ended.popitem(last=False)
        self.session, self.expected, self._ahead = packet.session, first, first
        self._waiting, self._waiting_bytes, self._suspect = {}, 0, None
        self._missing_since = self._asked_at = None
        return found

    def _is_implausible(self, packet: Packet) -> bool:
        """One packet far ahead is damaged or not of this stream; with a second one behind it, the
        stream has moved on."""
        assert self.expected is not None
        if packet.sequence - max(self.expected, self._ahead) <= JUMP_MAX:
            self._suspect = None
            return False
        before, self._suspect = self._suspect, packet.sequence
        return before is None or not before < packet.sequence <= before + JUMP_MAX

    def _ready(self, now: float) -> list[Message | Gap]:
        """The messages that are next, and the state of the gap behind them."""
        assert self.expected is not None
        assert self.session is not None
        found: list[Message | Gap] = []
        while self.expected in self._waiting:
            data, _ = self._waiting.pop(self.expected)
            self._waiting_bytes -= len(data)
            found.append(Message(self.session, self.expected, data))
            self.expected += 1
        if self.expected >= self._ahead:
            self._missing_since = self._asked_at = None
        elif found or self._missing_since is None:
            # Missing since the message behind it came, not since the gap before it was closed.
            behind = self._waiting.get(self._end_of_gap())
            self._missing_since = now if behind is None else behind[1]
            self._asked_at = None
        return found

    def _skip(self, reason: str, now: float) -> list[Message | Gap]:
        """Give up the gap, and go on behind it."""
        assert self.expected is not None
        assert self.session is not None
        end = self._end_of_gap()
        gap = Gap(self.session, self.expected, end - 1, reason)
        self.expected = end
        self._missing_since = self._asked_at = None
        return [gap, *self._ready(now)]

    def _end_of_gap(self) -> int:
        """The sequence of the first message behind the gap."""
        return min(self._waiting) if self._waiting else self._ahead
