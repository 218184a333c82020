"""The topics of a capture: changes and position in one Kafka transaction.

The transactional id belongs to the capture. Opening an `Output` fences the previous one with the
same id and aborts its open transaction; only then the position is read, committed records only. So
the position is final, and the previous `Output` can no longer write.

A producer is fenced by another process, but also if its transaction times out, or if a repeated
InitProducerId of its own arrives late. The stored state therefore names its owner, the process that
was started last. A fenced process continues if the state is still its own, and stops otherwise.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_committed, log_end_offset, log_start_offset
from millstream.client.producing import RawProducer
from millstream.client.topics import NewTopic, create_topics
from millstream.client.transactions import FENCED, begin_transaction
from millstream.connect.capture.position import (
    POSITION_PARTITION,
    STATE_PARTITION,
    CaptureState,
    Position,
)
from millstream.connect.capture.settings import COMPRESSIONS, CaptureSettings
from millstream.connect.capture.tables import CaptureError
from millstream.errors import ApiError, ErrorCode
from millstream.records.columns import decode_columns, encode_batches
from millstream.records.record import Record, encode_batch

if TYPE_CHECKING:
    from millstream.connect.capture.encoding import ChangeColumns

BATCH_BYTES_MAX = 512 * 1024
READ_BACK_OFFSETS = 1000  # the last position is among these, unless many transactions were aborted
TRANSACTION_TIMEOUT_MS = 60_000
ATOMIC_TIMEOUT_MS = 15 * 60_000  # transaction.max.timeout.ms of brokers
TOPIC_SECONDS_OLD_MAX = 300.0
REACH_SECONDS = 5.0  # for an answer of a broker; a running capture then tries again
MISSING_TOPIC_SECONDS = 5.0  # for a deleted topic; another `Output` then creates it again
POSITION_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": str(16 * 1024 * 1024)}
# Answers after the transaction was ended by others.
LOST = (*FENCED, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
KEYS = {POSITION_PARTITION: b"position", STATE_PARTITION: b"state"}


class CaptureFenced(CaptureError):
    """Another process runs the same capture."""


class TransactionLost(OSError):
    """The broker has ended the transaction: another process took over, or the time ran out. Opening
    another `Output` with the same owner finds out."""


@dataclass
class Owner:
    """A process that runs a capture, through all its sessions."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    has_claimed: bool = False  # the state that it has read or written names it


