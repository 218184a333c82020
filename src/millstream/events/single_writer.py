"""Handles the commands of a topic, one process per partition: works on any Kafka.

    writer = SingleWriter(
        bootstrap_servers,
        aggregate,
        commands="claims",
        events="seats",
        replies="answers",
        partition=0,
        decode=json.loads,
    )
    writer.run(stopping.is_set)

Commands are records: the key is the aggregate's id, the value is the command, the header
`command-id` identifies it. The writer decides them in order. One transaction has the events, the
replies and the position in the topic of commands. A second writer of the same partition fences the
first by its transactional id. So conflicts are decided and not retried, and no conditional append
is needed.

What it cannot do, other than `CommandHandler`: an answer comes through the topic of replies, with
the latency of a transaction; a command handler inside a web server has to wait for it there. And
nothing keeps others from writing to the topic of events: on Apache Kafka, use ACLs.

The topics must have the same number of partitions, and producers must choose the partition of a
command by its key. Partitions must not be added. The position is committed with the id of the topic
of commands and with its number of partitions, so that the next writer notices that partitions were
added, and reads a topic that was created again from its start.

A command that cannot be read is refused, whatever `decode` raises. An error in `decide` or `evolve`
is one of the code: it ends the writer, and nothing is committed.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic

from millstream.client.cluster import CoordinatorKind, check
from millstream.client.producing import RawProducer
from millstream.client.security import Security
from millstream.client.transactions import commit_offsets
from millstream.errors import ConfigError, ErrorCode, MillstreamError
from millstream.events.aggregate import Aggregate, Command, Refusal, State
from millstream.events.event import Origin, encode_event
from millstream.events.handler import stored_events
from millstream.events.log import EventLog, LogChanged, Read, RecordsDeleted
from millstream.events.view import View
from millstream.records.record import Record, encode_batch

COMMAND_ID_HEADER = "command-id"
CORRELATION_HEADER = "correlation-id"
COMMANDS_MAX = 500  # in one transaction
WAIT_MS = 500


class NotACommand(MillstreamError):
    """A record of the topic of commands that cannot be decided."""


class SingleWriter(Generic[State, Command]):
    """See the module. Creating it fences an earlier writer of the partition. `may_lose_events`
    allows a topic of events with retention: see `CommandHandler`."""

    def __init__(
        self,
        bootstrap_servers: str,
        aggregate: Aggregate[State, Command],
        *,
        commands: str,
        events: str,
        replies: str,
        partition: int,
        decode: Callable[[bytes], Command],
        may_lose_events: bool = False,
        transaction_timeout_ms: int = 10_000,
        security: Security | Mapping[str, str] | None = None,
    ) -> None:
        self._aggregate = aggregate
        self._decode = decode
        self._partition = partition
        self._group = f"{events}-writer"
        self._events = EventLog(bootstrap_servers, events, security=security)
        self._commands = EventLog.beside(self._events, commands)
        self._replies = EventLog.beside(self._events, replies)
        self._check_topics()
        if not may_lose_events:
            self._events.check_kept()
        self._producer = RawProducer(self._events.cluster)
        # First of all: what the previous writer had not committed is aborted now.
        self._producer.begin(f"{events}-writer-{partition}", transaction_timeout_ms)
        self._view: View[State] = View(aggregate, position=self._events.start_offset(partition))
        for read, next_offset in self._events.events_since(partition, self._view.position):
            for stored in read:
                self._view.apply(stored)
            self._view.position = next_offset
        self._position = self._start_position()

    def close(self) -> None:
        """Close the connections to the cluster."""
        self._events.close()

    def run(self, is_stopped: Callable[[], bool]) -> None:
        """Handle commands until stopped. Raises `ApiError` with PRODUCER_FENCED or
        INVALID_PRODUCER_EPOCH when another writer has taken over. After any error, go on with a
        new writer."""
        while not is_stopped():
            self.handle_next()

    def handle_next(self, *, wait_ms: int = WAIT_MS) -> int:
        """Handle the next commands in one transaction; returns how many. Raises `LogChanged` if a
        topic was created again, or has more partitions."""
        read = self._read(wait_ms)
        records = read.records[:COMMANDS_MAX]
        if not records:
            self._position = read.next_offset
            return 0
        events: list[Record] = []
        replies: list[Record] = []
        now_ms = int(time.time() * 1000)
        for record in records:
            self._decide(record, now_ms, events, replies)
        self._position = records[-1].offset + 1
        self._write(events, replies)
        return len(records)

    def _decide(
        self, record: Record, now_ms: int, events: list[Record], replies: list[Record]
    ) -> None:
        # The place of a command without an id identifies it as well; in events, with the topic's
        # id, because a topic that was created again has the same places.
        place = f"{self._commands.topic}-{self._partition}@{record.offset}"
        headers = {name: value for name, value in record.headers if value is not None}
        given_id = headers.get(COMMAND_ID_HEADER)
        command_id = place.encode() if given_id is None else given_id
        try:
            aggregate_id = _text(record.key, "key")
            origin = Origin(
                f"{place}#{self._commands.topic_id}"
                if given_id is None
                else _text(given_id, f"header {COMMAND_ID_HEADER}"),
                _text(headers.get(CORRELATION_HEADER, b""), f"header {CORRELATION_HEADER}"),
            )
            reply = self._decided(aggregate_id, origin, record.value or b"", now_ms, events)
        except NotACommand as error:
            reply = {"accepted": False, "reason": f"not a command: {error}"}
        replies.append(Record(len(replies), now_ms, command_id, json.dumps(reply).encode()))

    def _decided(
        self, aggregate_id: str, origin: Origin, value: bytes, now_ms: int, events: list[Record]
    ) -> dict[str, Any]:
        """The reply; adds the events. Raises `NotACommand`."""
        current = self._view.get(aggregate_id)
        done = current.find(origin.command_id)
        if done is not None:
            return {"accepted": True, "version": done.last_version}
        decision = self._aggregate.decision(current.state, self._command(value))
        if isinstance(decision, Refusal):
            return {"accepted": False, "reason": decision.reason}
        for stored in stored_events(aggregate_id, current.version, decision, origin):
            events.append(encode_event(stored, len(events), now_ms))
            self._view.apply(stored)
        return {"accepted": True, "version": self._view.get(aggregate_id).version}

    def _command(self, value: bytes) -> Command:
        """Raises `NotACommand`, whatever `decode` raises: a command that cannot be read must not
        hold up those after it."""
        try:
            return self._decode(value)
        except ValueError as error:
            raise NotACommand(str(error)) from error
        except Exception as error:
            raise NotACommand(f"{type(error).__name__}: {error}") from error

    def _write(self, events: list[Record], replies: list[Record]) -> None:
        producer, cluster = self._producer, self._events.cluster
        topics = [(self._replies.topic, replies)] + (
            [(self._events.topic, events)] if events else []
        )
        producer.join([(topic, self._partition) for topic, _ in topics], self._group)
        for topic, records in topics:
            identity = producer.identity(topic, self._partition)
            batch = encode_batch(
                records,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                base_sequence=identity.base_sequence,
                is_transactional=True,
            )
            producer.send(topic, self._partition, batch, len(records))
        producer.flush()
        assert producer.transaction is not None
        partition = (self._commands.topic, self._partition)
        position, stamp = {partition: self._position}, {partition: self._stamp()}
        commit_offsets(cluster, producer.transaction, self._group, position, stamp)
        self._check_topics()  # not earlier: what was written must be in the topics that were read
        producer.end(commit=True)

    # Topics and positions

    def _check_topics(self) -> None:
        """Raises `LogChanged` if a topic was created again, or has more partitions; `ConfigError`
        if the topics do not fit together."""
        self._commands.check_unchanged(self._events, self._replies)
        for log in (self._events, self._replies):
            if log.partition_count < self._commands.partition_count:
                raise ConfigError(
                    f"topic {log.topic} has {log.partition_count} partitions, and "
                    f"{self._commands.topic} has {self._commands.partition_count}: the topics of a "
                    "single writer must have the same number"
                )

    def _read(self, wait_ms: int) -> Read:
        try:
            return self._commands.read(self._partition, self._position, wait_ms=wait_ms)
        except RecordsDeleted as error:
            raise RecordsDeleted(
                f"{error}. To go on with the commands that are left: millstream group reset "
                f"{self._group} --topic {self._commands.topic}:{self._partition} --to-earliest "
                "--execute"
            ) from None

    def _stamp(self) -> str:
        """Committed with the position."""
        topic_id, count = self._commands.topic_id, self._commands.partition_count
        return json.dumps({"topic_id": str(topic_id), "partitions": count})

    def _start_position(self) -> int:
        """The committed position; the start of a topic without one, or that was created again."""
        topic_id, count = str(self._commands.topic_id), self._commands.partition_count
        others = [it for it in range(count) if it != self._partition]
        (own,) = self._committed([self._partition], is_stable=True)
        rest = self._committed(others, is_stable=False) if others else []
        for committed in [own, *rest]:
            stamp = _stamp_of(committed)
            if stamp.get("topic_id") == topic_id and stamp["partitions"] != count:
                raise LogChanged(
                    f"topic {self._commands.topic} had {stamp['partitions']} partitions and has "
                    f"{count}: keys are in other partitions now, without their earlier events. "
                    "Copy the events, by key, to a new topic with as many partitions, and use it "
                    "with a new topic of commands"
                )
        offset = int(own.committed_offset)
        if offset < 0 or _stamp_of(own).get("topic_id", topic_id) != topic_id:
            return self._commands.start_offset(self._partition)
        return offset

    def _committed(self, partitions: list[int], *, is_stable: bool) -> list[Any]:
        """The positions of the group; with `is_stable`, when no transaction is about to commit one.
        A partition that was added has none."""
        topic = self._commands.topic
        asked = {"name": topic, "partition_indexes": partitions}
        answer = self._events.cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            self._group,
            "offset_fetch",
            {"group_id": self._group, "topics": [asked], "require_stable": is_stable},
            version=7,
            error_of=_error_of_offset,
        )
        check(_error_of_offset(answer), f"the position of group {self._group}", "offset_fetch")
        found: list[Any] = list(answer.topics[0].partitions)
        return found


def _stamp_of(committed: Any) -> dict[str, Any]:
    """Empty for a position that an earlier version has committed, or an operator."""
    try:
        stamp = json.loads(committed.metadata or "{}")
    except ValueError:
        return {}
    return stamp if isinstance(stamp, dict) and "partitions" in stamp else {}


def _text(value: bytes | None, name: str) -> str:
    """Raises `NotACommand`."""
    if value is None:
        raise NotACommand(f"it has no {name}")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise NotACommand(f"its {name} is not UTF-8") from None


def _error_of_offset(answer: Any) -> ErrorCode:
    if answer.error_code is not ErrorCode.NONE:
        whole: ErrorCode = answer.error_code
        return whole
    codes: list[ErrorCode] = [it.error_code for it in answer.topics[0].partitions]
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)
