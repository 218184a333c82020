"""Bridges under load, each as a process of its own: what one core carries, and what is lost.

statsd    a sender in C is to send 200,000 packets a second, one sample in each: counters, gauges,
          timings of 1,000 series. Lost is what the kernel dropped for the bridge's socket. Packets
          per CPU second are counted over all threads of the bridge.
samples   the same with `interval_seconds = 0`: each sample is a record. The cluster is the limit,
          so fewer are sent. Refused is what the cluster did not take.
zeromq    numbered messages of 100 bytes, as fast as the bridge takes them, each a durable record
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import psutil
import zmq
from tests.peers.c_programs import udp_sender

from benchmarks.measurement import Measurement
from benchmarks.targets import Scale, Target, create_topic
from millstream.bridges.zeromq.frames import SENDER_BYTES, Numbered, encode_numbered

PACKETS, PACKETS_PER_SECOND, SERIES = 1_000_000, 200_000, 1_000
SAMPLES, SAMPLES_PER_SECOND = 100_000, 20_000
MESSAGES, MESSAGE_BYTES = 200_000, 100
PATIENCE_SECONDS = 120
BRIDGE = """
broker = "{broker}"
metrics = "127.0.0.1:0"

[statsd.app]
listen = "127.0.0.1:0"
topic = "{topic}"
interval_seconds = 1

[statsd.samples]
listen = "127.0.0.1:0"
topic = "{topic}"
interval_seconds = 0

[zeromq.in.app]
type = "pull"
bind = ["tcp://127.0.0.1:*"]
topic = "{topic}"
"""


def run(targets: Sequence[Target], scale: Scale) -> Iterator[Measurement]:
    statsd = [
        Measurement("statsd, sent", "packets/s", "higher is better"),
        Measurement("statsd, lost", "packets", "lower is better"),
        Measurement("statsd, one core", "packets per CPU second", "higher is better"),
    ]
    samples = [
        Measurement("statsd samples, sent", "packets/s", "higher is better"),
        Measurement("statsd samples, lost or refused", "packets", "lower is better"),
        Measurement("statsd samples, one core", "packets per CPU second", "higher is better"),
    ]
    zeromq = Measurement("zeromq, one core", "messages per CPU second", "higher is better")
    for _ in range(scale.rounds):
        for target in (it for it in targets if it.name != "null"):
            topic = create_topic(target, partitions=1)
            with running_bridge(target.bootstrap, topic) as bridge:
                for port, found, number, per_second in (
                    (0, statsd, scale.of(PACKETS), PACKETS_PER_SECOND),
                    (1, samples, scale.of(SAMPLES), SAMPLES_PER_SECOND),
                ):
                    seconds, cpu, lost = bridge.send_statsd(port, number, per_second)
                    found[0].add(target.name, number / seconds)
                    found[1].add(target.name, lost)
                    found[2].add(target.name, (number - lost) / cpu)
                count = scale.of(MESSAGES)
                zeromq.add(target.name, count / bridge.send_zeromq(count))
    yield from statsd
    yield from samples
    yield zeromq


class RunningBridge:
    def __init__(self, process: subprocess.Popen[str], ready: str) -> None:
        self._process = psutil.Process(process.pid)
        self._statsd = re.findall(r"statsd udp://([\d.]+):(\d+)", ready)
        self._zeromq = re.findall(r"tcp://[\d.]+:\d+", ready)[0]
        self._metrics = ready.split()[-1]

    def send_statsd(self, port: int, number: int, per_second: int) -> tuple[float, float, int]:
        """Seconds of the sender, CPU seconds of the bridge, and packets that are not in the topic.
        Waits until all are received or dropped, and what was sent to the cluster is settled."""
        before, seen, lost = self._cpu(), self._seen(), self._lost()
        settled = self._settled()
        given = [str(it) for it in (number, per_second, SERIES)]
        done = subprocess.run(
            [str(udp_sender()), "statsd", *self._statsd[port], *given],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        self._wait(lambda: self._seen() - seen >= number)
        if port:  # a record for each packet that was received
            dropped = self._counted("kernel_drops")
            self._wait(lambda: self._settled() - settled >= number - dropped)
        return float(done.stdout), self._cpu() - before, self._lost() - lost

    def _seen(self) -> int:
        return self._counted("statsd_packets") + self._counted("kernel_drops")

    def _settled(self) -> int:
        return self._counted("records_in") + self._counted("records_refused")

    def _lost(self) -> int:
        return self._counted("kernel_drops") + self._counted("records_refused")

    def send_zeromq(self, number: int) -> float:
        """CPU seconds of the bridge."""
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        out = context.socket(zmq.PUSH)
        out.connect(self._zeromq)
        sender, value = os.urandom(SENDER_BYTES), b"x" * MESSAGE_BYTES
        before, written = self._cpu(), self._counted("records_in")
        for each in range(number):
            out.send_multipart(encode_numbered(Numbered(sender, each, b"key", value)))
        self._wait(lambda: self._counted("records_in") - written >= number)
        used = self._cpu() - before
        context.destroy(0)
        return used

    def _cpu(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def _counted(self, name: str) -> int:
        text = urlopen(self._metrics).read().decode()
        found = re.findall(rf"^millstream_bridge_\w*{name}_total\S* (\d+)", text, re.MULTILINE)
        return sum(int(it) for it in found)

    def _wait(self, condition: object) -> None:
        assert callable(condition)
        until = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < until, "the bridge does not account for what was sent"
            time.sleep(0.1)


@contextmanager
def running_bridge(broker: str, topic: str) -> Iterator[RunningBridge]:
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "bridge.toml"
        file.write_text(BRIDGE.format(broker=broker, topic=topic))
        command = [sys.executable, "-m", "millstream.cli.entry", "bridge", str(file)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield RunningBridge(process, process.stdout.readline())
            finally:
                process.terminate()
