"""A range that is read from archive and brokers has each record once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millstream.broker.embedded import Broker
from millstream.errors import ConfigError
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.reading.archived import archived_columns, to_columns
from millstream.pipelines.reading.arrow import raw_batch
from millstream.pipelines.reading.fetching import cluster_of, fetch_columns
from millstream.pipelines.reading.options import ReadOptions, parse_read_options
from millstream.records.columns import Columns
from tests.broker.archiving.scenes import (
    archived_end,
    archiving_broker,
    create,
    keep_little,
    local_start,
    produce,
    wait_until,
)

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
