"""Which batch of a query is decided, and which transactions that decision holds.

A streaming query writes each batch in many transactions, one for each task, and leaves them open.
The *decision* says that all of them are to be committed: one record in the topic
`__millstream_decisions`, written in a transaction of the driver's own, together with the offsets of
the query's group. Before the decision a batch has not happened; after it, it has, and whoever finds
the decision can and must complete it (`millstream.pipelines.writing.completing`).

The records, JSON, in the topic's only partition (compacted; see docs/formats/decisions.md):

    decision:<id>     {"version": 1, "batch": N, "ends": {...}, "query": "...", "driver": [P, E],
                       "tasks": [...]}
                      in the driver's transaction; "ends" is where the batch ends in its sources
    completed:<id>    {"version": 1, "batch": N, "driver": [P, E]}
                      when all of it is committed
    owner:<id>        {"version": 1, "owner": "..."}
                      in a transaction of the driver, when it takes over

where <id> is the driver's transactional id. All keep their last value: the last committed record in
the log counts, as in compaction, whatever its batch and its producer id. The coordinator ends one
transaction of a driver before it begins the next, also if it gives the driver another producer id:
when the id has expired or its epochs are used up. A batch below the last decision is decided and
completed.

Whose batch was completed, "driver" tells: the producer id and the epoch of the transaction that the
driver had begun for it. Numbers of batches begin again with another checkpoint, epochs only rise,
and who begins one completes first what is decided. So the order of `completed` records does not
matter, the highest epoch counts, and a driver that has been superseded does no harm with a late
one.

The topic is read uncommitted, up to its end, and each transaction's marker is looked for: the open
transaction of another query, whose driver has died, is then in nobody's way. A reader that has
begun the query's next transaction (InitProducerId) knows that all earlier ones have their markers.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from millstream.client.cluster import Cluster
from millstream.client.fetching import (
    Fetched,
    fetch_batches,
    last_stable_offset,
    log_end_offset,
)
from millstream.client.producing import RawProducer, WrittenRange
from millstream.client.topics import NewTopic, create_topics
from millstream.client.transactions import Transaction, commit_offsets, end_transaction
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.pipelines.offsets import DECISIONS_TOPIC, Offsets, from_json, to_json
from millstream.records.batch import NO_PRODUCER_EPOCH, BatchHeader, iterate_headers
from millstream.records.compression import Compression
from millstream.records.record import ControlType, Record, decode_batch, encode_batch

logger = logging.getLogger(__name__)

PARTITION = 0
FORMAT_VERSION = 1
TOPIC_SETTINGS = {
    "cleanup.policy": "compact",
    "segment.bytes": str(16 * 1024 * 1024),
    "max.message.bytes": str(8 * 1024 * 1024),
}
NO_BATCH = -1
FETCH_WAIT_MS = 100  # for a leader that does not know yet how far its log is replicated


class DriverEpoch(NamedTuple):
    """One beginning of the driver's transaction."""

    producer_id: int
    epoch: int


class TaskTransaction(NamedTuple):
    """What one task has written, and how to end it."""

    transaction: Transaction
    written: tuple[WrittenRange, ...]


@dataclass(frozen=True)
class Decision:
    """A batch that has happened."""

    batch_id: int
    tasks: tuple[TaskTransaction, ...] = ()
    ends: Offsets | None = None  # None where the checkpoint does not tell
    query_id: str | None = None  # in the checkpoint that numbered the batch; None where not known
    driver: DriverEpoch | None = None  # None in decisions of before this was noted

    def replaces(self, stored: Decision) -> bool:
        """Whether this decision, the last in the topic, was made after the last one of a store, or
        is the same one, written again.

        Epochs order the transactions of one producer id. Another one begins with its own epochs, so
        batch numbers count then, within a checkpoint. A query that starts over with a new
        checkpoint resets the topic before its store has a batch of it: a store's decision of
        another checkpoint than that in the topic is the older one.
        """
        if self.driver and stored.driver and self.driver.producer_id == stored.driver.producer_id:
            return self.driver.epoch >= stored.driver.epoch
        if self.query_id and stored.query_id and self.query_id != stored.query_id:
            return True
        return self.batch_id >= stored.batch_id


@dataclass
class QueryState:
    """What the topic says of one query."""

    decision: Decision = field(default_factory=lambda: Decision(NO_BATCH))
    completed_epochs: dict[int, int] = field(default_factory=dict)  # by producer id, the highest
    completed_batch_id: int = NO_BATCH  # the highest of decisions without a driver
    owner: str = ""  # the driver that took over last

    @property
    def decided_batch_id(self) -> int:
        return self.decision.batch_id

    @property
    def is_completed(self) -> bool:
        driver = self.decision.driver
        if driver is None:
            return self.completed_batch_id >= self.decision.batch_id
        return self.completed_epochs.get(driver.producer_id, NO_PRODUCER_EPOCH) >= driver.epoch


