"""What a coordinator replays of its log: held against Kafka's rule, record by record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from millstream.broker.coordinators.loading import (
    Histories,
    LastRecords,
    LoadedRecord,
    SnapshotOffsets,
)
from millstream.coordination.record_codec import STRING, Field, RecordCodec, RecordType, Schema
from millstream.records.batch import NO_PRODUCER_ID, parse_header
from millstream.records.record import (
    ControlType,
    Record,
    assemble_batch,
    encode_batch,
    encode_end_transaction,
)


@dataclass
class Log:
    """Batches as a coordinator writes them, in chunks as they are read."""

    chunks: list[bytes] = field(default_factory=list)
    end: int = 0

    def plain(self, *pairs: tuple[bytes, bytes | None]) -> None:
        self._add(pairs)

    def pending(self, producer_id: int, *pairs: tuple[bytes, bytes | None]) -> None:
        self._add(pairs, producer_id=producer_id, producer_epoch=0, is_transactional=True)

    def _add(self, pairs: tuple[tuple[bytes, bytes | None], ...], **options: Any) -> None:
        records = [Record(self.end + i, 1_000, *pair) for i, pair in enumerate(pairs)]
        self.chunks.append(encode_batch(records, **options))
        self.end += len(pairs)

    def ended(self, producer_id: int, committed: bool) -> None:
        self.chunks.append(
            encode_end_transaction(
                ControlType.COMMIT if committed else ControlType.ABORT,
                offset=self.end,
                timestamp=1_000,
                producer_id=producer_id,
                producer_epoch=0,
                coordinator_epoch=0,
            )
        )
        self.end += 1

    def load(self, chunk_batches: int = 1) -> list[LoadedRecord]:
        records = LastRecords()
        next_offset = 0
        for start in range(0, len(self.chunks), chunk_batches):
            chunk = b"".join(self.chunks[start : start + chunk_batches])
            next_offset = records.collect(chunk)
        assert next_offset == self.end
        return list(records)


def committed(loaded: list[LoadedRecord]) -> dict[bytes, bytes | None]:
    return {it.key: it.value for it in loaded if it.producer_id == NO_PRODUCER_ID}


def still_open(loaded: list[LoadedRecord]) -> list[tuple[int, bytes, bytes | None]]:
    return [(it.producer_id, it.key, it.value) for it in loaded if it.producer_id >= 0]


def test_records_of_a_transaction_count_once_it_is_committed() -> None:
    log = Log()
    log.plain((b"a", b"before"), (b"b", b"before"))
    log.pending(1, (b"a", b"in 1"))
    log.pending(2, (b"b", b"in 2"))
    assert committed(log.load()) == {b"a": b"before", b"b": b"before"}
    log.ended(1, committed=True)
    log.ended(2, committed=False)
    assert committed(log.load()) == {b"a": b"in 1", b"b": b"before"}


def test_what_is_still_open_stays_pending() -> None:
    log = Log()
    log.pending(1, (b"a", b"old"))
    log.pending(1, (b"a", b"new"), (b"b", b"x"))
    log.plain((b"a", b"plain"))
    loaded = log.load()
    assert still_open(loaded) == [(1, b"a", b"new"), (1, b"b", b"x")]
    assert committed(loaded) == {b"a": b"plain"}
    assert [it.offset for it in loaded] == sorted(it.offset for it in loaded)


def test_record_newer_than_that_of_a_later_commit_wins() -> None:
    log = Log()
    log.pending(1, (b"a", b"older record"))
    log.plain((b"a", b"newer record"))
    log.ended(1, committed=True)
    assert committed(log.load()) == {b"a": b"newer record"}


def test_records_are_replayed_in_the_order_of_the_log_whenever_they_were_committed() -> None:
    log = Log()
    log.plain((b"c", b"first"))
    log.pending(1, (b"a", b"second"))
    log.plain((b"b", b"third"))
    log.ended(1, committed=True)
    assert [it.value for it in log.load()] == [b"first", b"second", b"third"]


def test_tombstone_removes_what_is_pending() -> None:
    log = Log()
    log.pending(1, (b"a", b"x"))
    log.plain((b"a", None))
    assert log.load() == []
    log.ended(1, committed=True)
    assert log.load() == []


def test_marker_that_compaction_emptied_says_nothing() -> None:
    log = Log()
    log.plain((b"a", b"x"))
    log.ended(1, committed=True)
    log.chunks[-1] = assemble_batch(parse_header(log.chunks[-1])._replace(record_count=0), b"")
    assert committed(log.load()) == {b"a": b"x"}


# --- against Kafka's way: every record replayed in order, with its offset beside it

KEYS = st.sampled_from([b"a", b"b", b"c"])
PRODUCERS = st.integers(1, 3)
STEPS = st.one_of(
    st.tuples(st.just("plain"), KEYS, st.booleans()),
    st.tuples(st.just("pending"), PRODUCERS, KEYS),
    st.tuples(st.just("ended"), PRODUCERS, st.booleans()),
)


class Reference:
    """Replays as Kafka's OffsetMetadataManager does."""

    def __init__(self) -> None:
        self.committed: dict[bytes, tuple[int, bytes]] = {}
        self.pending: dict[int, dict[bytes, tuple[int, bytes]]] = {}

    def plain(self, key: bytes, value: bytes | None, offset: int) -> None:
        if value is not None:
            self.committed[key] = (offset, value)
            return
        self.committed.pop(key, None)
        for pending in self.pending.values():
            pending.pop(key, None)

    def ended(self, producer_id: int, committed: bool) -> None:
        for key, (offset, value) in self.pending.pop(producer_id, {}).items():
            known = self.committed.get(key)
            if committed and (known is None or known[0] < offset):
                self.committed[key] = (offset, value)


