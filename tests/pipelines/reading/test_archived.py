"""A range that is read from archive and brokers has each record once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from millstream.archive.reading import open_archive
from millstream.broker.embedded import Broker
from millstream.errors import ConfigError
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.reading.archived import archived_columns, to_columns
from millstream.pipelines.reading.arrow import raw_batch
from millstream.pipelines.reading.fetching import cluster_of, fetch_columns
from millstream.pipelines.reading.options import ReadOptions, parse_read_options
from millstream.records.columns import Columns
from tests.broker.archiving.scenes import (
    START_MS,
    archived_end,
    archiving_broker,
    create,
    keep_little,
    local_start,
    produce,
)
from tests.peers.patience import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT = 300


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """With a topic of which most is archived, and only archived."""
    directory = tmp_path_factory.mktemp("archived")
    with archiving_broker(directory) as broker:
        create(broker)
        produce(broker, 0, COUNT)
        keep_little(broker)
        wait_until(lambda: local_start(broker) > COUNT // 2)
        yield broker


def archive_of(broker: Broker) -> Path:
    return broker.data_dir.parent / "archive"


def options(broker: Broker, **more: str) -> ReadOptions:
    values = {
        "kafka.bootstrap.servers": broker.bootstrap_servers,
        "subscribe": "orders",
        "includeHeaders": "true",
        **more,
    }
    return parse_read_options(values, streaming=False)


def rows(options: ReadOptions, start: int, end: int) -> list[dict[str, Any]]:
    wanted = OffsetRange("orders", 0, start, end)
    batches = [raw_batch("orders", 0, it) for it in fetch_columns(options, wanted)]
    return [row for batch in batches for row in batch.to_pylist()]


def test_archive_and_brokers_give_the_same_rows(broker: Broker) -> None:
    archive = str(archive_of(broker))
    seam = archived_end(archive)
    assert local_start(broker) <= seam < COUNT
    for start, end in ((0, COUNT), (7, seam), (seam - 5, seam + 5), (seam, COUNT), (20, 21)):
        plain = rows(options(broker), start, end)
        assert [row["offset"] for row in plain] == list(range(start, end))
        assert rows(options(broker, archive=archive), start, end) == plain


def test_files_are_read_without_the_brokers(broker: Broker) -> None:
    archive = str(archive_of(broker))
    wanted = OffsetRange("orders", 0, 5, COUNT)
    chosen = options(broker, archive=archive)
    topic_id = cluster_of(chosen).topic("orders").id
    ends = []

    def read() -> Iterator[Columns]:
        ends.append((yield from archived_columns(chosen, wanted, topic_id)))

    found = [
        offset
        for columns in read()
        for offset in raw_batch("orders", 0, columns).column("offset").to_pylist()
    ]
    assert ends == [archived_end(archive)]
    assert found == list(range(5, ends[0]))


def test_brokers_are_asked_if_the_archive_has_nothing(broker: Broker, tmp_path: Path) -> None:
    empty = options(broker, archive=str(tmp_path))
    assert [row["offset"] for row in rows(empty, 0, COUNT)] == list(range(COUNT))


@pytest.mark.timeout(900)
def test_spark_reads_archive_and_log_as_one(spark: SparkSession, tmp_path: Path) -> None:
    """A stream from the beginning and batches in between see each record once, while segments are
    archived and deleted."""
    archive = tmp_path / "archive"
    with archiving_broker(tmp_path) as broker:
        given = {
            "kafka.bootstrap.servers": broker.bootstrap_servers,
            "subscribe": "orders",
            "startingOffsets": "earliest",
            "archive": str(archive),
        }
        create(broker)
        produce(broker, 0, COUNT)
        keep_little(broker)
        wait_until(lambda: local_start(broker) > COUNT // 2)
        seen: list[int] = []
        stream = spark.readStream.format("millstream").options(**given, maxOffsetsPerTrigger="250")
        query = (
            stream.load()
            .writeStream.option("checkpointLocation", str(tmp_path / "checkpoint"))
            .foreachBatch(lambda batch, _: seen.extend(row.offset for row in batch.collect()))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            for end in (2 * COUNT, 3 * COUNT):
                before = local_start(broker)
                produce(broker, end - COUNT, end)
                wait_until(lambda before=before: local_start(broker) > before)
                frame = spark.read.format("millstream").options(**given).load()
                assert sorted(row.offset for row in frame.collect()) == list(range(end))
            wait_until(lambda: len(seen) >= 3 * COUNT or query.exception() is not None)
            assert query.exception() is None
        finally:
            query.stop()
        assert seen == list(range(3 * COUNT))
        # By time and by offset: only the files that have such records are opened.
        keep_only(archive, 100, 121)
        timed = {**given, "startingTimestamp": str(START_MS + 100)}
        timed |= {"endingTimestamp": str(START_MS + 120)}
        del timed["startingOffsets"]
        found = spark.read.format("millstream").options(**timed).load().collect()
        assert sorted(row.offset for row in found) == list(range(100, 120))
        ranged = {**given, "startingOffsets": '{"orders": {"0": 105}}'}
        ranged |= {"endingOffsets": '{"orders": {"0": 110}}'}
        found = spark.read.format("millstream").options(**ranged).load().collect()
        assert sorted(row.offset for row in found) == list(range(105, 110))


def keep_only(archive: Path, first: int, end: int) -> None:
    """Of the files, those with these offsets. The broker has no others either."""
    part = open_archive(str(archive)).topic("orders").partitions[0]
    needed = {file.name for file in part.select(first, end)}
    for path in archive.rglob("*.parquet"):
        if path.name not in needed:
            path.unlink()


def test_impossible_archive_is_refused(broker: Broker) -> None:
    with pytest.raises(ConfigError, match="has the scheme ftp"):
        options(broker, archive="ftp://host/x")


def test_rows_with_an_offset_into_their_buffers_become_columns() -> None:
    from millstream.archive.rows import row_groups
    from tests.archive.scenes import batches

    (whole,) = row_groups([batches(0, 50)], first_offset=0, end_offset=50, aborted=())
    part = whole.slice(13, 20)
    wanted = raw_batch("t", 0, to_columns(whole)).slice(13, 20).to_pylist()
    assert raw_batch("t", 0, to_columns(part)).to_pylist() == wanted
