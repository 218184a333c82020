"""Dead letters: records that a share group could not process, in its dead-letter topic (KIP-1191).

A record that a member rejects, or that was not processed within its delivery limit, becomes a
letter in the group's dead-letter topic (`errors.deadletterqueue.topic.name`). Its headers, all
text:

    __dlq.errors.topic, .partition, .offset   where the record is, or was
    __dlq.errors.timestamp                    the record's own time (ms); the letter has the time
                                              at which it was written
    __dlq.errors.group                        the group
    __dlq.errors.delivery.count               the delivery count
    __dlq.errors.reason                       rejected, limit or corrupt
    __dlq.errors.message                      the reason as text, with further problems

`timestamp` and `reason` are ours, the others are those of Kafka 4.4. With
`errors.deadletterqueue.copy.record.enable` the letter has the record's key, value and headers too
(Kafka: no headers); the headers above come last: if a replayed record fails again, the last header
of a name belongs to the last failure, and earlier ones are its history. A record that cannot be
read any more (corrupt, or deleted by retention) still gets a letter, with that reason.

The letter is durable before the record is archived. A crash between the two writes it twice; topic,
partition, offset and group identify duplicates.

The rules for the topic are those of Kafka: its name begins with the broker's prefix, and it has
`errors.deadletterqueue.group.enable`, so that ordinary topics do not fill up with letters; a
missing topic is created if the broker allows it. If these rules are violated, Kafka drops the
record; Millstream keeps it and logs the problem. A record that fails in the group's own dead-letter
topic is not dead-lettered again: it is already in that topic.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.peers.leaders import leader_of
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.coordination.sharing.breaker import Breaker
from millstream.coordination.sharing.runs import CORRUPT, LIMIT, REJECTED
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.records.batch import HEADER_SIZE_BYTES, iterate_headers
from millstream.records.record import Header, Record, decode_batch, encode_batch

if TYPE_CHECKING:
    from millstream.broker.metadata.actions import ClusterActions
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.peers.partitions import RemotePartitions
    from millstream.broker.replicas.partition import Partition
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock
    from millstream.partitions import TopicPartition

logger = logging.getLogger(__name__)

HEADER_PREFIX = "__dlq.errors."
MESSAGES = {
    REJECTED: "Offset rejected by client.",  # Kafka's words, and the next
    LIMIT: "Offset delivery count exceeded the threshold.",
    CORRUPT: "The log is damaged.",
}

READ_BYTES = 1024 * 1024
BATCH_BYTES = 1024 * 1024  # of letters, unless one alone is larger
RECORD_OVERHEAD_BYTES = 40  # at most: lengths, deltas and attributes
HEADER_OVERHEAD_BYTES = 10
ENABLE_SETTING = "errors.deadletterqueue.group.enable"


class DeadLetter(NamedTuple):
    """A failed record."""

    offset: int
    delivery_count: int
    reason: str
    message: str


class DeadLetters:
    """Writes the dead letters of all share groups."""

    def __init__(
        self,
        *,
        tasks: Tasks,
        clock: Clock,
        metadata: MetadataStore,
        configs: ConfigManager,
        actions: ClusterActions,
        partitions: PartitionTable,
        remote: RemotePartitions,
    ) -> None:
        self._tasks = tasks
        self._clock = clock
        self._metadata = metadata
        self._configs = configs
        self._actions = actions
        self._partitions = partitions
        self._remote = remote
        self._breakers: dict[str, Breaker] = {}
        self._problems: dict[str, str] = {}  # by group, problems already logged
        # Held until the logs of a new topic are open, which is after the topic is in the metadata.
        self._creating = asyncio.Lock()
        self.written: Counter[str] = Counter()  # letters by group, for metrics

    async def write(
        self, group_id: str, partition: Partition, letters: Sequence[DeadLetter]
    ) -> None:
        """Write the letters; they are durable when this returns. Waits while the breaker is open.

        Raises `ApiError` if they cannot be written: keep the records, and try again later.
        """
        topic = self._configs.group(group_id).errors_deadletterqueue_topic_name
        if not letters or not topic:
            return
        if partition.topic == topic:
            self._say_once(
                group_id,
                f"{topic} is its own dead-letter topic: failed records are not dead-lettered again",
            )
            return
        try:
            target = await self._target(topic, partition.index)
            await self._pass_breaker(group_id, len(letters))
            try:
                await self._append(group_id, partition, letters, target)
            except ApiError:
                self._give_back(group_id, len(letters))
                raise
        except ApiError as error:
            self._say_once(group_id, f"cannot write dead letters, failed records are kept: {error}")
            raise
        self.written[group_id] += len(letters)
        self._problems.pop(group_id, None)

    def _say_once(self, group_id: str, problem: str) -> None:
        if self._problems.get(group_id) != problem:
            self._problems[group_id] = problem
            logger.warning("share group %s: %s", group_id, problem)

    # The topic

    async def _target(self, topic: str, source_index: int) -> TopicPartition:
        """The partition for these letters, of any broker. Raises `ApiError` if the topic does not
        accept them."""
        config = self._configs.current
        if not topic.startswith(config.errors_deadletterqueue_topic_name_prefix):
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"the name of dead-letter topic {topic} does not begin with "
                f"{config.errors_deadletterqueue_topic_name_prefix!r}, which the broker's "
                "errors.deadletterqueue.topic.name.prefix asks for",
            )
        async with self._creating:
            if topic not in self._metadata.image.topics:
                await self._create(topic)
        if not self._configs.topic(topic).errors_deadletterqueue_group_enable:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"topic {topic} does not accept dead letters: set {ENABLE_SETTING}=true on it",
            )
        count = len(self._metadata.image.topics[topic].partitions)
        return topic, source_index % count

    async def _create(self, topic: str) -> None:
        if not self._configs.current.errors_deadletterqueue_auto_create_topics_enable:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"dead-letter topic {topic} does not exist: create it with {ENABLE_SETTING}=true, "
                "or set the broker's errors.deadletterqueue.auto.create.topics.enable",
            )
        settings = {ENABLE_SETTING: "true", "message.timestamp.type": "CreateTime"}
        outcome = (await self._actions.create_topics([NewTopic(topic, settings=settings)]))[topic]
        if isinstance(outcome, ApiError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise outcome

    # The breaker

    async def _pass_breaker(self, group_id: str, count: int) -> None:
        limit = self._configs.current.millstream_deadletterqueue_max_records_per_second
        if limit == 0:
            return
        now_ms = self._clock.monotonic_ms()
        breaker = self._breakers.get(group_id)
        if breaker is None:
            self._forget_idle_breakers(now_ms)
            breaker = self._breakers[group_id] = Breaker(limit, now_ms)
        breaker.change_limit(limit, now_ms)
        was_open = breaker.is_open
        wait_ms = breaker.admit(count, now_ms)
        if breaker.is_open and not was_open:
            logger.warning(
                "share group %s: dead-letter rate limit exceeded: more than %d records per second "
                "fail (millstream.deadletterqueue.max.records.per.second). They are delayed, not "
                "lost; check the members of the group",
                group_id,
                limit,
            )
            self._tasks.start(self._close_breaker(group_id, breaker))
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)

    def _give_back(self, group_id: str, count: int) -> None:
        """Writing failed and will be retried: return the tokens."""
        breaker = self._breakers.get(group_id)
        if breaker is not None:
            breaker.give_back(count)

    async def _close_breaker(self, group_id: str, breaker: Breaker) -> None:
        """Wait until the rate is below the limit, and log it."""
        clock = self._clock
        while (wait_ms := breaker.closes_in_ms(clock.monotonic_ms())) > 0:
            await asyncio.sleep(wait_ms / 1000)
        seconds = (clock.monotonic_ms() - (breaker.opened_at_ms or 0)) / 1000
        logger.warning(
            "share group %s: below the dead-letter rate limit again after %.1f s; %d records "
            "waited",
            group_id,
            seconds,
            breaker.delayed_records,
        )
        breaker.close()

    def _forget_idle_breakers(self, now_ms: int) -> None:
        for group_id in [group for group, known in self._breakers.items() if known.is_idle(now_ms)]:
            del self._breakers[group_id]

    # The letters

    async def _append(
        self,
        group_id: str,
        partition: Partition,
        letters: Sequence[DeadLetter],
        target: TopicPartition,
    ) -> None:
        """Compose the letters and append them in batches. They may be as large as records, so
        reading, copying and encoding run in a thread."""
        copies = self._configs.group(group_id).errors_deadletterqueue_copy_record_enable
        now_ms = self._clock.now_ms()
        records = _compose(group_id, partition, letters, now_ms, copies=copies)
        batches = _batches(records, self._configs.topic(target[0]).max_message_bytes)
        while (batch := await self._tasks.run_blocking(lambda: next(batches, None))) is not None:
            await self._append_batch(*target, batch)

    async def _append_batch(self, topic: str, index: int, batch: bytes) -> None:
        """To a partition of this broker, or of another one."""
        partition = self._partitions.get(topic, index)
        if partition is not None and partition.is_led_here:
            await partition.append(batch, acks=ACKS_ALL)
        else:
            leader = leader_of(self._metadata.image, topic, index)
            await self._remote.append(leader, topic, index, batch)


def _compose(
    group_id: str,
    partition: Partition,
    letters: Iterable[DeadLetter],
    now_ms: int,
    *,
    copies: bool,
) -> Iterator[Record]:
    """The letters as records of the dead-letter topic. Reads the disk: call it in a thread."""
    originals = _Originals(partition)
    for letter in letters:
        original = originals.find(letter.offset)
        if original is None:
            continue
        if isinstance(original, str):
            letter = letter._replace(message=f"{letter.message} {original}")
            yield Record(0, now_ms, None, None, _headers(group_id, partition, letter, None))
            continue
        headers = _headers(group_id, partition, letter, original)
        if copies:
            headers = original.headers + headers
            yield Record(0, now_ms, original.key, original.value, headers)
        else:
            yield Record(0, now_ms, None, None, headers)


def _headers(
    group_id: str, partition: Partition, letter: DeadLetter, original: Record | None
) -> tuple[Header, ...]:
    values: dict[str, object] = {
        "topic": partition.topic,
        "partition": partition.index,
        "offset": letter.offset,
        "group": group_id,
        "delivery.count": letter.delivery_count,
        "message": letter.message,
        "reason": letter.reason,
    }
    if original is not None:
        values["timestamp"] = original.timestamp
    return tuple(
        (HEADER_PREFIX + name, str(value).encode("utf-8", "surrogateescape"))
        for name, value in values.items()
    )


class _Originals:
    """The failed records; those in the same batch are read together."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._batch: dict[int, Record | None] = {}  # the last one read

    def find(self, offset: int) -> Record | str | None:
        """The record at this offset, or the reason why it is missing; None for a marker."""
        if offset not in self._batch:
            try:
                data = self._partition.read(offset, max_bytes=READ_BYTES, may_block=True)
                self._batch = _batch_with(offset, data)
            except CorruptBatch as error:
                return f"The record could not be read: {error}"
            except ApiError as error:
                if error.code not in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE):
                    raise
                return f"The record could not be read: {error.message}"
            except OSError as error:
                name = f"{self._partition.topic}-{self._partition.index}"
                raise ApiError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"{name} cannot be read: {error}"
                ) from error
        return self._batch.get(offset, "The record could not be read: it is no longer in the log.")