@given(st.lists(STEPS, max_size=30), st.integers(1, 4))
def test_loading_comes_to_what_replaying_everything_would(
    steps: list[tuple[str, Any, Any]], chunk_batches: int
) -> None:
    log, reference = Log(), Reference()
    for number, (what, subject, more) in enumerate(steps):
        offset, value = log.end, b"%d" % number
        if what == "plain":
            plain_value = value if more else None
            log.plain((subject, plain_value))
            reference.plain(subject, plain_value, offset)
        elif what == "pending":
            log.pending(subject, (more, value))
            pending = reference.pending.setdefault(subject, {})
            pending[more] = (offset, value)
        else:
            log.ended(subject, more)
            reference.ended(subject, more)
    loaded = log.load(chunk_batches)
    assert committed(loaded) == {key: value for key, (_, value) in reference.committed.items()}
    expected = [
        (offset, producer_id, key, value)
        for producer_id, pending in reference.pending.items()
        for key, (offset, value) in pending.items()
    ]
    found = [(it.offset, it.producer_id, it.key, it.value) for it in loaded if it.producer_id >= 0]
    # A tombstone is not seen once a newer record of its key has replaced it. What it would have
    # removed stays pending then, but cannot win: the newer record stands after it.
    for offset, _, key, _ in set(found) - set(expected):
        assert reference.committed[key][0] > offset
    assert set(expected) <= set(found)
    assert [it.offset for it in loaded] == sorted(it.offset for it in loaded)


# --- snapshots and updates


@dataclass(frozen=True)
class Snapshot:
    name: str


@dataclass(frozen=True)
class Update:
    name: str


@dataclass(frozen=True)
class Text:
    text: str


_TEXT = Schema(Text, (Field("text", STRING),))
CODEC = RecordCodec(
    (
        RecordType(0, Schema(Snapshot, (Field("name", STRING),)), _TEXT),
        RecordType(1, Schema(Update, (Field("name", STRING),)), _TEXT, is_update=True),
    ),
    lambda value: 0,
)


def history(*records: tuple[Snapshot | Update, str | None]) -> list[tuple[object, object]]:
    """What is replayed after these records were written."""
    encoded = [CODEC.encode(key, Text(text) if text is not None else None) for key, text in records]
    histories = Histories(CODEC)
    for offset, pair in enumerate(encoded):
        assert histories.collect(encode_batch([Record(offset, 1_000, *pair)])) == offset + 1
    decoded = (CODEC.decode(it.key, it.value) for it in histories)
    return [(it[0], it[1].text) for it in decoded if it is not None and it[1] is not None]


def test_updates_after_the_last_snapshot_are_replayed_in_order() -> None:
    assert history(
        (Snapshot("a"), "1"),
        (Update("a"), "2"),
        (Snapshot("b"), "3"),
        (Snapshot("a"), "4"),
        (Update("a"), "5"),
        (Update("b"), "6"),
        (Update("a"), "7"),
    ) == [
        (Snapshot("a"), "4"),
        (Update("a"), "5"),
        (Update("a"), "7"),
        (Snapshot("b"), "3"),
        (Update("b"), "6"),
    ]


def test_deleted_history_is_not_replayed() -> None:
    assert history((Snapshot("a"), "1"), (Update("a"), "2"), (Snapshot("a"), None)) == []
    # Its snapshot was pruned already, what followed was not.
    assert history((Update("a"), "2"), (Snapshot("a"), None)) == []


def test_nothing_before_the_oldest_last_snapshot_counts() -> None:
    snapshots = SnapshotOffsets(CODEC)
    assert snapshots.first(otherwise=9) == 9
    for offset, key in enumerate([Snapshot("a"), Snapshot("b"), Update("a"), Snapshot("a")]):
        snapshots.observe(*CODEC.encode(key, Text("x")), offset)
    assert snapshots.first(otherwise=9) == 1
    snapshots.observe(*CODEC.encode(Snapshot("b"), None), 4)
    assert snapshots.first(otherwise=9) == 3
