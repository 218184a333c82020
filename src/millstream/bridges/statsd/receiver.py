"""A UDP socket for StatsD, read by a thread of its own.

That thread reads many packets with one call and without the GIL (`_packets.PacketRing`), so that
nothing in this process delays it; another parses and aggregates. How many packets the kernel
dropped is exact on Linux (SO_MEMINFO), and is written to the topic as a record; elsewhere it cannot
be measured.
"""

from __future__ import annotations

import logging
import socket
import struct
import threading
import time

from millstream.bridges.config import StatsdConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.shapes import Written
from millstream.bridges.loops import Loop, Part
from millstream.bridges.sending import Sender
from millstream.bridges.statsd._packets import PacketRing
from millstream.bridges.statsd.intervals import Intervals, loss_record, sample_record
from millstream.bridges.statsd.lines import BadLine, parse_line
from millstream.bridges.udp import grow_buffer, kernel_drops
from millstream.errors import MillstreamError
from millstream.metrics.threaded import parse_address

WAIT_MICROSECONDS = 100_000
RING_BYTES = 16 * 1024 * 1024
PACKETS_PER_TURN = 5_000
TURN_SECONDS = 0.002
QUIET_SECONDS = 0.05
_log = logging.getLogger(__name__)


class Receiver(Part):
    """Listens when it is made; reads from `start` to `stop`."""

    def __init__(self, config: StatsdConfig, sender: Sender, counts: Counts) -> None:
        super().__init__()
        self._config = config
        self._sender = sender
        self._counts = counts
        self._intervals = Intervals()
        self._dropped = 0
        self._lock = threading.Lock()
        self._unreported = [0, 0]  # packets the kernel dropped, records the cluster did not take
        self._socket = _bind(config)
        self._ring = PacketRing(RING_BYTES)
        self.address = "{}:{}".format(*self._socket.getsockname()[:2])
        name = f"statsd {config.name}"
        self.loops = [
            Loop(f"{name} socket", self._fill, self._stopping, counts),
            Loop(name, self._run, self._stopping, counts),
        ]

    def start(self) -> None:
        if kernel_drops(self._socket) is None:
            _log.warning(
                "statsd %s: packets dropped by the kernel cannot be counted here", self._config.name
            )
        super().start()

    def stop(self) -> None:
        """Read what the socket has, and write the last interval."""
        self._stopping.set()
        self._ring.stop()
        self.loops[1].join()  # ends when everything is parsed
        self._ring.close()
        self.loops[0].join()
        self._socket.close()

    def _fill(self) -> None:
        self._ring.fill(self._socket.fileno())

    def _run(self) -> None:
        interval = self._config.interval_seconds or 1.0
        began, ends = time.time(), time.monotonic() + interval
        pause = TURN_SECONDS
        while True:
            packets = self._take_some()
            is_last = self._stopping.is_set() and self._ring.is_over
            if is_last or time.monotonic() >= ends:
                now = time.time()
                self._finish(int(began * 1000), int(now * 1000))
                began, ends = now, time.monotonic() + interval
            if is_last:
                return
            if packets < PACKETS_PER_TURN:
                pause = TURN_SECONDS if packets else min(2 * pause, QUIET_SECONDS)
                time.sleep(pause)

    def _take_some(self) -> int:
        """Take packets from the ring; returns how many."""
        recurring = self._intervals.recurring if self._config.interval_seconds else None
        packets, samples = self._ring.drain(recurring, self._take, PACKETS_PER_TURN)
        if packets:
            self._counts.add("statsd_packets", packets, port=self._config.name)
            self._counts.add("statsd_samples", samples, port=self._config.name)
        return packets

    def _take(self, line: bytes) -> int:
        """Take the samples of a line; returns how many they are."""
        try:
            if self._config.interval_seconds:
                return self._intervals.add_line(line)
            samples = parse_line(line)
        except BadLine as bad:
            self._counts.add("statsd_bad_lines", port=self._config.name, reason=str(bad))
            return 0
        for sample in samples:
            self._sender.send(self._config.topic, sample_record(sample, 0), self._done)
        return len(samples)

    def _finish(self, from_ms: int, to_ms: int) -> None:
        """Write the interval, and what was lost in it."""
        records = self._intervals.finish(from_ms, to_ms)
        dropped = kernel_drops(self._socket)
        if dropped is not None and dropped != self._dropped:
            lost = (dropped - self._dropped) % 2**32
            self._dropped = dropped
            self._counts.add("statsd_kernel_drops", lost, port=self._config.name)
            self._note_loss(lost, 0)
        for record in records:
            self._sender.send(self._config.topic, record, self._done)
        self._report_loss(from_ms, to_ms)

    def _done(self, written: Written) -> None:
        if written.error is not None:
            self._note_loss(0, 1)

    def _note_loss(self, dropped: int, refused: int) -> None:
        with self._lock:
            self._unreported[0] += dropped
            self._unreported[1] += refused

    def _report_loss(self, from_ms: int, to_ms: int) -> None:
        """Write what was lost; with the next interval if the cluster does not take that either."""
        with self._lock:
            (dropped, refused), self._unreported = self._unreported, [0, 0]
        if not dropped and not refused:
            return

        def done(written: Written) -> None:
            if written.error is not None:
                self._note_loss(dropped, refused)

        record = loss_record(self._config.name, dropped, from_ms, to_ms, refused)
        self._sender.send(self._config.topic, record, done)


def _bind(config: StatsdConfig) -> socket.socket:
    host, port = parse_address(config.listen)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        bound = socket.socket(found[0], socket.SOCK_DGRAM)
        try:
            given = grow_buffer(bound, config.buffer_bytes)
            wait = struct.pack("ll", 0, WAIT_MICROSECONDS)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
            bound.bind(found[4])
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise MillstreamError(f"statsd {config.name}: {config.listen}: {error.strerror}") from error
    if given < config.buffer_bytes:
        _log.warning(
            "statsd %s: the kernel gives %d bytes of buffer, not %d; raise net.core.rmem_max",
            config.name, given, config.buffer_bytes,
        )  # fmt: skip
    return bound
