"""The compiled walks, held against the plain Python of record.py and against malformed bytes."""

from __future__ import annotations

import struct
import sys
import threading
from array import array

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records._walk import (
    NULL_KEY,
    TIMESTAMP_OUT_OF_RANGE,
    WALK_DONE,
    WALK_FULL,
    WALK_OPAQUE,
    OffsetMap,
    RecordFilter,
    check_records,
    check_small_batch,
    find_timestamp,
    hash_key,
    index_points,
    stamp_batch,
)
from millstream.records.batch import (
    DELETE_HORIZON_FLAG,
    HEADER_SIZE_BYTES,
    BatchHeader,
    iterate_headers,
    parse_header,
    verify_crc,
)
from millstream.records.compression import Compression
from millstream.records.record import (
    Record,
    assemble_batch,
    decode_batch,
    decode_records,
    encode_batch,
)
from tests.drawing import draws
from tests.records.test_record import records

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
MAP_BYTES = 24 * 1_000


def consecutive(made: list[Record]) -> list[Record]:
    return [
        Record(i, record.timestamp, record.key, record.value, record.headers)
        for i, record in enumerate(made)
    ]


def check(batch: bytes, header: BatchHeader | None = None) -> tuple[int, list[tuple[int, int]]]:
    header = header or parse_header(batch)
    return check_records(batch, HEADER_SIZE_BYTES, len(batch), header, INT64_MIN, INT64_MAX, False)


# Checking


@given(records())
def test_check_finds_the_largest_timestamp(made: list[Record]) -> None:
    made = consecutive(made)
    largest, problems = check(encode_batch(made))
    assert largest == max(-1, *(record.timestamp for record in made))
    assert problems == []


@given(records(), st.integers(INT64_MIN, INT64_MAX), st.integers(INT64_MIN, INT64_MAX))
def test_check_finds_null_keys_and_timestamps_out_of_range(
    made: list[Record], earliest: int, latest: int
) -> None:
    made = consecutive(made)
    batch = encode_batch(made)
    _, problems = check_records(
        batch, HEADER_SIZE_BYTES, len(batch), parse_header(batch), earliest, latest, True
    )
    expected = []
    for i, record in enumerate(made):
        if record.key is None:
            expected.append((i, NULL_KEY))
        elif record.timestamp != -1 and not earliest <= record.timestamp <= latest:
            expected.append((i, TIMESTAMP_OUT_OF_RANGE))
    assert problems == expected


@given(records(), st.data())
@settings(max_examples=draws(300))
def test_check_agrees_with_plain_python_on_mutated_bytes(
    made: list[Record], data: st.DataObject
) -> None:
    made = consecutive(made)
    section = bytearray(encode_batch(made)[HEADER_SIZE_BYTES:])
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.integers(0, len(section) - 1))
        kind = data.draw(st.sampled_from(["change", "insert", "delete"]))
        if kind == "change":
            section[place] ^= data.draw(st.integers(1, 255))
        elif kind == "insert":
            section.insert(place, data.draw(st.integers(0, 255)))
        elif len(section) > 1:
            del section[place]
    batch = assemble_batch(parse_header(encode_batch(made)), bytes(section))
    agree(batch)


@given(st.binary(max_size=120), st.integers(0, 20))
@settings(max_examples=draws(500))
def test_check_agrees_with_plain_python_on_random_bytes(section: bytes, count: int) -> None:
    header = parse_header(encode_batch([Record(0, 0, None, None)]))
    header = header._replace(record_count=count, last_offset_delta=max(count - 1, 0))
    agree(assemble_batch(header, section))


def agree(batch: bytes) -> None:
    header = parse_header(batch)
    try:
        decoded = decode_records(header, batch[HEADER_SIZE_BYTES:])
        consecutive_offsets = [record.offset for record in decoded] == list(range(len(decoded)))
    except CorruptBatch:
        consecutive_offsets = False
    if consecutive_offsets:
        assert check(batch)[0] == max([-1, *(record.timestamp for record in decoded)])
    else:
        with pytest.raises(CorruptBatch):
            check(batch)


