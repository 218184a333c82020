"""A task's fetches, against a real broker that may go away in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from millstream.errors import ApiError
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.options import ReadOptions, parse_read_options
from millstream.pipelines.reading import fetch_columns
from millstream.records.columns import Columns
from tests.peers.servers import free_port, start_millstream
from tests.pipelines.conftest import Topics


def options_of(topics: Topics, topic: str, **options: str) -> ReadOptions:
    given = {"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic} | options
    return parse_read_options(given, streaming=False)


def offsets_of(columns: Columns) -> list[int]:
    return list(memoryview(columns.offsets).cast("q"))


def test_fetch_columns_reads_a_range_over_many_fetches(topics: Topics) -> None:
    topic = topics.create()
    topics.fill(topic, [b"x" * 1000] * 300, records_per_batch=10)
    options = options_of(topics, topic, **{"kafka.max.partition.fetch.bytes": "20000"})
    parts = list(fetch_columns(options, OffsetRange(topic, 0, 7, 251)))
    assert len(parts) > 1
    assert [offset for part in parts for offset in offsets_of(part)] == list(range(7, 251))


def test_fetch_columns_goes_on_after_the_broker_came_back(tmp_path: Path) -> None:
    port = free_port()
    server = start_millstream(tmp_path / "data", port=port)
    topics = Topics(server)
    topic = topics.create()
    topics.fill(topic, [b"x" * 1000] * 100, records_per_batch=10)
    options = options_of(topics, topic, **{"kafka.max.partition.fetch.bytes": "20000"})
    parts = fetch_columns(options, OffsetRange(topic, 0, 0, 100))
    offsets = offsets_of(next(parts))
    server.kill()
    server = start_millstream(tmp_path / "data", port=port)
    try:
        for part in parts:
            offsets += offsets_of(part)
    finally:
        server.stop()
    assert offsets == list(range(100))


def test_fetch_columns_names_the_range_that_is_not_there(topics: Topics) -> None:
    topic = topics.create()
    with pytest.raises(ApiError, match=f"fetching {topic}-0, offsets 5 to 9"):
        list(fetch_columns(options_of(topics, topic), OffsetRange(topic, 0, 5, 9)))