class Output:
    """See the module. One thread at a time."""

    def __init__(self, settings: CaptureSettings, *, timeout_seconds: float = 60.0) -> None:
        self._settings = settings
        self._cluster = self._new_cluster(timeout_seconds)
        self._producer = RawProducer(self._cluster)
        self._compression = COMPRESSIONS[settings.compression]
        self._existing: set[str] = set()
        self._is_open = False

    def _new_cluster(self, timeout_seconds: float) -> Cluster:
        return Cluster(
            self._settings.broker,
            client_id=f"capture-{self._settings.name}",
            security=self._settings.security or None,
            timeout_seconds=timeout_seconds,
            missing_topic_seconds=MISSING_TOPIC_SECONDS,
        )

    @property
    def is_open(self) -> bool:
        """Whether something was written since the last commit."""
        return self._is_open

    def close(self) -> None:
        self._cluster.close()

    # Opening

    def open(self, owner: Owner) -> CaptureState | None:
        """Become the writer of this capture, and return the state, which names `owner`. An owner
        that has claimed it before continues only if no other process has claimed it since."""
        self._reach()
        new = NewTopic(self._settings.position_topic, len(KEYS), POSITION_SETTINGS)
        create_topics(self._cluster, [new])
        if owner.has_claimed:
            self.refuse_replaced(owner, self.read_state())  # without fencing the other process
        timeout_ms = ATOMIC_TIMEOUT_MS if self._settings.atomic else TRANSACTION_TIMEOUT_MS
        self._producer.resume(
            begin_transaction(self._cluster, self._settings.transactional_id, timeout_ms)
        )
        # Another process that claimed it in between is fenced now; it will continue.
        state = self.read_state()
        self.refuse_replaced(owner, state)
        if state is None:
            return None  # the first state will name the owner
        if state.owner != owner.id:
            state = replace(state, owner=owner.id)
            self.commit_state(state)
        owner.has_claimed = True
        return state

    def refuse_replaced(self, owner: Owner, state: CaptureState | None) -> None:
        """Raise if another process has claimed the capture since `owner` did."""
        if owner.has_claimed and state is not None and state.owner != owner.id:
            raise CaptureFenced(
                f"another process has taken over capture {self._settings.name}; this one stops. "
                "Run each capture once, or give the other one another name"
            )

    def _reach(self) -> None:
        """Fail soon if no broker answers: an address may be wrong."""
        with self._new_cluster(REACH_SECONDS) as cluster:
            try:
                cluster.retrying(lambda: cluster.refresh([]))
            except OSError as error:
                raise ConnectionError(
                    f"{error}. Check `broker` ({self._settings.broker}), that the broker runs, and "
                    "that no firewall is in between"
                ) from error
            problems = []
            for broker in cluster.broker_ids(seconds_old_max=REACH_SECONDS):
                try:
                    cluster.connection(broker)
                    return
                except OSError as error:
                    problems.append(str(error))
        raise ConnectionError(
            f"{self._settings.broker} answers, but the addresses that it advertises cannot be "
            f"reached ({'; '.join(problems)}). Check advertised.listeners of the broker"
        )

    def exists(self) -> bool:
        """Whether the position topic is there: before the first run it is not."""
        self._reach()
        return bool(
            self._cluster.retrying(lambda: self._cluster.refresh([self._settings.position_topic]))
        )

    def read_stored(self) -> tuple[CaptureState | None, Position | None]:
        """The state and the position, without fencing a running process."""
        if not self.exists():
            return None, None
        return self.read_state(), self.read_position()

    def read_position(self) -> Position | None:
        value = self._read_last(POSITION_PARTITION)
        return None if value is None else Position.decode(value)

    def read_state(self) -> CaptureState | None:
        value = self._read_last(STATE_PARTITION)
        return None if value is None else CaptureState.decode(value)

    def _read_last(self, partition: int) -> bytes | None:
        """The value of the last committed record, looking back further and further."""
        topic = self._settings.position_topic
        start = log_start_offset(self._cluster, topic, partition)
        end = log_end_offset(self._cluster, topic, partition)
        back = READ_BACK_OFFSETS
        while True:
            first = max(end - back, start)
            found = self._last_between(partition, first, end)
            if found is not None or first == start:
                return found
            back *= 10

    def _last_between(self, partition: int, first: int, end: int) -> bytes | None:
        topic, offset, found = self._settings.position_topic, first, None
        while offset < end:
            part = fetch_committed(self._cluster, topic, partition, offset)
            columns = decode_columns(part.records, first_offset=offset, aborted=part.aborted)
            if columns.next_offset <= offset:
                break
            offset = columns.next_offset
            if columns.row_count:
                ends = memoryview(columns.values.offsets).cast("i")
                data = memoryview(columns.values.data)
                found = bytes(data[ends[columns.row_count - 1] : ends[columns.row_count]])
        return found

    # Writing

    def create_topics(self, topics: Iterable[str]) -> None:
        """Create topics that do not exist yet."""
        names = [name for name in topics if name not in self._existing]
        settings = self._settings
        create_topics(
            self._cluster,
            [NewTopic(it, settings.partitions, settings.settings_of_topic(it)) for it in names],
        )
        self._existing.update(names)

    def write(self, topic: str, columns: ChangeColumns, without: Collection[bytes] = ()) -> None:
        """Send records; returns before they are acknowledged."""
        if topic not in self._existing:
            self.create_topics([topic])
        info = self._cluster.retrying(
            lambda: self._cluster.topic(topic, seconds_old_max=TOPIC_SECONDS_OLD_MAX)
        )
        encoder = columns.row_encoder()
        self._is_open = True
        parts = columns.rows_by_partition(len(info.partitions), without)
        for partition, rows in enumerate(parts):
            if not len(rows):
                continue
            for batch, count in encode_batches(
                encoder,
                rows,
                batch_bytes_max=BATCH_BYTES_MAX,
                compression=self._compression,
                producer=self._producer.identity(topic, partition),
            ):
                self._send(topic, partition, batch, count)

    def flush(self) -> None:
        """Wait until everything is acknowledged; the transaction stays open."""
        self._guard(self._producer.flush)

    def commit(self, position: Position, state: CaptureState | None = None) -> None:
        """Commit what was written, with the position, and the state if it has changed."""
        self._is_open = True
        self._send_own(POSITION_PARTITION, position.encode())
        if state is not None:
            self._send_own(STATE_PARTITION, state.encode())
        self._guard(lambda: self._producer.end(commit=True))
        self._is_open = False

    def commit_state(self, state: CaptureState) -> None:
        """Commit the state alone, before there is a position."""
        self._send_own(STATE_PARTITION, state.encode())
        self._guard(lambda: self._producer.end(commit=True))

    def _send_own(self, partition: int, value: bytes) -> None:
        topic = self._settings.position_topic
        identity = self._producer.identity(topic, partition)
        record = Record(0, time.time_ns() // 1_000_000, KEYS[partition], value)
        batch = encode_batch(
            [record],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=identity.base_sequence,
            is_transactional=True,
        )
        self._send(topic, partition, batch, 1)

    def _send(self, topic: str, partition: int, batch: bytes, count: int) -> None:
        self._guard(lambda: self._producer.send(topic, partition, batch, count))

    def _guard(self, attempt: Callable[[], object]) -> None:
        try:
            attempt()
        except ApiError as error:
            if error.code in LOST:
                raise TransactionLost(
                    "the broker has ended the transaction: another process took over, or it was "
                    f"open for too long ({error.code.name})"
                ) from error
            raise