@pytest.mark.parametrize("count", [2**31 - 1, 1_000])
def test_check_refuses_a_count_that_the_bytes_cannot_hold(count: int) -> None:
    batch = encode_batch([Record(0, 0, b"k", b"v")])
    header = parse_header(batch)._replace(record_count=count, last_offset_delta=count - 1)
    with pytest.raises(CorruptBatch, match="not as many"):
        check(batch, header)


@pytest.mark.parametrize(("start", "end"), [(-1, 61), (61, 10_000), (70, 61)])
def test_walks_refuse_a_range_outside_the_buffer(start: int, end: int) -> None:
    batch = encode_batch([Record(0, 0, b"k", b"v")])
    with pytest.raises(CorruptBatch, match="outside"):
        check_records(batch, start, end, parse_header(batch), 0, 0, False)
    with pytest.raises(CorruptBatch, match="outside"):
        find_timestamp(batch, start, end, parse_header(batch), 0)


def test_walks_refuse_a_header_that_is_none() -> None:
    with pytest.raises(TypeError, match="BatchHeader"):
        check_records(b"abc", 0, 3, (1, 2), 0, 0, False)  # type: ignore[arg-type]


# Timestamps


@given(records(), st.integers(INT64_MIN, INT64_MAX))
def test_find_timestamp_finds_the_first_record_not_older(
    made: list[Record], timestamp: int
) -> None:
    batch = encode_batch(made)
    expected = next(
        ((each.offset, each.timestamp) for each in made if each.timestamp >= timestamp), None
    )
    header = parse_header(batch)
    assert find_timestamp(batch, 61, len(batch), header, timestamp) == expected


def test_find_timestamp_takes_log_append_time_from_the_header() -> None:
    batch = encode_batch(
        [Record(4, 10, b"k", b"v"), Record(5, 20, b"k", b"v")], is_log_append_time=True
    )
    assert find_timestamp(batch, 61, len(batch), parse_header(batch), 15) == (4, 20)


def test_find_timestamp_stops_at_malformed_records() -> None:
    batch = encode_batch([Record(0, 10, b"k", b"v"), Record(1, 20, b"k", b"v")])
    header = parse_header(batch)
    with pytest.raises(CorruptBatch):
        find_timestamp(batch, 61, len(batch) - 1, header, 15)


# The map of keys


def siphash(key: bytes, secret: bytes, *, rounds: int, last_rounds: int) -> bytes:
    """SipHash with 128 bits, as its authors describe it."""
    mask = 2**64 - 1
    low, high = struct.unpack("<QQ", secret)
    v = [
        low ^ 0x736F6D6570736575,
        high ^ 0x646F72616E646F6D ^ 0xEE,
        low ^ 0x6C7967656E657261,
        high ^ 0x7465646279746573,
    ]

    def half_round(a: int, b: int, c: int, d: int, first: int, second: int) -> None:
        v[a], v[c] = v[a] + v[b] & mask, v[c] + v[d] & mask
        v[b] = (v[b] << first | v[b] >> 64 - first) & mask ^ v[a]
        v[d] = (v[d] << second | v[d] >> 64 - second) & mask ^ v[c]
        v[a] = (v[a] << 32 | v[a] >> 32) & mask

    def mix(count: int) -> int:
        for _ in range(count):
            half_round(0, 1, 2, 3, 13, 16)
            half_round(2, 1, 0, 3, 17, 21)
        return v[0] ^ v[1] ^ v[2] ^ v[3]

    padded = key + bytes(7 - len(key) % 8) + bytes([len(key) & 0xFF])
    for (word,) in struct.iter_unpack("<Q", padded):
        v[3] ^= word
        mix(rounds)
        v[0] ^= word
    v[2] ^= 0xEE
    first = mix(last_rounds)
    v[1] ^= 0xDD
    return struct.pack("<QQ", first, mix(last_rounds))


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, "a3817f04ba25a8e66df67214c7550293"),
        (1, "da87c1d86b99af44347659119b22fc45"),
        (8, "3b62a9ba6258f5610f83e264f31497b4"),
    ],
)
def test_siphash_of_these_tests_has_the_vectors_of_its_authors(size: int, expected: str) -> None:
    """They publish them for SipHash-2-4."""
    found = siphash(bytes(range(size)), bytes(range(16)), rounds=2, last_rounds=4)
    assert found.hex() == expected


