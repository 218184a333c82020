"""A Delta table lists exactly the files that the manifests list."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from millstream.archive.delta import Synchronized, synchronize_table
from millstream.archive.manifest import ArchiveError
from millstream.archive.places import open_place
from millstream.archive.reading import open_archive
from millstream.archive.service import ArchiveService, Source
from tests.archive.scenes import all_kinds, archived, batches, new_manifest


def synchronize(path: str) -> Synchronized:
    archive = open_archive(path)
    return synchronize_table(archive.place, archive.topic("orders"))


def offsets(uri: str, options: dict[str, str] | None = None) -> list[int]:
    table = pa.table(DeltaTable(uri, storage_options=options).to_pyarrow_table())
    return sorted(table.column("offset").to_pylist())


def test_table_follows_the_archive(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    manifest = archived(place)
    service = ArchiveService(place)
    first = synchronize(str(tmp_path))
    assert (first.version, first.added, first.removed) == (0, 2, 0)
    assert offsets(first.uri) == list(range(250))
    assert synchronize(str(tmp_path)).added == 0
    manifest = service.write(manifest, 300, (), Source(250, [batches(250, 300)]))
    service.save(manifest.starting_at(100), [manifest.files[0].name])
    service.write(new_manifest(partition=1), 10, (), Source(0, [batches(0, 10)]))
    second = synchronize(str(tmp_path))
    assert (second.version, second.added, second.removed) == (1, 2, 1)
    assert offsets(second.uri) == [*range(10), *range(100, 300)]


def test_table_is_queried_by_offset_and_partition(tmp_path: Path) -> None:
    data, end, aborted = all_kinds()
    service = ArchiveService(open_place(str(tmp_path)))
    service.write(new_manifest(partition=3), end, aborted, Source(0, [data]))
    rows = DeltaTable(synchronize(str(tmp_path)).uri).to_pyarrow_dataset()
    query = "select count(*), min(partition) from rows where not is_control and not is_aborted"
    seen = duckdb.sql(query).fetchall()
    part = open_archive(str(tmp_path)).topic("orders").partitions[3]
    assert seen == [(sum(each.num_rows for each in part.read()), 3)]
    assert rows.schema.field("timestamp").type == pa.timestamp("us", tz="UTC")


def test_table_in_a_bucket(bucket: str) -> None:
    place = open_place(bucket)
    archived(place)
    done = synchronize(bucket)
    options = {
        **place.delta_options(),
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    assert offsets(done.uri, options) == list(range(250))


def test_table_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    archived(open_place(str(tmp_path)))
    topic = next((tmp_path / "orders").iterdir())
    (topic / "_delta_log").write_text("not a directory")
    with pytest.raises(ArchiveError, match="cannot write the Delta table"):
        synchronize(str(tmp_path))