class _Written(NamedTuple):
    """A decision or an owner, and where it is in the log."""

    content: Decision | str
    offset: int


def encode_decision(decision: Decision) -> bytes:
    tasks = []
    for task in decision.tasks:
        written: dict[str, list[list[int]]] = {}
        for it in task.written:
            numbers = [it.partition, it.first_offset, it.end_offset, it.record_count]
            written.setdefault(it.topic, []).append(numbers)
        identity = task.transaction
        tasks.append(
            {
                "id": identity.transactional_id,
                "producer": identity.producer_id,
                "epoch": identity.epoch,
                "written": written,
            }
        )
    return _to_json(
        {
            "version": FORMAT_VERSION,
            "batch": decision.batch_id,
            "ends": None if decision.ends is None else to_json(decision.ends),
            "query": decision.query_id,
            "driver": decision.driver,
            "tasks": tasks,
        }
    )


def decode_decision(value: bytes) -> Decision:
    fields = _from_json(value)
    return Decision(
        int(fields["batch"]),
        tuple(
            TaskTransaction(
                Transaction(task["id"], int(task["producer"]), int(task["epoch"])),
                tuple(
                    WrittenRange(topic, *numbers)
                    for topic, ranges in task["written"].items()
                    for numbers in ranges
                ),
            )
            for task in fields["tasks"]
        ),
        None if fields["ends"] is None else from_json(fields["ends"]),
        fields.get("query"),
        _driver_in(fields),
    )


def _driver_in(fields: Mapping[str, Any]) -> DriverEpoch | None:
    found = fields.get("driver")
    return None if found is None else DriverEpoch(*found)


