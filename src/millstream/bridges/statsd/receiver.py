"""A UDP socket for StatsD, read by a thread of its own.

A blocking read costs 1.4 us; asyncio's datagrams cost ten times that, and lose packets at 50,000
per second. How many packets the kernel dropped is exact on Linux (SO_MEMINFO), and is written to
the topic as a record; elsewhere it cannot be measured.
"""

from __future__ import annotations

import logging
import socket
import struct
import sys
import threading
import time

from millstream.bridges.config import StatsdConfig
from millstream.bridges.counts import Counts
from millstream.bridges.http.shapes import Written
from millstream.bridges.loops import Loop
from millstream.bridges.sending import Sender
from millstream.bridges.statsd.intervals import Intervals, loss_record, sample_record
from millstream.bridges.statsd.lines import BadLine, parse_line
from millstream.errors import MillstreamError
from millstream.metrics.threaded import parse_address

PACKET_BYTES_MAX = 65_536
WAIT_MICROSECONDS = 100_000
PACKETS_PER_LOOK = 5_000  # at the clock
_SO_MEMINFO = 55
_DROPS = 8  # the ninth number
_log = logging.getLogger(__name__)


def kernel_drops(bound: socket.socket) -> int | None:
    """Packets that the kernel dropped for this socket, or None if it does not tell."""
    if sys.platform != "linux":
        return None
    found = struct.unpack("9I", bound.getsockopt(socket.SOL_SOCKET, _SO_MEMINFO, 36))
    return int(found[_DROPS])


class Receiver:
    """Listens when it is made; reads from `start` to `stop`."""

    def __init__(self, config: StatsdConfig, sender: Sender, counts: Counts) -> None:
        self._config = config
        self._sender = sender
        self._counts = counts
        self._intervals = Intervals()
        self._dropped = 0
        self._lock = threading.Lock()
        self._unreported = [0, 0]  # packets the kernel dropped, records the cluster did not take
        self._stopping = threading.Event()
        self._socket = _bind(config)
        self.address = "{}:{}".format(*self._socket.getsockname()[:2])
        self.loops = [Loop(f"statsd {config.name}", self._run, self._stopping, counts)]

    def start(self) -> None:
        if kernel_drops(self._socket) is None:
            _log.warning(
                "statsd %s: packets dropped by the kernel cannot be counted here", self._config.name
            )
        for loop in self.loops:
            loop.start()

    def stop(self) -> None:
        """Read what the socket has, and write the last interval."""
        self._stopping.set()
        for loop in self.loops:
            loop.join()
        self._socket.close()

    def _run(self) -> None:
        interval = self._config.interval_seconds or 1.0
        began = time.time()
        ends = time.monotonic() + interval
        while True:
            more = self._read_some()
            if time.monotonic() >= ends or (self._stopping.is_set() and not more):
                now = time.time()
                self._finish(int(began * 1000), int(now * 1000))
                began, ends = now, time.monotonic() + interval
                if self._stopping.is_set() and not more:
                    return

    def _read_some(self) -> bool:
        """Read until nothing has come for a moment, or many packets were read.

        Equal lines are counted and parsed once: most are counters that are sent again and again.
        Gauges are not, because their order matters.
        """
        receive, buffer = self._socket.recv_into, bytearray(PACKET_BYTES_MAX)
        view = memoryview(buffer)
        lines: dict[bytes, int] = {}
        packets = samples = 0
        try:
            while packets < PACKETS_PER_LOOK:
                size = receive(buffer)
                packets += 1
                for line in bytes(view[:size]).split(b"\n"):
                    if b"|g" in line:
                        samples += self._take(line, 1)
                    elif line:
                        lines[line] = lines.get(line, 0) + 1
        except BlockingIOError:
            pass
        samples += sum(self._take(line, times) for line, times in lines.items())
        if packets:
            self._counts.add("statsd_packets", packets, port=self._config.name)
            self._counts.add("statsd_samples", samples, port=self._config.name)
        return packets == PACKETS_PER_LOOK

    def _take(self, line: bytes, times: int) -> int:
        """Take the samples of a line that came several times; returns how many they are."""
        taken = 0
        try:
            for sample in parse_line(line):
                if self._config.interval_seconds:
                    self._intervals.add(sample, times)
                else:
                    record = sample_record(sample, 0)
                    for _ in range(times):
                        self._sender.send(self._config.topic, record, self._done)
                taken += times
        except BadLine as bad:
            self._counts.add("statsd_bad_lines", times, port=self._config.name, reason=str(bad))
        return taken

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
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, config.buffer_bytes)
            wait = struct.pack("ll", 0, WAIT_MICROSECONDS)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, wait)
            bound.bind(found[4])
        except BaseException:
            bound.close()
            raise
    except OSError as error:
        raise MillstreamError(f"statsd {config.name}: {config.listen}: {error.strerror}") from error
    return bound
