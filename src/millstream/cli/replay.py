"""Replays dead letters: each is sent to its topic once, even if the command is repeated.

What was sent is remembered as the offsets that the group `millstream-dlq-replay` has committed in
the dead-letter topic: the committed offset is the first letter not replayed yet, and its metadata
has the replayed ones behind it (a filter leaves holes), as a compressed bit map. A chunk of records
and the offsets that remember it are one transaction of a producer that every replay of the topic
shares, so a replay that was interrupted, or two at a time, send nothing twice. The memory lasts as
long as the cluster keeps the offsets of an empty group (offsets.retention.minutes, 7 days), which
is as long as it keeps letters by default.

A replayed record has the key, value and headers of the letter, and so its history: the headers
`__dlq.errors.*` of its failures and `__dlq.replay.count`. A letter that has only headers takes the
record from where it was, if it is still there and has the time that the letter says. The timestamp
is that of the replay: with its old one retention might delete it at once.
"""

from __future__ import annotations

import base64
import contextlib
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from millstream.cli.cluster import REQUEST_TIMEOUT_S, Cluster, Partition
from millstream.cli.failures import CommandFailed
from millstream.cli.letters import REPLAY_COUNT, Letter, Origin

MEMORY_GROUP = "millstream-dlq-replay"
MEMORY_TEXT_MAX = 4000  # offset.metadata.max.bytes is 4096 by default
CHUNK_RECORDS = 1000
ORIGINAL_TIMEOUT_S = 10.0