@given(key=st.binary(max_size=40), secret=st.binary(min_size=16, max_size=16))
def test_hash_is_siphash_1_3_of_128_bits(key: bytes, secret: bytes) -> None:
    assert hash_key(key, secret) == siphash(key, secret, rounds=1, last_rounds=3)


@given(st.lists(st.tuples(st.binary(max_size=20), st.booleans()), min_size=1, max_size=60))
def test_map_knows_the_last_offset_of_each_key(writes: list[tuple[bytes, bool]]) -> None:
    made = [Record(i, 0, key, b"v" if value else None) for i, (key, value) in enumerate(writes)]
    batches = b"".join(encode_batch([record]) for record in made)
    by_batches, by_records = OffsetMap(MAP_BYTES), OffsetMap(MAP_BYTES)
    status, position, latest = by_batches.index_batches(batches, 0, len(batches), 0)
    assert (status, position, latest) == (WALK_DONE, len(batches), len(made) - 1)
    whole = encode_batch(made)
    assert by_records.index_records(whole, 61, len(whole), parse_header(whole), 0)
    expected = {record.key: record.offset for record in made}
    for key, offset in expected.items():
        assert key is not None
        assert by_batches.get(key) == by_records.get(key) == offset
    assert by_batches.count == by_records.count == len(expected)
    assert by_batches.get(b"never written, and longer than the others") == -1


def test_map_leaves_out_null_keys_and_what_is_before_the_start() -> None:
    made = [Record(0, 0, b"a", b"v"), Record(1, 0, None, b"v"), Record(2, 0, b"b", b"v")]
    batch = encode_batch(made)
    offset_map = OffsetMap(MAP_BYTES)
    offset_map.index_batches(batch, 0, len(batch), 1)
    assert (offset_map.get(b"a"), offset_map.get(b"b"), offset_map.count) == (-1, 2, 1)


def test_map_stops_before_the_batch_that_overfills_it() -> None:
    batches = [encode_batch([Record(i, 0, b"%d" % i, b"v")]) for i in range(20)]
    data = b"".join(batches)
    offset_map = OffsetMap(24 * 10, load_factor=0.5)
    status, position, latest = offset_map.index_batches(data, 0, len(data), 0)
    assert (status, latest, offset_map.count) == (WALK_FULL, 4, 5)
    assert position == sum(map(len, batches[:5]))
    again = encode_batch([Record(20, 0, b"3", b"v")])
    assert offset_map.index_batches(again, 0, len(again), 0)[0] == WALK_DONE
    assert offset_map.get(b"3") == 20


@pytest.mark.parametrize("size_bytes", [0, 23, 24])
def test_map_without_room_is_refused(size_bytes: int) -> None:
    with pytest.raises(ValueError, match="no room"):
        OffsetMap(size_bytes)


@pytest.mark.parametrize(
    "opaque",
    [
        encode_batch([Record(1, 0, b"k", b"v")], compression=Compression.LZ4),
        encode_batch([Record(1, 0, b"k", b"v")], is_transactional=True, producer_id=1),
        encode_batch([Record(1, 0, b"k", b"v")], is_control=True),
    ],
)
def test_walks_over_batches_stop_before_one_to_be_opened(opaque: bytes) -> None:
    plain = encode_batch([Record(0, 0, b"k", b"v")])
    data = plain + opaque + plain
    offset_map = OffsetMap(MAP_BYTES)
    assert offset_map.index_batches(data, 0, len(data), 0) == (WALK_OPAQUE, len(plain), 0)
    found = filter_with(offset_map).filter_batches(data, 0, len(data), bytearray(1_000), 0)
    assert found[:2] == (WALK_OPAQUE, len(plain))


def test_walks_over_batches_stop_before_a_torn_one() -> None:
    plain = encode_batch([Record(0, 0, b"k", b"v")])
    offset_map = OffsetMap(MAP_BYTES)
    for cut in range(1, len(plain)):
        data = plain + plain[:-cut]
        assert offset_map.index_batches(data, 0, len(data), 0) == (WALK_DONE, len(plain), 0)


