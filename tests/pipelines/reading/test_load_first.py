"""A stream waits until the checkpoint says that the table is loaded, and no longer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.reading.load_first import Hold
from millstream.pipelines.reading.options import parse_read_options
from millstream.testing.clock import ManualClock
from tests.pipelines.conftest import Topics
from tests.pipelines.reading.test_planning import at, planner_of

AWAITED = {("users", 0): 10, ("users", 1): 4}


def begin_query(location: Path) -> None:
    (location / "offsets").mkdir(parents=True)
    (location / "metadata").write_text('{"id": "8d0a5f9c"}')


def end_batch(location: Path, number: int, users: list[int], clicks: int = 0) -> None:
    """What Spark writes when it has planned a batch, which it does after the one before."""
    lines = [
        "v1",
        json.dumps({"batchWatermarkMs": 0}),
        json.dumps({"clicks": {"0": clicks}}),
        json.dumps({"users": {str(at): offset for at, offset in enumerate(users)}}),
    ]
    (location / "offsets" / str(number)).write_text("\n".join(lines))


def test_stream_waits_until_all_partitions_of_the_table_are_read(tmp_path: Path) -> None:
    begin_query(tmp_path)
    hold = Hold(str(tmp_path), AWAITED)
    assert not hold.is_over()
    end_batch(tmp_path, 0, [10, 3])
    assert not hold.is_over()
    end_batch(tmp_path, 1, [12, 4])
    assert hold.is_over()
    assert hold.is_over()


def test_stream_does_not_wait_after_a_restart_without_changes(tmp_path: Path) -> None:
    begin_query(tmp_path)
    for number in (9, 10):
        end_batch(tmp_path, number, [10, 4])
    assert Hold(str(tmp_path), AWAITED).is_over()


def test_stream_does_not_wait_for_an_empty_table() -> None:
    assert Hold("", {("users", 0): 0}).is_over()
    assert Hold("", {}).is_over()


def test_checkpoint_that_cannot_be_read_is_an_error_and_not_an_endless_wait(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no metadata"):
        Hold(str(tmp_path / "elsewhere"), AWAITED).is_over()


def test_held_stream_has_nothing_to_read_and_then_everything(
    topics: Topics, tmp_path: Path
) -> None:
    clicks = topics.create(name="clicks")
    topics.fill(clicks, [b"x"] * 5)
    begin_query(tmp_path)
    planner = planner_of(
        topics,
        ManualClock(),
        subscribe=clicks,
        loadFirst=json.dumps({"users": {"0": 10, "1": 4}}),
        checkpointLocation=str(tmp_path),
    )
    start = planner.initial()
    assert planner.next_end(start) == start
    assert planner.next_end(start, without_limit=True) == start
    assert planner.latest == at(clicks, 5), "the lag is reported all the same"
    end_batch(tmp_path, 0, [10, 4])
    assert planner.next_end(start) == at(clicks, 5)


def test_load_first_needs_the_checkpoint() -> None:
    given = {"kafka.bootstrap.servers": "x:1", "subscribe": "t", "loadFirst": '{"users": {"0": 1}}'}
    with pytest.raises(ConfigError, match="loadFirst needs checkpointLocation"):
        parse_read_options(given, streaming=True)