@dataclass
class PartitionMemory:
    """The replayed letters of one partition, learned while they are read in order."""

    done_below: int = 0  # as committed: all letters below were replayed
    done: set[int] = field(default_factory=set)
    first_open: int | None = None  # the first letter met that was not replayed
    position: int = 0  # behind the last letter met

    def contains(self, offset: int) -> bool:
        return offset < self.done_below or offset in self.done

    def meet(self, offset: int, *, replayed: bool) -> None:
        """Record this letter as replayed or not, in reading order."""
        self.position = offset + 1
        if replayed:
            self.done.add(offset)
        elif self.first_open is None:
            self.first_open = offset

    def encode(self) -> tuple[int, str]:
        """The offset to commit and its metadata."""
        base = self.first_open if self.first_open is not None else self.position
        base = max(base, self.done_below)
        bits = 0
        for offset in self.done:
            if offset >= base:
                bits |= 1 << (offset - base)
        if not bits:
            return base, ""
        packed = zlib.compress(bits.to_bytes((bits.bit_length() + 7) // 8, "little"), 9)
        return base, base64.b64encode(packed).decode()

    @classmethod
    def decode(cls, base: int, metadata: str) -> PartitionMemory:
        if not metadata:
            return cls(base)
        bits = int.from_bytes(zlib.decompress(base64.b64decode(metadata)), "little")
        ones = (index for index in range(bits.bit_length()) if bits >> index & 1)
        return cls(base, {base + index for index in ones})


class Memory:
    """The replayed letters of a dead-letter topic."""

    def __init__(self, partitions: dict[Partition, PartitionMemory] | None = None) -> None:
        self._partitions = partitions or {}
        self._replayed: set[Origin] = set()

    @classmethod
    def load(cls, cluster: Cluster, topic: str) -> Memory:
        places = [TopicPartition(topic, index) for index in cluster.partitions_of(topic)]
        request = [ConsumerGroupTopicPartitions(MEMORY_GROUP, places)]
        future = cluster.admin.list_consumer_group_offsets(
            request, require_stable=True, request_timeout=REQUEST_TIMEOUT_S
        )[MEMORY_GROUP]
        try:
            found = future.result().topic_partitions
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise
            return cls()
        return cls(
            {
                (it.topic, it.partition): PartitionMemory.decode(it.offset, it.metadata or "")
                for it in found
                if it.offset >= 0
            }
        )

    def was_replayed(self, letter: Letter) -> bool:
        return self._of(letter).contains(letter.record.offset())

    def is_duplicate(self, letter: Letter) -> bool:
        """Whether another letter of the same failure was replayed; a crash can write two."""
        return letter.origin in self._replayed

    def meet(self, letter: Letter, *, replayed: bool) -> None:
        """Record this letter as replayed or not, in reading order."""
        self._of(letter).meet(letter.record.offset(), replayed=replayed)
        if replayed and letter.origin is not None:
            self._replayed.add(letter.origin)

    def offsets(self) -> list[TopicPartition]:
        """The offsets to commit. Raises `CommandFailed` if they do not fit."""
        places = []
        for (topic, index), memory in self._partitions.items():
            base, metadata = memory.encode()
            if len(metadata) > MEMORY_TEXT_MAX:
                raise CommandFailed(
                    f"the replayed letters of {topic}[{index}] are too scattered to be remembered; "
                    f"replay or purge what comes before offset {memory.position} first"
                )
            places.append(TopicPartition(topic, index, base, metadata))
        return places

    def replayed_below(self, topic: str, index: int) -> int | None:
        """The first letter not replayed yet; None if none was replayed."""
        memory = self._partitions.get((topic, index))
        return None if memory is None else memory.done_below

    def _of(self, letter: Letter) -> PartitionMemory:
        return self._partitions.setdefault(letter.place, PartitionMemory())


@dataclass
class Tally:
    """The result of a replay, or of a dry run."""

    sent: int = 0
    replayed_before: int = 0
    duplicates: int = 0
    originals_gone: int = 0


class Originals:
    """Reads the original records of letters without a copy."""

    def __init__(self, cluster: Cluster) -> None:
        self._consumer = cluster.consumer(
            **{"enable.partition.eof": True, "auto.offset.reset": "error"}
        )

    def find(self, letter: Letter) -> Message | None:
        """The record that failed; None if it is gone, or if its offset has become another's, which
        it does in a topic that was deleted and recreated."""
        origin = letter.origin
        if origin is None:
            return None
        self._consumer.assign([TopicPartition(origin.topic, origin.partition, origin.offset)])
        message = self._consumer.poll(ORIGINAL_TIMEOUT_S)
        if message is None or message.error() or message.offset() != origin.offset:
            return None
        kind, timestamp_ms = message.timestamp()
        if kind != TIMESTAMP_NOT_AVAILABLE and letter.failed_ms not in (None, timestamp_ms):
            return None
        return message

    def close(self) -> None:
        self._consumer.close()


class Replay:
    """Sends letters in transactions; use it as a context, and `send` inside."""

    def __init__(self, cluster: Cluster, topic: str, target: str | None) -> None:
        self._cluster = cluster
        self._topic = topic
        self._target = target
        self._originals = Originals(cluster)
        self._group = cluster.consumer(**{"group.id": MEMORY_GROUP})
        self._partition_counts: dict[str, int] = {}
        self._in_transaction = 0
        self._refusal: str | None = None
        self.tally = Tally()

    def __enter__(self) -> Self:
        self._producer = self._open_producer()
        self.memory = Memory.load(self._cluster, self._topic)
        return self

    def _open_producer(self) -> Producer:
        """A new producer aborts an earlier replay of this topic and fences it."""
        producer = self._cluster.producer(
            **{
                "transactional.id": f"{MEMORY_GROUP}-{self._topic}",
                "partitioner": "murmur2_random",
                "linger.ms": 5,
            }
        )
        producer.init_transactions(REQUEST_TIMEOUT_S)
        return producer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._commit()
            else:
                self._abort()
        finally:
            self._originals.close()
            self._group.close()

    def run(
        self,
        letters: Iterable[Letter],
        matches: Callable[[Letter], bool],
        advance: Callable[[int], None],
    ) -> None:
        """Send matching letters that were not sent before."""
        for letter in letters:
            done = self.memory.was_replayed(letter)
            if matches(letter):
                if done:
                    self.tally.replayed_before += 1
                elif self.memory.is_duplicate(letter):
                    self.tally.duplicates += 1
                    done = True
                else:
                    done = self._send(letter)
            self.memory.meet(letter, replayed=done)
            if self._in_transaction == CHUNK_RECORDS:
                self._commit()
            advance(1)

    def _send(self, letter: Letter) -> bool:
        content = letter.record if letter.has_copy else self._originals.find(letter)
        if content is None:
            self.tally.originals_gone += 1
            return False
        if not self._in_transaction:
            self._producer.begin_transaction()
        self._in_transaction += 1
        target, options = self._destination(letter)
        self._producer.produce(
            target,
            key=letter.key if letter.has_copy else content.key(),
            value=content.value(),
            headers=_with_history(letter, content),
            on_delivery=self._delivered,
            **options,
        )
        self._producer.poll(0)
        self.tally.sent += 1
        return True

    def _destination(self, letter: Letter) -> tuple[str, dict[str, Any]]:
        """The record's own partition, or by its key in another topic."""
        if self._target is not None:
            return self._target, {}
        if letter.origin is None:
            topic, index = letter.place
            raise CommandFailed(
                f"{topic}[{index}]@{letter.record.offset()} has no original topic in its headers; "
                "set --to TOPIC"
            )
        topic, index = letter.origin.topic, letter.origin.partition
        if topic not in self._partition_counts:
            self._partition_counts[topic] = len(self._cluster.partitions_of(topic))
        return topic, {"partition": index} if index < self._partition_counts[topic] else {}

    def _delivered(self, error: Any, message: Message) -> None:
        if error is not None and self._refusal is None:
            self._refusal = f"{message.topic()} refused a record: {error.str()}"

    def _commit(self) -> None:
        if not self._in_transaction:
            return
        try:
            self._producer.flush()
            if self._refusal is not None:
                raise CommandFailed(self._refusal)
            self._producer.send_offsets_to_transaction(
                self.memory.offsets(), self._group.consumer_group_metadata(), REQUEST_TIMEOUT_S
            )
            self._producer.commit_transaction(REQUEST_TIMEOUT_S)
        except CommandFailed:
            self._abort()
            raise
        except KafkaException as error:
            if error.args[0].code() == KafkaError._FENCED:
                raise CommandFailed(f"another replay of {self._topic} has taken over") from None
            raise
        self._in_transaction = 0

    def _abort(self) -> None:
        """Abort the current chunk. If that fails, the next replay aborts it."""
        if self._in_transaction:
            self._in_transaction = 0
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(REQUEST_TIMEOUT_S)


def _with_history(letter: Letter, content: Message) -> list[tuple[str, bytes | None]]:
    """The record's headers, those of its failure, and the replay count."""
    headers = list(content.headers() or [])
    if not letter.has_copy:
        headers += letter.record.headers() or []
    kept = [(name, value) for name, value in headers if name != REPLAY_COUNT]
    return [*kept, (REPLAY_COUNT, str(Letter(content).replay_count + 1).encode())]