def test_walks_over_batches_release_the_gil() -> None:
    """With threads never switched by force, another one runs only if the walk lets it.

    And if it gets a processor in time: one chance is not enough.
    """
    data = encode_batch([Record(0, 0, b"key", b"value" * 20)]) * 200_000

    def runs_meanwhile() -> bool:
        offset_map = OffsetMap(MAP_BYTES)
        started, finished = threading.Event(), threading.Event()

        def work() -> None:
            started.set()
            offset_map.index_batches(data, 0, len(data), 0)
            finished.set()

        worker = threading.Thread(target=work)
        worker.start()
        started.wait()
        ran_meanwhile = not finished.is_set()
        worker.join()
        return ran_meanwhile

    interval = sys.getswitchinterval()
    sys.setswitchinterval(60)
    try:
        assert any(runs_meanwhile() for _ in range(5))
    finally:
        sys.setswitchinterval(interval)


@given(st.integers(0, 2), st.integers(0, 90), st.integers(1, 255))
def test_walks_over_batches_notice_a_changed_byte(number: int, place: int, change: int) -> None:
    batches = [bytearray(encode_batch([Record(i, 0, b"key", b"value" * 9)])) for i in range(3)]
    if 0 <= place < 8 or 12 <= place < 16:
        place = 21  # offset and epoch are outside the CRC
    batches[number][place] ^= change
    data = b"".join(batches)
    try:
        status, position, _ = OffsetMap(MAP_BYTES).index_batches(data, 0, len(data), 0)
    except CorruptBatch:
        return
    assert status == WALK_DONE  # a larger length makes the batch look torn
    assert position == sum(len(batch) for batch in batches[:number])


# Filtering


def filter_with(offset_map: OffsetMap, **changes: int | list[int]) -> RecordFilter:
    rules = {
        "latest_offset": 10_000,
        "now_ms": 1_000,
        "delete_retention_ms": 500,
        "upper_bound": 10_001,
        "kept_ends": [],
    } | changes
    rules["kept_ends"] = array("q", rules["kept_ends"])  # type: ignore[arg-type,assignment]
    return RecordFilter(offset_map, **rules)  # type: ignore[arg-type]


def run_filter(data: bytes, record_filter: RecordFilter) -> bytes:
    output = bytearray(3 * len(data) + 100)
    status, position, filled, _, _ = record_filter.filter_batches(data, 0, len(data), output, 0)
    assert (status, position) == (WALK_DONE, len(data))
    result = bytes(output[:filled])
    for place, header in iterate_headers(result):
        verify_crc(result, place, header)
    return result


def decode_all(data: bytes) -> list[Record]:
    return [record for place, _ in iterate_headers(data) for record in decode_batch(data, place)]