def _to_json(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


def _from_json(value: bytes) -> Any:
    fields = json.loads(value)
    if fields["version"] > FORMAT_VERSION:
        raise MillstreamError(
            f"a record in {DECISIONS_TOPIC} is of version {fields['version']}, written by a newer "
            "Millstream; run the query with that"
        )
    return fields


class DecisionLog:
    """One query's records in the topic; one thread at a time."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self._cluster = cluster
        self.transactional_id = transactional_id
        self._decision_key = f"decision:{transactional_id}".encode()
        self._completed_key = f"completed:{transactional_id}".encode()
        self._owner_key = f"owner:{transactional_id}".encode()
        self._state = QueryState()
        self._position = 0  # all below is in the state
        self._undecided: dict[int, _Written] = {}  # by producer id; their markers are not read yet
        self._taken: dict[type, int] = {}  # the offsets of what is in the state
        self._completions = RawProducer(cluster, purpose="completions")

    def create_topic(self) -> None:
        """Unless it is there."""
        if self._position > 0 or DECISIONS_TOPIC in self._cluster.retrying(
            lambda: self._cluster.refresh([DECISIONS_TOPIC])
        ):
            return
        try:
            create_topics(self._cluster, [NewTopic(DECISIONS_TOPIC, 1, TOPIC_SETTINGS)])
        except ApiError as error:
            raise ApiError(
                error.code,
                f"creating {DECISIONS_TOPIC}, which exactly-once delivery needs: let this user "
                "create it, or create it with 1 partition and cleanup.policy=compact",
            ) from error

    def latest(self, driver: Transaction) -> QueryState:
        """What is decided and completed; `driver` is the query's transaction, begun before.

        Raises PRODUCER_FENCED if another driver, begun since, is about to decide.
        """
        self._await_completions()
        self.committed()
        if self._undecided:
            self._take_without_markers(driver)
        return self._state

    def _take_without_markers(self, driver: Transaction) -> None:
        """Compaction drops aborted records at once, and markers later: what remains below the last
        stable offset was committed."""
        stable_offset = last_stable_offset(self._cluster, DECISIONS_TOPIC, PARTITION)
        self.committed()  # with the markers of transactions that have ended since
        for written in self._undecided.values():
            if written.offset >= stable_offset:  # its transaction is open, so it began after ours
                raise ApiError(
                    ErrorCode.PRODUCER_FENCED,
                    f"another driver of {driver.transactional_id} is deciding: stop this one",
                )
            self._take(written)
        self._undecided.clear()

    def committed(self) -> QueryState:
        """What the topic contains, without decisions whose transaction has no marker yet."""
        end_offset = log_end_offset(self._cluster, DECISIONS_TOPIC, PARTITION)
        if end_offset < self._position:
            self.forget()  # the topic was recreated
        while self._position < end_offset:
            fetched = self._fetch()
            self._position = max(self._position, fetched.log_start_offset)
            for position, header in iterate_headers(fetched.records):
                self._apply(fetched.records, position, header)
                self._position = header.next_offset
            if not fetched.records and fetched.end_offset >= end_offset:
                break  # compaction has left nothing of the rest
        return self._state

    def _fetch(self) -> Fetched:
        """What there is from here on, or from the beginning, if the topic was recreated."""
        where = (self._cluster, DECISIONS_TOPIC, PARTITION)
        try:
            return fetch_batches(*where, self._position, wait_ms=FETCH_WAIT_MS)
        except ApiError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE or self._position == 0:
                raise
        self.forget()
        return fetch_batches(*where, self._position, wait_ms=FETCH_WAIT_MS)

    def forget(self) -> None:
        """Read all of it again next time."""
        self._state, self._position = QueryState(), 0
        self._undecided.clear()
        self._taken.clear()

    def _apply(self, records: memoryview | bytes, position: int, header: BatchHeader) -> None:
        if header.is_control:
            ended = self._undecided.pop(header.producer_id, None)
            if ended is not None and _marker(records, position) is ControlType.COMMIT:
                self._take(ended)
            return
        for record in decode_batch(records, position):
            if record.value is None:
                continue
            if record.key == self._decision_key:
                decision = decode_decision(record.value)
                self._undecided[header.producer_id] = _Written(decision, record.offset)
            elif record.key == self._owner_key:
                owner = str(_from_json(record.value)["owner"])
                self._undecided[header.producer_id] = _Written(owner, record.offset)
            elif record.key == self._completed_key:
                self._note_completed(_from_json(record.value))

    def _note_completed(self, fields: Mapping[str, Any]) -> None:
        state, driver = self._state, _driver_in(fields)
        if driver is None:
            state.completed_batch_id = max(state.completed_batch_id, int(fields["batch"]))
        else:
            known = state.completed_epochs.get(driver.producer_id, NO_PRODUCER_EPOCH)
            state.completed_epochs[driver.producer_id] = max(known, driver.epoch)

    def _take(self, written: _Written) -> None:
        content, offset = written
        if offset < self._taken.get(type(content), 0):
            return  # the marker of a later one came first
        self._taken[type(content)] = offset
        if isinstance(content, str):
            self._state.owner = content
        else:
            self._state.decision = content

    # Writing

    def send_decision(self, producer: RawProducer, decision: Decision) -> None:
        """Within the producer's transaction, which the caller ends."""
        self._send(producer, self._decision_key, encode_decision(decision))

    def write_owner(self, driver: Transaction, owner: str) -> None:
        """In the driver's transaction, which is committed."""
        producer = RawProducer(self._cluster)
        producer.resume(driver)
        value = _to_json({"version": FORMAT_VERSION, "owner": owner})
        self._send(producer, self._owner_key, value)
        producer.flush()
        end_transaction(self._cluster, *driver, commit=True)

    def _send(self, producer: RawProducer, key: bytes, value: bytes) -> None:
        identity = producer.identity(DECISIONS_TOPIC, PARTITION)
        batch = encode_batch(
            [Record(0, _now_ms(), key, value)],
            compression=Compression.ZSTD,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=identity.base_sequence,
            is_transactional=True,
        )
        producer.send(DECISIONS_TOPIC, PARTITION, batch, 1)

    def write_completed(self, decision: Decision) -> None:
        """Not in a transaction, and nobody waits until it is there: it says no more than what is
        true already, and who does not find it completes the batch once more."""
        self._await_completions()
        value = _to_json(
            {
                "version": FORMAT_VERSION,
                "batch": decision.batch_id,
                "driver": decision.driver,
            }
        )
        batch = encode_batch([Record(0, _now_ms(), self._completed_key, value)])
        self._completions.send(DECISIONS_TOPIC, PARTITION, batch, 1)
        self._completions.start()

    def _await_completions(self) -> None:
        """For what was written last: it is answered long since, as a rule."""
        try:
            self._completions.flush()
        except (ApiError, OSError) as error:
            logger.warning("a completed batch could not be noted: %s", error)
            self._completions.discard()


def decide(
    cluster: Cluster,
    log: DecisionLog,
    driver: Transaction,
    decision: Decision,
    *,
    group_id: str | None,
    offsets: Offsets,
    until_durable: Callable[[], None] = lambda: None,
) -> None:
    """Make the batch happen: raises PRODUCER_FENCED if another driver has taken over.

    When anything else is raised, it is open whether the batch has happened. `until_durable` returns
    when all else is, on which the decision relies; it is called at the last moment.
    """
    producer = RawProducer(cluster)
    producer.resume(driver)
    with_offsets = group_id if offsets else None
    producer.join([(DECISIONS_TOPIC, PARTITION)], with_offsets)
    log.send_decision(producer, decision)
    producer.start()
    try:
        if with_offsets is not None:
            commit_offsets(cluster, driver, with_offsets, offsets)
        until_durable()
    except BaseException:
        producer.discard()
        raise
    producer.end(commit=True)


def _marker(records: memoryview | bytes, position: int) -> ControlType | None:
    found = decode_batch(records, position)
    return ControlType.from_key(found[0].key) if found else None


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
