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
command by its key.
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
from millstream.errors import ErrorCode
from millstream.events.aggregate import Aggregate, Command, Refusal, State
from millstream.events.event import Event, Origin, encode_event
from millstream.events.handler import stored_events
from millstream.events.log import EventLog
from millstream.events.view import View
from millstream.records.record import Record, encode_batch

COMMAND_ID_HEADER = "command-id"
CORRELATION_HEADER = "correlation-id"
COMMANDS_MAX = 500  # in one transaction
WAIT_MS = 500


class SingleWriter(Generic[State, Command]):
    """See the module. Creating it fences an earlier writer of the partition."""

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
        transaction_timeout_ms: int = 10_000,
        security: Security | Mapping[str, str] | None = None,
    ) -> None:
        self._aggregate = aggregate
        self._decode = decode
        self._partition = partition
        self._group = f"{events}-writer"
        self._events = EventLog(bootstrap_servers, events, security=security)
        self._commands = EventLog.beside(self._events, commands)
        self._replies = replies
        self._producer = RawProducer(self._events.cluster)
        # First of all: what the previous writer had not committed is aborted now.
        self._producer.begin(f"{events}-writer-{partition}", transaction_timeout_ms)
        self._view: View[State] = View(aggregate, position=self._events.start_offset(partition))
        end = self._events.end_offset(partition)
        for stored in self._events.events(partition, self._view.position, end):
            self._view.apply(stored)
        self._position = self._committed_position()

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
        """Handle the next commands in one transaction; returns how many."""
        read = self._commands.read(self._partition, self._position, wait_ms=wait_ms)
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
        headers = {name: value.decode() for name, value in record.headers if value is not None}
        # The place of a command without an id identifies it as well.
        place = f"{self._commands.topic}-{self._partition}@{record.offset}"
        origin = Origin(headers.get(COMMAND_ID_HEADER, place), headers.get(CORRELATION_HEADER, ""))
        aggregate_id = (record.key or b"").decode()
        current = self._view.get(aggregate_id)
        reply: dict[str, Any]
        done = current.find(origin.command_id)
        if done is not None:
            reply = {"accepted": True, "version": done.last_version}
        else:
            decision = self._decision(current.state, record.value or b"")
            if isinstance(decision, Refusal):
                reply = {"accepted": False, "reason": decision.reason}
            else:
                for stored in stored_events(aggregate_id, current.version, decision, origin):
                    events.append(encode_event(stored, len(events), now_ms))
                    self._view.apply(stored)
                reply = {"accepted": True, "version": self._view.get(aggregate_id).version}
        value = json.dumps(reply).encode()
        replies.append(Record(len(replies), now_ms, origin.command_id.encode(), value))

    def _decision(self, state: State, value: bytes) -> tuple[Event, ...] | Refusal:
        try:
            command = self._decode(value)
        except ValueError as error:
            return Refusal(f"not a command: {error}")
        return self._aggregate.decision(state, command)

    def _write(self, events: list[Record], replies: list[Record]) -> None:
        producer, cluster = self._producer, self._events.cluster
        topics = [(self._replies, replies)] + ([(self._events.topic, events)] if events else [])
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
        position = {(self._commands.topic, self._partition): self._position}
        commit_offsets(cluster, producer.transaction, self._group, position)
        producer.end(commit=True)

    def _committed_position(self) -> int:
        topic = self._commands.topic
        asked = {"name": topic, "partition_indexes": [self._partition]}
        answer = self._events.cluster.ask_coordinator(
            CoordinatorKind.GROUP,
            self._group,
            "offset_fetch",
            {"group_id": self._group, "topics": [asked], "require_stable": True},
            version=7,
            error_of=_error_of_offset,
        )
        check(_error_of_offset(answer), f"the position of group {self._group}", "offset_fetch")
        offset = int(answer.topics[0].partitions[0].committed_offset)
        return offset if offset >= 0 else self._commands.start_offset(self._partition)


def _error_of_offset(answer: Any) -> ErrorCode:
    if answer.error_code is not ErrorCode.NONE:
        whole: ErrorCode = answer.error_code
        return whole
    code: ErrorCode = answer.topics[0].partitions[0].error_code
    return code