def _batch_with(offset: int, data: bytes | bytearray) -> dict[int, Record | None]:
    """The records of the batch that contains this offset, if it exists."""
    for position, header in iterate_headers(data):
        if header.base_offset <= offset <= header.last_offset:
            records = decode_batch(data, position)
            return {record.offset: None if header.is_control else record for record in records}
    return {}


def _batches(letters: Iterable[Record], size_bytes_max: int) -> Iterator[bytes]:
    """The letters in batches that the topic's max.message.bytes allows, none much above ours."""
    some: list[Record] = []
    size_bytes = HEADER_SIZE_BYTES
    for letter in letters:
        letter_bytes = _size_bytes(letter)
        if some and size_bytes + letter_bytes > min(size_bytes_max, BATCH_BYTES):
            yield _batch(some, size_bytes_max)
            some, size_bytes = [], HEADER_SIZE_BYTES
        some.append(letter)
        size_bytes += letter_bytes
    if some:
        yield _batch(some, size_bytes_max)


def _size_bytes(letter: Record) -> int:
    """The maximum size of a letter in a batch."""
    headers = sum(
        len(name.encode("utf-8", "surrogateescape")) + len(value or b"") + HEADER_OVERHEAD_BYTES
        for name, value in letter.headers
    )
    return len(letter.key or b"") + len(letter.value or b"") + headers + RECORD_OVERHEAD_BYTES


def _batch(letters: Sequence[Record], size_bytes_max: int) -> bytes:
    batch = encode_batch(replace(letter, offset=index) for index, letter in enumerate(letters))
    if len(batch) > size_bytes_max and len(letters) == 1:
        return encode_batch([_without_copy(letters[0])])
    return batch


def _without_copy(letter: Record) -> Record:
    """The letter without a copy of the record, which is too large for the topic."""
    headers = {name: value for name, value in letter.headers if name.startswith(HEADER_PREFIX)}
    message = headers[HEADER_PREFIX + "message"] or b""
    headers[HEADER_PREFIX + "message"] = message + b" The record is too large to be copied."
    return Record(0, letter.timestamp, None, None, tuple(headers.items()))