@given(
    st.lists(
        st.lists(
            st.tuples(st.sampled_from([b"a", b"b", b"c", b"d", None]), st.booleans()),
            min_size=1,
            max_size=6,
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 80),
)
def test_filter_keeps_the_last_of_each_key_and_all_past_the_map(
    batches: list[list[tuple[bytes | None, bool]]], latest_offset: int
) -> None:
    data, made = b"", []
    for writes in batches:
        batch = [
            Record(len(made) + i, 100 * i, key, b"v%d" % i if value else None, (("h", b"x"),))
            for i, (key, value) in enumerate(writes)
        ]
        made += batch
        data += encode_batch(batch, producer_id=5, producer_epoch=1, base_sequence=len(made))
    offset_map = OffsetMap(MAP_BYTES)
    covered = b"".join(encode_batch([record]) for record in made if record.offset <= latest_offset)
    offset_map.index_batches(covered, 0, len(covered), 0)
    last = {record.key: record.offset for record in made if record.offset <= latest_offset}
    expected = [
        record
        for record in made
        if record.offset > latest_offset
        or (record.key is not None and record.offset == last[record.key])
    ]
    result = run_filter(data, filter_with(offset_map, latest_offset=latest_offset))
    assert decode_all(result) == expected
    originals = {header.base_offset: header for _, header in iterate_headers(data)}
    for _, header in iterate_headers(result):
        original = originals[header.base_offset]
        assert header.last_offset == original.last_offset
        assert header.base_sequence == original.base_sequence


def test_filter_copies_a_batch_that_keeps_everything_byte_for_byte() -> None:
    data = encode_batch([Record(0, 5, b"a", b"v"), Record(1, 9, b"b", b"w")])
    offset_map = OffsetMap(MAP_BYTES)
    offset_map.index_batches(data, 0, len(data), 0)
    assert run_filter(data, filter_with(offset_map)) == data


def test_tombstone_gets_a_horizon_waits_for_it_and_goes() -> None:
    data = encode_batch([Record(0, 5, b"a", None), Record(1, -7, b"b", b"v")])
    offset_map = OffsetMap(MAP_BYTES)
    offset_map.index_batches(data, 0, len(data), 0)
    first = run_filter(data, filter_with(offset_map, now_ms=1_000))
    header = parse_header(first)
    assert header.delete_horizon_ms == 1_500
    assert decode_batch(first) == decode_batch(data)
    assert run_filter(first, filter_with(offset_map, now_ms=1_499)) == first
    last = run_filter(first, filter_with(offset_map, now_ms=1_500))
    assert decode_batch(last) == [Record(1, -7, b"b", b"v")]
    assert parse_header(last).delete_horizon_ms == 1_500


@given(records(), st.integers(INT64_MIN, INT64_MAX))
def test_horizon_leaves_every_timestamp_as_it_was(made: list[Record], now_ms: int) -> None:
    made = [*made, Record(made[-1].offset + 1, 0, b"tombstone", None)]
    data = encode_batch(made)
    result = run_filter(data, filter_with(OffsetMap(MAP_BYTES), latest_offset=-1, now_ms=now_ms))
    assert decode_batch(result) == made
    assert parse_header(result).attributes & DELETE_HORIZON_FLAG


def test_empty_batch_stays_where_a_producer_or_the_end_hangs_on_it() -> None:
    old = [
        encode_batch([Record(i, 7, b"a", b"v")], producer_id=i, base_sequence=3) for i in range(4)
    ]
    data = b"".join(old)
    newest = encode_batch([Record(9, 7, b"a", b"v")])
    offset_map = OffsetMap(MAP_BYTES)
    offset_map.index_batches(newest, 0, len(newest), 0)
    result = run_filter(data, filter_with(offset_map, upper_bound=4, kept_ends=[1]))
    headers = [header for _, header in iterate_headers(result)]
    assert [header.base_offset for header in headers] == [1, 3]
    for header in headers:
        assert (header.record_count, header.size_bytes) == (0, 61)
        assert (header.base_sequence, header.max_timestamp) == (3, 7)
    assert run_filter(result, filter_with(offset_map, upper_bound=4, kept_ends=[1])) == result


def test_filter_stops_before_a_batch_that_may_not_fit() -> None:
    batch = encode_batch([Record(0, 0, b"a", b"v")])
    data = batch * 3
    offset_map = OffsetMap(MAP_BYTES)
    output = bytearray(len(batch) + 40)
    record_filter = filter_with(offset_map)
    status, position, filled, read, kept = record_filter.filter_batches(
        data, 0, len(data), output, 0
    )
    assert (status, position, filled, read, kept) == (WALK_FULL, len(batch), len(batch), 1, 1)
    assert record_filter.filter_batches(data, position, len(data), bytearray(5), 0)[0] == WALK_FULL


@given(records())
def test_opened_records_are_filtered_like_batches(made: list[Record]) -> None:
    data = encode_batch(made)
    header = parse_header(data)
    offset_map = OffsetMap(MAP_BYTES)
    offset_map.index_batches(data, 0, len(data), 0)
    record_filter = filter_with(offset_map, latest_offset=2**62)
    expected = decode_all(run_filter(data, record_filter))
    kept, largest, horizon_ms, section = record_filter.filter_records(
        data, HEADER_SIZE_BYTES, len(data), header
    )
    assert kept == len(expected)
    if section is not None and kept:
        base = header.base_timestamp if horizon_ms is None else horizon_ms
        rebuilt = header._replace(record_count=kept, base_timestamp=base)
        assert decode_records(rebuilt, section) == expected
        assert largest == max(-1, *(record.timestamp for record in expected))


@given(st.binary(max_size=400))
@settings(max_examples=draws(300))
def test_walks_over_batches_survive_any_bytes(data: bytes) -> None:
    offset_map = OffsetMap(MAP_BYTES)
    for walk in (
        lambda: offset_map.index_batches(data, 0, len(data), 0),
        lambda: filter_with(offset_map).filter_batches(data, 0, len(data), bytearray(2_000), 0),
        lambda: index_points(data, len(data), 10, 0, -1, 0),
    ):
        try:
            walk()
        except CorruptBatch:
            continue


# Index points


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(0, 1_000)), min_size=1, max_size=40),
    st.integers(0, 1_000),
    st.integers(1, 40),
)
def test_index_points_do_not_depend_on_how_the_bytes_are_cut(
    shape: list[tuple[int, int]], interval_bytes: int, chunk: int
) -> None:
    batches = [
        encode_batch([Record(i, timestamp, b"k", b"x" * size)])
        for i, (size, timestamp) in enumerate(shape)
    ]
    expected, since, largest, largest_offset, position = [], 0, -1, 0, 0
    for i, batch in enumerate(batches):
        if shape[i][1] > largest:
            largest, largest_offset = shape[i][1], i
        if since > interval_bytes:
            expected.append((i, position, largest, largest_offset))
            since = 0
        since += len(batch)
        position += len(batch)
    found, state, position = [], (0, -1, 0), 0
    for start in range(0, len(batches), chunk):
        data = b"".join(batches[start : start + chunk])
        points, *values = index_points(data, len(data), interval_bytes, *state)
        found += [(last, position + at, newest, where) for last, at, newest, where in points]
        state = (values[0], values[1], values[2])
        position += len(data)
    assert found == expected
    assert state == (since, largest, largest_offset)


