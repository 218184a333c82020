"""Kafka Streams counts words exactly once, through kill -9 of the broker under it."""

from __future__ import annotations

import random
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.peers.cache import PeerMissing
from tests.peers.java_runtime import java_program
from tests.peers.patience import PATIENCE_SECONDS
from tests.peers.servers import free_port, start_millstream

pytestmark = [pytest.mark.java, pytest.mark.timeout(600)]

PARTITIONS = 2
SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}
WORDS = ["mill", "stream", "wheel", "water", "grain", "stone", "flour", "bread"]


class WordCount:
    """The Streams program in a JVM of its own."""

    def __init__(self, bootstrap: str, directory: Path) -> None:
        try:
            command = java_program("WordCount", "kafka-streams")
        except PeerMissing as missing:
            pytest.skip(f"Kafka Streams: {missing}")
        self._running = threading.Event()
        self._words: list[str] = []
        self._log = directory / "streams.log"
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [*command, bootstrap, "word-count", str(directory / "state"), "lines", "counts"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def wait_until_running(self) -> None:
        assert self._running.wait(PATIENCE_SECONDS), self._log.read_text()[-2000:]

    def check(self) -> None:
        """It lives, and has not given up."""
        assert self._process.poll() is None
        assert "ERROR" not in self._words, self._log.read_text()[-2000:]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._words.append(line.strip())
            if line.strip() == "RUNNING":
                self._running.set()


def produce_lines(bootstrap: str, dice: random.Random, count: int) -> Counter[str]:
    """Lines of a few words each, written once each; how often every word is in them."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0}
    )
    expected: Counter[str] = Counter()
    for number in range(count):
        words = dice.choices(WORDS, k=dice.randint(1, 5))
        expected.update(words)
        producer.produce("lines", " ".join(words), partition=number % PARTITIONS)
    assert producer.flush(PATIENCE_SECONDS) == 0
    return expected


def counts(bootstrap: str) -> Iterator[tuple[str, int]]:
    """(word, count so far) as a read-committed reader gets them, for as long as it asks."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition("counts", index, 0) for index in range(PARTITIONS)])
    deadline = time.monotonic() + PATIENCE_SECONDS
    try:
        while time.monotonic() < deadline:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                yield message.key().decode(), int(message.value())
    finally:
        consumer.close()


def read_counts(bootstrap: str, expected: Counter[str]) -> dict[str, list[int]]:
    """All counts of every word, read until the last of each has come, and a little longer."""
    seen: dict[str, list[int]] = defaultdict(list)
    missing = set(expected)
    for word, count in counts(bootstrap):
        seen[word].append(count)
        if count == expected[word]:
            missing.discard(word)
        if not missing:
            return seen
    raise AssertionError(f"never counted to the end: {sorted(missing)}")


@pytest.mark.parametrize("kills", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_streams_counts_exactly_once_while_the_broker_is_killed(tmp_path: Path, kills: int) -> None:
    dice = random.Random(kills)
    port = free_port()
    server = start_millstream(tmp_path / "data", SETTINGS, port=port)
    streams = None
    try:
        admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        topics = [NewTopic(name, PARTITIONS, 1) for name in ("lines", "counts")]
        for created in admin.create_topics(topics).values():
            created.result(PATIENCE_SECONDS)
        expected = produce_lines(server.bootstrap, dice, 200)
        streams = WordCount(server.bootstrap, tmp_path)
        streams.wait_until_running()
        for _ in range(kills):
            expected += produce_lines(server.bootstrap, dice, 500)
            time.sleep(dice.uniform(0.1, 1.0))  # anywhere in its work
            server.kill()
            server = start_millstream(tmp_path / "data", SETTINGS, port=port)
        expected += produce_lines(server.bootstrap, dice, 200)
        seen = read_counts(server.bootstrap, expected)
        streams.check()
        streams.close()
    finally:
        if streams is not None:
            streams.kill()
        server.kill()
    assert seen == {word: list(range(1, count + 1)) for word, count in expected.items()}
