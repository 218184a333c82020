"""Fields of values as columns: beside the bytes, by name over all files, and gone with a record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from millstream.archive.delta import synchronize_table
from millstream.archive.manifest import ArchiveError, Manifest
from millstream.archive.places import open_place
from millstream.archive.reading import open_archive
from millstream.archive.rows import SCHEMA
from millstream.archive.service import ArchiveService, Source
from millstream.archive.typed import (
    DecodedColumns,
    arrow_schema,
    columns_text,
    extension_fields,
    union_fields,
)
from millstream.archive.verifying import verify_partition
from millstream.config.columns import parse_columns
from millstream.config.excised import ExcisedOffsets, OffsetRanges
from millstream.query.archiving import key_decoder, value_decoder
from millstream.records.record import Record, encode_batch
from tests.archive.scenes import START_MS, batches, new_manifest, transaction

EVERY_TYPE = (
    "`a` boolean, `b` tinyint, `c` smallint, `d` int, `e` bigint, `f` float, `g` double, "
    "`h` string, `i` binary, `j` date, `k` time, `l` timestamp, `m` timestamp_ntz, "
    "`n` decimal(10, 2), `o` array<struct<`x y`: string, `z``q`: int>>, `p` map<string, double>"
)


def values(first: int, contents: list[bytes | None]) -> bytes:
    records = [
        Record(first + n, START_MS + n, b"k", content, ()) for n, content in enumerate(contents)
    ]
    return encode_batch(records, leader_epoch=2)


def orders(first: int, end: int) -> bytes:
    texts = [json.dumps({"id": n, "customer": f"c{n % 3}", "n": 1}) for n in range(first, end)]
    return values(first, [it.encode() for it in texts])


def write(
    service: ArchiveService, manifest: Manifest, end: int, data: bytes, text: str
) -> Manifest:
    decoder = value_decoder("orders", text, {})
    assert decoder is not None
    first = manifest.end_offset
    source = Source(first, [data], extension=DecodedColumns(decoder))
    return service.write(manifest, end, (), source)


def archive_in(path: Path) -> ArchiveService:
    return ArchiveService(open_place(str(path)))


def rows_of(path: Path, columns: list[str] | None = None, **more: Any) -> list[dict[str, Any]]:
    part = open_archive(str(path)).topic("orders").partitions[0]
    return [row for batch in part.read(columns=columns, **more) for row in batch.to_pylist()]


def test_text_of_columns_is_that_of_their_types() -> None:
    schema = arrow_schema(parse_columns(EVERY_TYPE))
    assert columns_text(schema) == EVERY_TYPE
    assert [it.name for it in extension_fields("id bigint")] == ["value_id", "is_decoded"]
    assert extension_fields("") == []


def test_values_that_do_not_fit_keep_their_bytes(tmp_path: Path) -> None:
    contents: list[bytes | None] = [
        b'{"id": 1, "customer": "alice", "tags": ["x", null], "unknown": 1}',
        b"not json",
        None,
        b'{"id": "one"}',
        b'{"id": 5}',
        b'{"id": 6} {"id": 7}',
        b"[]",
        b'{"id": 8, "customer": "bob"}',
    ]
    service = archive_in(tmp_path)
    schema = "json: id bigint, customer string, tags array<string>"
    data = values(0, contents) + transaction(8, 7, committed=True)
    manifest = write(service, new_manifest(), 13, data, schema)
    assert manifest.files[0].columns == "`id` bigint, `customer` string, `tags` array<string>"
    names = ["value", "value_id", "value_customer", "value_tags", "is_decoded"]
    found = [tuple(it.values()) for it in rows_of(tmp_path, names, end_offset=8)]
    assert found == [
        (contents[0], 1, "alice", ["x", None], True),
        (contents[1], None, None, None, False),
        (None, None, None, None, None),
        (contents[3], None, None, None, False),
        (contents[4], 5, None, None, True),
        (contents[5], None, None, None, False),
        (contents[6], None, None, None, False),
        (contents[7], 8, "bob", None, True),
    ]
    marker = rows_of(tmp_path, ["is_control", "is_decoded"], first_offset=12, committed=False)
    assert marker == [{"is_control": True, "is_decoded": None}]
    report = verify_partition(open_archive(str(tmp_path)).topic("orders").partitions[0])
    assert (report.problems, report.records) == ([], 13)


def test_keys_have_columns_of_their_own(tmp_path: Path) -> None:
    """Beside those of values, with a flag of their own; and gone with an excised record."""
    keys: list[bytes | None] = [b'{"id": 1}', b"plain", None, b'{"id": 4, "region": "eu"}']
    data = encode_batch(
        [Record(n, START_MS + n, key, b'{"id": 9}', ()) for n, key in enumerate(keys)],
        leader_epoch=2,
    )
    service = archive_in(tmp_path)
    extension = DecodedColumns(
        value_decoder("orders", "json: id bigint", {}),
        key_decoder("orders", "json: id int, region string", {}),
    )
    data += transaction(4, 7, committed=True)
    source = Source(0, [data], extension=extension)
    manifest = service.write(new_manifest(), 9, (), source)
    assert manifest.files[0].key_columns == "`id` int, `region` string"
    names = ["key", "value_id", "is_decoded", "key_id", "key_region", "is_key_decoded"]
    found = [tuple(it.values()) for it in rows_of(tmp_path, names, end_offset=4)]
    assert found == [
        (keys[0], 9, True, 1, None, True),
        (keys[1], 9, True, None, None, False),
        (None, 9, True, None, None, None),
        (keys[3], 9, True, 4, "eu", True),
    ]
    marker = rows_of(tmp_path, ["is_control", "is_key_decoded"], first_offset=8, committed=False)
    assert marker == [{"is_control": True, "is_key_decoded": None}]
    query = f"""
        select key_id, key_region from read_parquet('{tmp_path}/orders/*/*/*.parquet')
        where is_key_decoded order by all
    """
    assert duckdb.sql(query).fetchall() == [(1, None), (4, "eu")]
    excised = ExcisedOffsets({3: OffsetRanges.of([3])})
    after = service.excise(manifest, [manifest.files[0].name], excised)
    assert after.files[0].key_columns == manifest.files[0].key_columns
    rows = rows_of(tmp_path, ["key_id", "key_region"], end_offset=4)
    assert [tuple(it.values()) for it in rows] == [(1, None), (None, None), (None, None)]


def test_files_with_and_without_columns_of_keys_are_read_by_name(tmp_path: Path) -> None:
    service = archive_in(tmp_path)
    manifest = write(service, new_manifest(), 10, orders(0, 10), "json: id int")
    text = DecodedColumns(None, key_decoder("orders", "string", {}))
    manifest = service.write(manifest, 20, (), Source(10, [orders(10, 20)], extension=text))
    assert (manifest.files[1].columns, manifest.files[1].key_columns) == ("", "`value` string")
    rows = rows_of(tmp_path)
    more = ["value_id", "key_value", "is_decoded", "is_key_decoded"]
    assert list(rows[0]) == [*SCHEMA.names, *more]
    assert [[it[name] for name in more] for it in (rows[0], rows[19])] == [
        [0, None, True, None],
        [None, "k", None, True],
    ]
    archive = open_archive(str(tmp_path))
    done = synchronize_table(archive.place, archive.topic("orders"))
    from deltalake import DeltaTable

    table = DeltaTable(done.uri).to_pyarrow_table()
    assert sorted(table.column("key_value").to_pylist(), key=str) == [None] * 10 + ["k"] * 10


def evolved(tmp_path: Path) -> Manifest:
    """Files without columns, with some, and with others."""
    service = archive_in(tmp_path)
    manifest = service.write(new_manifest(), 10, (), Source(0, [batches(0, 10)]))
    manifest = write(service, manifest, 20, orders(10, 20), "json: id int, customer string")
    return write(service, manifest, 30, orders(20, 30), "json: id bigint, n smallint")


def test_files_of_several_schemas_are_read_by_name(tmp_path: Path) -> None:
    manifest = evolved(tmp_path)
    rows = rows_of(tmp_path)
    assert list(rows[0]) == [
        *SCHEMA.names,
        "value_id",
        "value_customer",
        "value_n",
        "is_decoded",
    ]
    assert [it["value_id"] for it in rows] == [None] * 10 + list(range(10, 30))
    assert [it["value_customer"] for it in rows[10:20]] == [f"c{n % 3}" for n in range(10, 20)]
    assert {it["value_customer"] for it in rows[20:]} == {None}
    assert {it["value_n"] for it in rows[20:]} == {1}
    assert union_fields(manifest.files)[0] == pa.field("value_id", pa.int64())
    # Also if only files without the column are read, so that results can be put together.
    part = open_archive(str(tmp_path)).topic("orders").partitions[0]
    assert next(part.read(end_offset=5)).schema.names == list(rows[0])
    with pytest.raises(ArchiveError, match=r"no column value_nothing; .* value_id"):
        rows_of(tmp_path, ["value_nothing"])


def test_other_readers_see_the_columns(tmp_path: Path) -> None:
    evolved(tmp_path)
    query = f"""
        select count(value_id), min(value_id), max(value_customer), sum(value_n)
        from read_parquet('{tmp_path}/orders/*/*/*.parquet', union_by_name = true)
        where "offset" >= 0
    """
    assert duckdb.sql(query).fetchall() == [(20, 10, "c2", 10)]


def test_types_that_do_not_go_together_are_named_only_if_they_are_read(tmp_path: Path) -> None:
    service = archive_in(tmp_path)
    manifest = write(service, new_manifest(), 10, orders(0, 10), "json: id int, customer string")
    write(service, manifest, 20, orders(10, 20), "json: id string, customer string")
    with pytest.raises(ArchiveError, match=r"do not go together: .*value_id"):
        rows_of(tmp_path)
    assert len(rows_of(tmp_path, ["value_customer"])) == 20
    assert len(rows_of(tmp_path, ["offset", "value"])) == 20


def test_excised_records_leave_the_columns_too(tmp_path: Path) -> None:
    service = archive_in(tmp_path)
    schema = "json: id bigint, customer string"
    manifest = write(service, new_manifest(), 20, orders(0, 20), schema)
    excised = ExcisedOffsets({3: OffsetRanges.of([4, 5, 19])})
    after = service.excise(manifest, [manifest.files[0].name], excised)
    assert after.files[0].columns == manifest.files[0].columns
    left = [n for n in range(20) if n not in (4, 5, 19)]
    rows = rows_of(tmp_path, ["offset", "value_id", "value_customer", "is_decoded"])
    assert [tuple(it.values()) for it in rows] == [(n, n, f"c{n % 3}", True) for n in left]
    files = [path.read_bytes() for path in tmp_path.rglob("*.parquet")]
    assert len(files) == 1


def test_delta_table_gets_new_columns(tmp_path: Path) -> None:
    service = archive_in(tmp_path)
    manifest = service.write(new_manifest(), 10, (), Source(0, [batches(0, 10)]))
    archive = open_archive(str(tmp_path))
    synchronize_table(archive.place, archive.topic("orders"))
    manifest = write(service, manifest, 20, orders(10, 20), "json: id bigint, customer string")
    write(service, manifest, 30, orders(20, 30), "json: id bigint, n smallint")
    done = synchronize_table(archive.place, archive.topic("orders"))
    assert done.added == 2
    from deltalake import DeltaTable

    table = DeltaTable(done.uri).to_pyarrow_table()
    assert sorted(filter(None, table.column("value_id").to_pylist())) == list(range(10, 30))
    assert sum(filter(None, table.column("value_n").to_pylist())) == 10
    with_another_type = "json: id string"
    current = open_archive(str(tmp_path)).topic("orders").partitions[0].manifest
    write(service, current, 40, values(30, [b'{"id": "x"}']), with_another_type)
    with pytest.raises(ArchiveError, match="value_id"):
        synchronize_table(archive.place, archive.topic("orders"))
