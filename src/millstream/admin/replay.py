"""Replays dead letters: each is sent to its topic once, even if the replay is repeated.

What was sent is remembered as the offsets that the group `millstream-dlq-replay` has committed in
the dead-letter topic: the committed offset is the first letter not replayed yet, and its metadata
has the replayed ones behind it (a filter leaves holes), as a compressed bit map. A chunk of records
and the offsets that remember it are one transaction of a producer that every replay of the topic
shares, so a replay that was interrupted, or two at a time, send nothing twice. The memory lasts as
long as the cluster keeps the offsets of an empty group (offsets.retention.minutes, 7 days), which
is as long as it keeps letters by default.

A replayed record has the key, value and headers of the letter, and so its history: the headers
`__dlq.errors.*` of its failures, `__dlq.replay.count` and `__dlq.replay.of`, the letter: if it
fails again, its next letter names this one. A letter that has only headers takes the record from
where it was, if it is still there and has the time that the letter says. The timestamp is that of
the replay: with its old one retention might delete it at once.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import time
import zlib
from collections.abc import Callable, Iterable
from dataclasses import field
from types import TracebackType
from typing import Self

from millstream.admin.errors import OperationFailed
from millstream.admin.groups import committed
from millstream.admin.letters import (
    REPLAY_COUNT,
    REPLAY_OF,
    Letter,
    Origin,
    Position,
    read_letter,
    read_letters,
    unlimited_reader,
)
from millstream.admin.numbers import decimal
from millstream.admin.offsets import start_offsets
from millstream.admin.outgoing import (
    ANY_PARTITION,
    Outgoing,
    batches,
    choose_partitions,
    encode_outgoing,
)
from millstream.admin.reading import Reader, ReadRecord, State
from millstream.admin.reset import partition_count
from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.client.transactions import FENCED, commit_offsets
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.models import dataclass
from millstream.partitions import TopicPartition

MEMORY_GROUP = "millstream-dlq-replay"
MEMORY_TEXT_MAX = 4000  # offset.metadata.max.bytes is 4096 by default
MAP_BYTES_MAX = 4 * 1024 * 1024  # of bits, more than that text can have when it is unpacked
BLOCK_BITS = 4096
ORIGINS_MAX = 200_000  # that are remembered to find duplicates, about 60 MB
CHUNK_RECORDS = 1000
TRANSACTION_TIMEOUT_MS = 60_000


class OffsetSet:
    """A set of offsets, one bit each, in blocks: few of them may lie far apart."""

    def __init__(self) -> None:
        self._blocks: dict[int, int] = {}

    def __contains__(self, offset: int) -> bool:
        block, bit = divmod(offset, BLOCK_BITS)
        return bool(self._blocks.get(block, 0) >> bit & 1)

    def add(self, offset: int) -> None:
        block, bit = divmod(offset, BLOCK_BITS)
        self._blocks[block] = self._blocks.get(block, 0) | 1 << bit

    def bits(self, base: int) -> bytes | None:
        """A bit for each offset from `base` on; None if there are too many to be kept."""
        first = base // BLOCK_BITS
        last = max(self._blocks, default=first)
        size = BLOCK_BITS // 8
        if (last - first + 1) * size > MAP_BYTES_MAX:
            return None
        packed = bytearray(max(0, last - first + 1) * size)
        for block, bits in self._blocks.items():
            if block >= first:
                at = (block - first) * size
                packed[at : at + size] = bits.to_bytes(size, "little")
        found = int.from_bytes(packed, "little") >> base % BLOCK_BITS
        return found.to_bytes((found.bit_length() + 7) // 8, "little")

    @classmethod
    def of_bits(cls, base: int, bits: bytes) -> OffsetSet:
        found, size = cls(), BLOCK_BITS // 8
        shifted = int.from_bytes(bits, "little") << base % BLOCK_BITS
        packed = shifted.to_bytes((shifted.bit_length() + 7) // 8, "little")
        for at in range(0, len(packed), size):
            if block := int.from_bytes(packed[at : at + size], "little"):
                found._blocks[base // BLOCK_BITS + at // size] = block
        return found


@dataclass
class PartitionMemory:
    """The replayed letters of one partition, learned while they are read in order."""

    done_below: int = 0  # as committed: all letters below were replayed
    done: OffsetSet = field(default_factory=OffsetSet)
    first_open: int | None = None  # the first letter met that was not replayed
    position: int = 0  # behind the last letter met
    start: int = 0  # of the log, if it is known: there are no letters below

    def contains(self, offset: int) -> bool:
        is_behind_all_met = self.first_open is None and offset < self.position
        return offset < self.done_below or is_behind_all_met or offset in self.done

    def meet(self, offset: int, *, replayed: bool) -> None:
        """Record this letter as replayed or not, in reading order."""
        self.position = offset + 1
        if not replayed:
            self.first_open = offset if self.first_open is None else self.first_open
        elif self.first_open is not None:  # else the position says it
            self.done.add(offset)

    def mark(self, offset: int, start: int) -> None:
        """Record this letter as replayed, without having met those before it since the start of
        the log."""
        self.start = start
        self.done.add(offset)

    @property
    def base(self) -> int:
        """The first letter that was not replayed, as far as it is known."""
        met = self.first_open if self.first_open is not None else self.position
        return max(met, self.done_below, self.start)

    def encode(self) -> tuple[int, str]:
        """The offset to commit and its metadata. Raises `OperationFailed` if that does not fit."""
        bits = self.done.bits(self.base)
        if bits == b"":
            return self.base, ""
        text = "" if bits is None else base64.b64encode(zlib.compress(bits, 9)).decode()
        if not 0 < len(text) <= MEMORY_TEXT_MAX:
            raise OperationFailed(
                "the replayed letters are too scattered to be remembered; replay all from offset "
                f"{self.base} on, or purge older ones first"
            )
        return self.base, text

    @classmethod
    def decode(cls, base: int, metadata: str) -> PartitionMemory:
        """Raises `OperationFailed` for metadata that no replay has written."""
        if not metadata:
            return cls(base)
        unpacker = zlib.decompressobj()
        try:
            bits = unpacker.decompress(base64.b64decode(metadata, validate=True), MAP_BYTES_MAX)
        except (ValueError, binascii.Error, zlib.error):
            bits = b""
        if not bits or not unpacker.eof:
            raise OperationFailed(
                f"the offsets of the group {MEMORY_GROUP} were not committed by a replay: "
                "delete the group's offsets of this topic to start again"
            )
        return cls(base, OffsetSet.of_bits(base, bits))


class Memory:
    """The replayed letters of a dead-letter topic, and the last failures among them."""

    def __init__(self, partitions: dict[TopicPartition, PartitionMemory] | None = None) -> None:
        self._partitions = partitions or {}
        self._replayed: dict[Origin, None] = {}  # the oldest first

    @classmethod
    def load(cls, cluster: Cluster, topic: str) -> Memory:
        return cls(
            {
                place: PartitionMemory.decode(it.offset, it.metadata)
                for place, it in committed(cluster, MEMORY_GROUP, require_stable=True).items()
                if place[0] == topic
            }
        )

    def was_replayed(self, letter: Letter) -> bool:
        return self._of(letter).contains(letter.offset)

    def is_duplicate(self, letter: Letter) -> bool:
        """Whether another letter of the same failure was replayed; a crash can write two."""
        return letter.origin in self._replayed

    def meet(self, letter: Letter, *, replayed: bool) -> None:
        """Record this letter as replayed or not, in reading order."""
        self._of(letter).meet(letter.offset, replayed=replayed)
        if replayed:
            self.remember(letter)

    def mark(self, letter: Letter, start: int) -> None:
        """Record this letter alone as replayed; its partition's log begins at `start`."""
        self._of(letter).mark(letter.offset, start)
        self.remember(letter)

    def remember(self, letter: Letter) -> None:
        """Other letters of this failure are duplicates from now on."""
        if letter.origin is None:
            return
        self._replayed[letter.origin] = None
        if len(self._replayed) > ORIGINS_MAX:
            del self._replayed[next(iter(self._replayed))]

    def offsets(self) -> dict[TopicPartition, tuple[int, str]]:
        """The offsets to commit, with metadata. Raises `OperationFailed` if they do not fit."""
        places = {}
        for (topic, index), memory in self._partitions.items():
            try:
                places[topic, index] = memory.encode()
            except OperationFailed as error:
                raise OperationFailed(f"{topic}[{index}]: {error}") from None
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
        self._cluster = cluster

    def find(self, letter: Letter) -> ReadRecord | None:
        """The record that failed; None if it is gone, or if its offset has become another's, which
        it does in a topic that was deleted and recreated."""
        origin = letter.origin
        if origin is None:
            return None
        try:
            record = unlimited_reader(self._cluster, origin.topic).one(
                origin.partition, origin.offset
            )
        except ApiError as error:
            if error.code in (
                ErrorCode.OFFSET_OUT_OF_RANGE,
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ):
                return None
            raise
        if record is None or record.state is State.ABORTED:
            return None
        if letter.failed_ms not in (None, record.timestamp_ms):
            return None
        return record


