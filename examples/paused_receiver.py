"""Loss that is seen: a ZeroMQ subscriber is paused, and its publisher drops messages without an
error. Each message is in the copy of the topic, or in a gap record there."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from urllib.request import urlopen

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

from millstream import Broker

OUT = """
name = "publisher"
broker = "{broker}"
metrics = "127.0.0.1:0"

[zeromq.out.ticks]
type = "pub"
bind = ["tcp://127.0.0.1:*"]
topic = "ticks"
start = "earliest"
hwm = 100
"""
IN = """
name = "subscriber"
broker = "{broker}"

[zeromq.in.copy]
type = "sub"
connect = ["{address}"]
topic = "copy"
hwm = 100
"""
NUMBER = 3_000
TICK = b"x" * 10_000
PATIENCE_SECONDS = 300


class Copy:
    """What is in the topic that was copied: messages, and messages that are known to be lost."""

    def __init__(self, address: str) -> None:
        self.received = self.lost = 0
        self._consumer = Consumer({"bootstrap.servers": address, "group.id": "unused"})
        self._consumer.assign([TopicPartition("copy", 0, OFFSET_BEGINNING)])

    def read(self) -> None:
        for record in self._consumer.consume(1_000, 0.5):
            if record.error() is not None:
                continue
            if record.key() == b"millstream.bridge.gap":
                gap = json.loads(record.value() or b"")
                self.lost += gap["last"] - gap["first"] + 1
                print(f"gap: {gap['first']} to {gap['last']}, {gap['reason']}")
            else:
                self.received += 1

    def close(self) -> None:
        self._consumer.close()


def bridge(stack: ExitStack, file: Path, text: str) -> tuple[subprocess.Popen[str], str]:
    """A running bridge, and what it says when it is ready."""
    file.write_text(text)
    command = [sys.executable, "-m", "millstream.cli.entry", "bridge", str(file)]
    process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(process.terminate)
    stack.callback(process.send_signal, signal.SIGCONT)  # a paused process does not end
    assert process.stdout is not None
    return process, process.stdout.readline()


def sent(metrics: str) -> int:
    """How many records the publisher has sent."""
    text = urlopen(metrics).read().decode()
    found = re.search(r"millstream_bridge_records_out_total\S* (\d+)", text)
    return int(found[1]) if found else 0


def main() -> None:
    with ExitStack() as stack:
        broker = stack.enter_context(Broker.start())
        address = broker.bootstrap_servers
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _, ready = bridge(stack, directory / "out.toml", OUT.format(broker=address))
        publishes, metrics = re.findall(r"(tcp://[\d.:]+)", ready)[0], ready.split()[-1]
        config = IN.format(broker=address, address=publishes)
        subscriber, _ = bridge(stack, directory / "in.toml", config)
        producer, copy, number = Producer({"bootstrap.servers": address}), Copy(address), 0
        stack.callback(copy.close)
        until = time.monotonic() + PATIENCE_SECONDS
        while not copy.received:  # what was sent before it subscribed is a gap, too
            assert time.monotonic() < until, "the subscriber received nothing"
            producer.produce("ticks", TICK)
            producer.flush()
            number += 1
            copy.read()

        subscriber.send_signal(signal.SIGSTOP)
        for _ in range(NUMBER):
            producer.produce("ticks", TICK)
        producer.flush()
        number += NUMBER
        while sent(metrics) < number:
            assert time.monotonic() < until, "not everything was sent"
            time.sleep(0.1)
        subscriber.send_signal(signal.SIGCONT)

        while copy.received + copy.lost < number:
            assert time.monotonic() < until, "some messages are neither there nor in a gap"
            copy.read()
        print(f"{number} sent = {copy.received} received + {copy.lost} in gap records")
        assert copy.received + copy.lost == number
        assert copy.lost > 0


if __name__ == "__main__":
    main()