def test_crc_of_the_walks_is_the_librarys() -> None:
    """A rewritten batch gets its CRC from compiled code; the library must agree."""
    made = [Record(i, i, b"key%d" % i, b"x" * i) for i in range(50)]
    data = encode_batch(made)
    newest = encode_batch([Record(99, 0, b"key7", b"v")])
    offset_map = OffsetMap(MAP_BYTES)
    offset_map.index_batches(newest, 0, len(newest), 0)
    result = run_filter(data, filter_with(offset_map))
    assert len(decode_batch(result)) == 49
    assert crc32c(result[21:]) == parse_header(result).crc


# A producer's small batch


def test_batch_is_stamped_in_a_copy() -> None:
    batch = encode_batch([Record(0, 5, None, b"value")])
    view = memoryview(bytearray(batch))
    stamped = stamp_batch(view, 2**40 + 7, 9)
    header = parse_header(stamped)
    assert (header.base_offset, header.leader_epoch) == (2**40 + 7, 9)
    verify_crc(stamped, 0, header)
    assert stamped[16:] == batch[16:]
    assert bytes(view) == batch
    with pytest.raises(CorruptBatch, match="60 bytes"):
        stamp_batch(batch[:60], 0, 0)


@pytest.mark.parametrize("size", [32768, 32769])
def test_only_small_batches_are_checked_in_one_step(size: int) -> None:
    empty = len(encode_batch([Record(0, 5, None, bytes(20000))])) - 20000
    batch = encode_batch([Record(0, 5, None, bytes(size - empty))])
    assert len(batch) == size
    fields = check_small_batch(batch, 5, 2**63 - 1, 0, False)
    assert fields == (parse_header(batch) if size <= 32768 else None)


def test_timestamps_are_checked_in_one_step_too() -> None:
    batch = encode_batch([Record(0, 1000, b"key", b"value")])
    assert check_small_batch(batch, 1100, 100, 0, True) is not None
    assert check_small_batch(batch, 1101, 100, 0, True) is None
    assert check_small_batch(batch, 900, 0, 100, True) is not None
    assert check_small_batch(batch, 899, 0, 100, True) is None
    assert check_small_batch(batch, -1, 0, 2**63 - 1, True) is None