class Replay:
    """Sends letters in transactions; use it as a context, and `run` or `send_each` inside."""

    def __init__(self, cluster: Cluster, topic: str, target: str | None = None) -> None:
        self._cluster = cluster
        self._topic = topic
        self._target = target
        self._originals = Originals(cluster)
        self._partition_counts: dict[str, int] = {}
        self._chunk: dict[str, list[Outgoing]] = {}
        self._chunk_size = 0
        self._is_open = False
        self.tally = Tally()

    def __enter__(self) -> Self:
        """A new producer aborts an earlier replay of this topic and fences it."""
        self._producer = RawProducer(self._cluster, purpose="replay")
        self._producer.begin(f"{MEMORY_GROUP}-{self._topic}", TRANSACTION_TIMEOUT_MS)
        self.memory = Memory.load(self._cluster, self._topic)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is None:
            self._commit()
        else:
            self._abort()

    def run(
        self,
        letters: Iterable[Letter],
        matches: Callable[[Letter], bool],
        advance: Callable[[int], None] = lambda _: None,
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
            if self._chunk_size == CHUNK_RECORDS:
                self._commit()
            advance(1)

    def send_each(self, letters: Iterable[Letter]) -> None:
        """Send just these letters, unless they were sent before."""
        letters = list(letters)
        starts = start_offsets(self._cluster, {it.place for it in letters})
        for letter in letters:
            if self.memory.was_replayed(letter):
                self.tally.replayed_before += 1
            elif self._send(letter):
                self.memory.mark(letter, starts[letter.place])
            if self._chunk_size == CHUNK_RECORDS:
                self._commit()

    def _send(self, letter: Letter) -> bool:
        record = outgoing(letter, None)
        if not letter.has_copy:
            original = self._originals.find(letter)
            if original is None:
                self.tally.originals_gone += 1
                return False
            record = outgoing(letter, original)
        target, partition = self._destination(letter)
        self._chunk.setdefault(target, []).append(record._replace(partition=partition))
        self._chunk_size += 1
        self.tally.sent += 1
        return True

    def _destination(self, letter: Letter) -> tuple[str, int]:
        """The record's own partition, or by its key in another topic."""
        if self._target is not None:
            return self._target, ANY_PARTITION
        if letter.origin is None:
            raise OperationFailed(
                f"{letter.topic}[{letter.partition}]@{letter.offset} has no original topic in its "
                "headers; set --to TOPIC"
            )
        topic, index = letter.origin.topic, letter.origin.partition
        count = self._count(topic)
        return topic, index if index < count else ANY_PARTITION

    def _count(self, topic: str) -> int:
        if topic not in self._partition_counts:
            self._partition_counts[topic] = partition_count(self._cluster, topic)
        return self._partition_counts[topic]

    def _commit(self) -> None:
        """Send the chunk and the offsets that remember it, in one transaction."""
        if not self._chunk_size:
            return
        try:
            offsets = self.memory.offsets()
            self._write_chunk()
            assert self._producer.transaction is not None
            commit_offsets(
                self._cluster,
                self._producer.transaction,
                MEMORY_GROUP,
                {place: offset for place, (offset, _) in offsets.items()},
                metadata={place: metadata for place, (_, metadata) in offsets.items()},
            )
            self._producer.end(commit=True)
            self._is_open = False
        except MillstreamError as error:
            self._abort()
            if isinstance(error, ApiError) and error.code in FENCED:
                raise OperationFailed(f"another replay of {self._topic} has taken over") from None
            raise
        self._chunk, self._chunk_size = {}, 0

    def _write_chunk(self) -> None:
        now_ms = round(time.time() * 1000)
        chosen = {
            (topic, index): records
            for topic, its in self._chunk.items()
            for index, records in choose_partitions(its, self._count(topic), topic).items()
        }
        self._is_open = True
        self._producer.join(chosen, MEMORY_GROUP)
        for (topic, index), records in chosen.items():
            for batch in batches(records):
                identity = self._producer.identity(topic, index)
                content = encode_outgoing(batch, identity, now_ms=now_ms)
                self._producer.send(topic, index, content, len(batch))
        self._producer.flush()

    def _abort(self) -> None:
        """Abort the current chunk. If that fails, the next replay aborts it."""
        self._chunk, self._chunk_size = {}, 0
        if self._is_open:
            self._is_open = False
            with contextlib.suppress(MillstreamError, OSError):
                self._producer.end(commit=False)


def outgoing(letter: Letter, original: ReadRecord | None) -> Outgoing:
    """The record to send: the letter's copy or the original, with the headers of its failure, the
    replay count and the letter's place."""
    key, value, headers = letter.key, letter.value, list(letter.raw_headers)
    count = letter.replay_count
    if original is not None:
        own = [(it.name, it.value) for it in original.headers]
        counts = [value for name, value in own if name == REPLAY_COUNT and value]
        count = (decimal(counts[-1]) if counts else 0) or 0
        key, value, headers = original.key, original.value, own + headers
    kept = [(name, it) for name, it in headers if name not in (REPLAY_COUNT, REPLAY_OF)]
    place = f"{letter.topic}/{letter.position}"
    kept += [(REPLAY_COUNT, str(count + 1).encode()), (REPLAY_OF, place.encode())]
    return Outgoing(value, key, kept)


# What both the command line and the console do


def replay_matching(
    cluster: Cluster,
    topic: str,
    matches: Callable[[Letter], bool],
    *,
    target: str | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Tally:
    """Send all letters that match and were not sent before."""
    with Replay(cluster, topic, target) as running:
        running.run(read_letters(cluster, topic), matches, advance)
    return running.tally


def replay_selected(
    cluster: Cluster, topic: str, positions: Iterable[Position], *, target: str | None = None
) -> Tally:
    """Send these letters, except for those that were sent before."""
    letters = [read_letter(cluster, topic, it) for it in dict.fromkeys(positions)]
    with Replay(cluster, topic, target) as running:
        running.send_each(letters)
    return running.tally


def plan_matching(
    cluster: Cluster,
    topic: str,
    matches: Callable[[Letter], bool],
    *,
    advance: Callable[[int], None] = lambda _: None,
    reader: Reader | None = None,
) -> Tally:
    """What `replay_matching` would do, without checking whether original records still exist; with
    a reader of limited size, for as many letters as it reads."""
    memory = Memory.load(cluster, topic)
    tally = Tally()
    for letter in read_letters(cluster, topic, reader):
        is_done, is_match = memory.was_replayed(letter), matches(letter)
        if is_match and is_done:
            tally.replayed_before += 1
        elif is_match and memory.is_duplicate(letter):
            tally.duplicates += 1
        elif is_match:
            tally.sent += 1
        if is_match or is_done:
            memory.remember(letter)
        advance(1)
    return tally


def plan_selected(cluster: Cluster, topic: str, positions: Iterable[Position]) -> Tally:
    """What `replay_selected` would do; it does check the original records."""
    memory = Memory.load(cluster, topic)
    originals = Originals(cluster)
    tally = Tally()
    for position in dict.fromkeys(positions):
        letter = read_letter(cluster, topic, position)
        if memory.was_replayed(letter):
            tally.replayed_before += 1
        elif not letter.has_copy and originals.find(letter) is None:
            tally.originals_gone += 1
        else:
            tally.sent += 1
    return tally
