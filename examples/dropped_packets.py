"""Loss that is seen: packets are dropped on purpose, and each is accounted for in the topic.

MoldUDP64   every fifth packet of a feed never reaches the bridge. It asks the feed's
            server for them: one range comes, another is no longer kept and becomes a gap record.
StatsD      a socket with a small buffer is not read for a while: the kernel drops packets, and
            the number is a record beside the sums.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from millstream import Broker

CONFIG = """
broker = "{broker}"

[mold.in.prices]
listen = "127.0.0.1:{port}"
request = "{requests}"
topic = "prices"

[statsd.app]
listen = "127.0.0.1:0"
topic = "metrics"
interval_seconds = 1
buffer_bytes = 4096
"""
SESSION = b"monday    "
MESSAGES = 100
LOST_FOR_EVER = range(41, 61)  # the server has these no more
PACKETS = 5_000
PATIENCE_SECONDS = 300
HEADER = struct.Struct(">10sQH")


def packet(sequence: int, message: bytes) -> bytes:
    """One message as MoldUDP64."""
    return HEADER.pack(SESSION, sequence, 1) + struct.pack(">H", len(message)) + message


class Feed:
    """A feed that loses every fifth packet, and its re-request server."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.requests = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.answered = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def send(self, port: int) -> None:
        for sequence in range(1, MESSAGES + 1):
            if sequence % 5 and sequence not in LOST_FOR_EVER:
                self._socket.sendto(packet(sequence, b"price %d" % sequence), ("127.0.0.1", port))

    def _serve(self) -> None:
        while True:
            data, address = self._socket.recvfrom(2048)
            _, first, count = HEADER.unpack(data)
            for sequence in range(first, first + count):
                if sequence not in LOST_FOR_EVER:
                    self.answered += 1
                    self._socket.sendto(packet(sequence, b"price %d" % sequence), address)


def start_bridge(stack: ExitStack, file: Path, text: str) -> tuple[subprocess.Popen[str], str]:
    file.write_text(text)
    command = [sys.executable, "-m", "millstream.cli.entry", "bridge", str(file)]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    stack.callback(process.send_signal, signal.SIGCONT)  # a paused process does not end
    assert process.stdout is not None
    return process, process.stdout.readline()


class Topic:
    """The records of a topic, from the beginning on."""

    def __init__(self, address: str, name: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "unused"})
        self._consumer.assign([TopicPartition(name, 0, OFFSET_BEGINNING)])
        self._until = time.monotonic() + PATIENCE_SECONDS

    def read(self) -> list[tuple[bytes | None, bytes]]:
        assert time.monotonic() < self._until, "some packets are neither there nor in a record"
        found = [it for it in self._consumer.consume(1_000, 0.5) if it.error() is None]
        return [(it.key(), it.value() or b"") for it in found]

    def close(self) -> None:
        self._consumer.close()


def follow_feed(feed: Feed, port: int, topic: Topic) -> None:
    feed.send(port)
    received = lost = 0
    while received + lost < MESSAGES - 1:  # the last packet is lost, and nothing comes behind it
        for key, value in topic.read():
            if key == b"millstream.bridge.gap":
                gap = json.loads(value)
                lost += gap["last"] - gap["first"] + 1
                print(f"gap: {gap['first']} to {gap['last']}, {gap['reason']}")
            else:
                received += 1
    print(f"{MESSAGES - 1} messages = {received} received + {lost} in gap records")
    assert lost == len(LOST_FOR_EVER)
    assert feed.answered > 0


def count_metrics(process: subprocess.Popen[str], port: int, topic: Topic) -> None:
    out = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    process.send_signal(signal.SIGSTOP)  # nobody reads the socket
    for _ in range(PACKETS):
        out.sendto(b"hits:1|c", ("127.0.0.1", port))
    process.send_signal(signal.SIGCONT)
    counted = dropped = 0.0
    while counted + dropped < PACKETS:
        for key, value in topic.read():
            body: dict[str, Any] = json.loads(value)
            if key == b"millstream.bridge.loss":
                dropped += body["kernel_drops"]
            else:
                counted += body["value"]
    print(f"{PACKETS} packets = {counted:.0f} counted + {dropped:.0f} dropped by the kernel")
    assert counted + dropped == PACKETS
    assert dropped > 0


def main() -> None:
    with ExitStack() as stack:
        address = stack.enter_context(Broker.start()).bootstrap_servers
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        feed = Feed()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        text = CONFIG.format(broker=address, port=port, requests=feed.requests)
        process, ready = start_bridge(stack, directory / "edge.toml", text)
        prices, metrics = Topic(address, "prices"), Topic(address, "metrics")
        stack.callback(prices.close)
        stack.callback(metrics.close)
        follow_feed(feed, port, prices)
        found = re.search(r"statsd udp://127\.0\.0\.1:(\d+)", ready)
        assert found is not None
        if sys.platform == "linux":  # others do not tell what they dropped
            count_metrics(process, int(found[1]), metrics)


if __name__ == "__main__":
    main()
