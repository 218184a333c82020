"""Dead letters: what a share group gave up is written to the group's dead-letter topic (KIP-1191).

A record that a member rejects, or that nobody processed within its delivery limit, becomes a letter
in the topic that the group names (`errors.deadletterqueue.topic.name`). Its headers, all text:

    __dlq.errors.topic, .partition, .offset   where the record is, or was
    __dlq.errors.timestamp                    the record's own time (ms); the letter has the time
                                              at which it was written
    __dlq.errors.group                        who gave it up
    __dlq.errors.delivery.count               after how many deliveries
    __dlq.errors.reason                       rejected, limit or corrupt
    __dlq.errors.message                      the same for people, with what went wrong besides

`timestamp` and `reason` are ours, the others are those of Kafka 4.4. With
`errors.deadletterqueue.copy.record.enable` the letter has the record's key, value and headers too
(Kafka: no headers); those above come last, so that of a record that was replayed and failed again
the last header of a name speaks of the last failure and earlier ones are its history. A record that
cannot be read any more (corrupt, or deleted by retention) still leaves a letter that says so.

The letter is durable before the share partition forgets the record. A crash between the two writes
it twice, and topic, partition, offset and group let a reader notice.

The rules for the topic are those of Kafka: its name begins with the broker's prefix, and it has
`errors.deadletterqueue.group.enable`, so that nobody's ordinary topic is filled with letters; if it
does not exist it is created where the broker allows it. Where Kafka drops the record if these rules
are not kept, we keep it and say in the log what is wrong. What a group fails to read from its own
dead-letter topic is no letter anew: it is in that topic already.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from millstream.broker.partition import ACKS_ALL
from millstream.broker.topics import NewTopic
from millstream.coordination.sharing.breaker import Breaker
from millstream.coordination.sharing.runs import CORRUPT, LIMIT, REJECTED
from millstream.errors import ApiError, CorruptBatch, ErrorCode
from millstream.records.batch import iterate_headers
from millstream.records.record import Header, Record, decode_batch, encode_batch

if TYPE_CHECKING:
    from millstream.broker.partition import Partition
    from millstream.broker.server import BrokerServer

logger = logging.getLogger(__name__)

HEADER_PREFIX = "__dlq.errors."
MESSAGES = {
    REJECTED: "Offset rejected by client.",  # Kafka's words, and the next
    LIMIT: "Offset delivery count exceeded the threshold.",
    CORRUPT: "The log is damaged.",
}

READ_BYTES = 1024 * 1024
ENABLE_SETTING = "errors.deadletterqueue.group.enable"


class DeadLetter(NamedTuple):
    """One record that was given up."""

    offset: int
    delivery_count: int
    reason: str
    message: str


class DeadLetters:
    """Writes the dead letters of all share groups."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._breakers: dict[str, Breaker] = {}
        self._problems: dict[str, str] = {}  # by group, what was said in the log already

    def is_enabled(self, group_id: str) -> bool:
        """Whether the group has a dead-letter topic."""
        return bool(self._broker.configs.group(group_id).errors_deadletterqueue_topic_name)

    async def write(
        self, group_id: str, partition: Partition, letters: Sequence[DeadLetter]
    ) -> None:
        """Write the letters; they are durable when this returns. Waits while the breaker is open.

        Raises `ApiError` if they cannot be written: keep the records, and try again later.
        """
        topic = self._broker.configs.group(group_id).errors_deadletterqueue_topic_name
        if not letters or not topic:
            return
        if partition.topic == topic:
            self._say_once(
                group_id, f"{topic} is its own dead-letter topic: what fails stays there"
            )
            return
        try:
            target = await self._target(topic, partition.index)
            await self._pass_breaker(group_id, len(letters))
            records = await self._compose(group_id, partition, letters)
            for batch in _batches(records, target.log.config.max_message_bytes):
                await target.append(batch, acks=ACKS_ALL)
        except ApiError as error:
            self._say_once(
                group_id, f"its dead letters cannot be written, its failed records wait: {error}"
            )
            raise
        self._problems.pop(group_id, None)

    def _say_once(self, group_id: str, problem: str) -> None:
        if self._problems.get(group_id) != problem:
            self._problems[group_id] = problem
            logger.warning("share group %s: %s", group_id, problem)

    # The topic

    async def _target(self, topic: str, source_index: int) -> Partition:
        """Where letters of this partition go. Raises `ApiError` if the topic may not take them."""
        config = self._broker.config
        if not topic.startswith(config.errors_deadletterqueue_topic_name_prefix):
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"the name of dead-letter topic {topic} does not begin with "
                f"{config.errors_deadletterqueue_topic_name_prefix!r}, which the broker's "
                "errors.deadletterqueue.topic.name.prefix asks for",
            )
        if topic not in self._broker.metadata.image.topics:
            await self._create(topic)
        if not self._broker.configs.topic(topic).errors_deadletterqueue_group_enable:
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"topic {topic} takes no dead letters: set {ENABLE_SETTING}=true on it",
            )
        count = len(self._broker.metadata.image.topics[topic].partitions)
        target = self._broker.partitions.get(topic, source_index % count)
        if target is None:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                f"dead-letter partition {topic}-{source_index % count} is not led by this broker",
            )
        return target

    async def _create(self, topic: str) -> None:
        if not self._broker.config.errors_deadletterqueue_auto_create_topics_enable:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"dead-letter topic {topic} does not exist: create it with {ENABLE_SETTING}=true, "
                "or set the broker's errors.deadletterqueue.auto.create.topics.enable",
            )
        settings = {ENABLE_SETTING: "true", "message.timestamp.type": "CreateTime"}
        outcome = (await self._broker.topics.create([NewTopic(topic, settings=settings)]))[topic]
        if isinstance(outcome, ApiError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise outcome

    # The breaker

    async def _pass_breaker(self, group_id: str, count: int) -> None:
        limit = self._broker.config.millstream_deadletterqueue_max_records_per_second
        if limit == 0:
            return
        now_ms = self._broker.clock.monotonic_ms()
        breaker = self._breakers.get(group_id)
        if breaker is None:
            self._forget_idle_breakers(now_ms)
            breaker = self._breakers[group_id] = Breaker(limit, now_ms)
        breaker.change_limit(limit, now_ms)
        was_open = breaker.is_open
        wait_ms = breaker.admit(count, now_ms)
        if breaker.is_open and not was_open:
            logger.warning(
                "share group %s: the breaker of its dead letters is open: more than %d records "
                "per second fail (millstream.deadletterqueue.max.records.per.second). They wait, "
                "none is lost; look at its members",
                group_id,
                limit,
            )
            self._broker.start_task(self._close_breaker(group_id, breaker))
        if wait_ms > 0:
            await asyncio.sleep(wait_ms / 1000)

    async def _close_breaker(self, group_id: str, breaker: Breaker) -> None:
        """Wait for the end of the flood, and say so."""
        clock = self._broker.clock
        while (wait_ms := breaker.closes_in_ms(clock.monotonic_ms())) > 0:
            await asyncio.sleep(wait_ms / 1000)
        seconds = (clock.monotonic_ms() - (breaker.opened_at_ms or 0)) / 1000
        logger.warning(
            "share group %s: the breaker of its dead letters is closed again after %.1f s, in "
            "which %d records waited",
            group_id,
            seconds,
            breaker.delayed_records,
        )
        breaker.close()

    def _forget_idle_breakers(self, now_ms: int) -> None:
        for group_id in [it for it, known in self._breakers.items() if known.is_idle(now_ms)]:
            del self._breakers[group_id]

    # The letters

    async def _compose(
        self, group_id: str, partition: Partition, letters: Sequence[DeadLetter]
    ) -> list[Record]:
        """The letters as records of the dead-letter topic."""
        offsets = [letter.offset for letter in letters]
        try:
            found = await self._broker.run_blocking(_read_records, partition, offsets)
        except OSError as error:
            message = f"{partition.topic}-{partition.index} cannot be read: {error}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, message) from error
        copies = self._broker.configs.group(group_id).errors_deadletterqueue_copy_record_enable
        now_ms = self._broker.clock.now_ms()
        records: list[Record] = []
        for letter in letters:
            original = found[letter.offset]
            if original is None:
                continue
            if isinstance(original, Record):
                headers = _headers(group_id, partition, letter, original)
                if copies:
                    headers = original.headers + headers
                    records.append(Record(0, now_ms, original.key, original.value, headers))
                    continue
            else:
                letter = letter._replace(message=f"{letter.message} {original}")
                headers = _headers(group_id, partition, letter, None)
            records.append(Record(0, now_ms, None, None, headers))
        return records


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


def _read_records(partition: Partition, offsets: Iterable[int]) -> dict[int, Record | str | None]:
    """The records at these offsets, or why there is none; None for a transaction's marker.

    Reads the disk: call it in a thread.
    """
    missing = set(offsets)
    found: dict[int, Record | str | None] = {}
    for offset in sorted(missing):
        if offset in found:
            continue
        try:
            data = partition.read(offset, max_bytes=READ_BYTES, may_block=True)
            records = _batch_with(offset, data)
        except CorruptBatch as error:
            found[offset] = f"The record could not be read: {error}"
            continue
        except ApiError as error:
            if error.code not in (ErrorCode.OFFSET_OUT_OF_RANGE, ErrorCode.CORRUPT_MESSAGE):
                raise
            found[offset] = f"The record could not be read: {error.message}"
            continue
        found.update((at, it) for at, it in records.items() if at in missing)
        found.setdefault(offset, "The record could not be read: it is no longer in the log.")
    return found


def _batch_with(offset: int, data: bytes | bytearray) -> dict[int, Record | None]:
    """The records of the batch that this offset is in, if it is there."""
    for position, header in iterate_headers(data):
        if header.base_offset <= offset <= header.last_offset:
            records = decode_batch(data, position)
            return {it.offset: None if header.is_control else it for it in records}
    return {}


def _batches(records: Sequence[Record], size_bytes_max: int) -> Iterator[bytes]:
    """The letters in as few batches as the topic's max.message.bytes allows."""
    if not records:
        return
    batch = encode_batch(replace(it, offset=index) for index, it in enumerate(records))
    if len(batch) <= size_bytes_max:
        yield batch
    elif len(records) > 1:
        middle = len(records) // 2
        yield from _batches(records[:middle], size_bytes_max)
        yield from _batches(records[middle:], size_bytes_max)
    else:
        yield encode_batch([_without_copy(records[0])])


def _without_copy(letter: Record) -> Record:
    """The letter with its own headers alone, since the topic does not take it with the record."""
    headers = {name: value for name, value in letter.headers if name.startswith(HEADER_PREFIX)}
    message = headers[HEADER_PREFIX + "message"] or b""
    headers[HEADER_PREFIX + "message"] = message + b" The record is too large to be copied."
    return Record(0, letter.timestamp, None, None, tuple(headers.items()))
