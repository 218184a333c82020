"""Files of changes; what they have in common with other targets is tested with the runner."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest

from millstream.connect.sinks import SinkRunner
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step
from millstream.connect.sinks.sink import Write
from millstream.errors import ConfigError, SchemaMismatch
from tests.connect.sinks.conftest import TRUNCATE, Log, ParquetFiles, delete_row, set_row
from tests.connect.sinks.test_runner import capture_writes, run_once


@pytest.fixture
def lake(tmp_path: Path) -> ParquetFiles:
    return ParquetFiles(tmp_path)


def files(lake: ParquetFiles) -> list[str]:
    return sorted(it.name for it in (lake.path / "items").glob("*/*"))


def test_every_change_is_in_one_file_with_its_offset(lake: ParquetFiles, log: Log) -> None:
    log.put((1, "one"), (2, "two"))
    run_once(lake.config(log))
    log.send(set_row(1, "uno"), delete_row(2), TRUNCATE)
    log.send(set_row(3, "__debezium_unavailable_value"))
    run_once(lake.config(log))
    assert files(lake) == ["00000000000000000000.parquet", "00000000000000000002.parquet"]
    found = duckdb.sql(
        f"SELECT __offset, __op, id, name, __unchanged FROM '{lake.path}/items/*/*.parquet' "
        "ORDER BY __offset"
    ).fetchall()
    assert found == [
        (0, "u", 1, "one", None),
        (1, "u", 2, "two", None),
        (4, "t", None, None, None),  # what was truncated in the same write is left out
        (5, "u", 3, None, ["name"]),
    ]


def test_second_file_from_the_same_offset_is_refused(
    lake: ParquetFiles, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was paused after it had read the position."""
    config = lake.config(log)
    log.put((1, "old"))
    with open_sink(config) as zombie:
        zombie.open()
        written = capture_writes(config)
        before = files(lake)
        monkeypatch.setattr(zombie, "_stored", lambda target: {})
        with pytest.raises(PositionMoved, match="another process has written the file of offset 0"):
            zombie.apply(written[0])
    assert files(lake) == before


def test_sink_that_writes_to_the_directory_before_a_rebuild_is_refused(
    lake: ParquetFiles, log: Log
) -> None:
    config = lake.config(log)
    log.put((1, "one"))
    written = capture_writes(config)
    with open_sink(config) as late:
        late.open()
        SinkRunner(config).rebuild()
        with pytest.raises(PositionMoved, match="after a rebuild"):
            late.apply(written[0])
    assert sorted(it.name for it in lake.path.iterdir()) == ["items", "items.000002"]


def test_temporary_file_of_a_killed_process_is_removed_in_the_end(
    lake: ParquetFiles, log: Log
) -> None:
    config = lake.config(log)
    log.put((1, "one"))
    run_once(config)
    left = lake.path / "items" / "__partition=0" / ".writing-x"
    left.touch()
    run_once(config)
    assert left.exists()  # it may be one of a process that runs
    os.utime(left, (0, 0))
    run_once(config)
    assert not left.exists()


def test_files_of_somebody_else_are_refused(lake: ParquetFiles, log: Log) -> None:
    log.put((1, "one"))
    run_once(lake.config(log))
    with pytest.raises(SchemaMismatch, match="has files with the columns id int64, name string"):
        run_once(lake.config(log, topic={"columns": "id long, name string, more int"}))
    with pytest.raises(ConfigError, match="by sink shop; choose another"):
        run_once(lake.config(log, name="other"))
    (lake.path / "plain").mkdir()
    with pytest.raises(ConfigError, match="exists and is not a sink's"):
        run_once(lake.config(log, topic={"table": "plain"}))


def test_files_are_complete_before_they_have_their_name(lake: ParquetFiles, log: Log) -> None:
    log.put(*((number, "x" * 100) for number in range(1000)))
    run_once(lake.config(log))
    (path,) = (lake.path / "items").glob("*/*.parquet")
    assert pq.read_table(path).num_rows == 1000
    assert path.stat().st_nlink == 1


def test_partition_without_records_has_no_file(lake: ParquetFiles, log: Log) -> None:
    """A file of no offsets would be in the way of the first records."""
    config = lake.config(log)
    place, position = Place(log.topic, 0), Position("id", 0)
    with open_sink(config) as sink:
        sink.open()
        for before in (None, position, position):  # of a run, and when the time is written
            sink.apply(Write((Step(place, before, position),), {}))
        assert sink.positions() == {}
        sink.apply(Write((Step(place, position, Position("id", 3)),), {}))
        with pytest.raises(PositionMoved):
            sink.apply(Write((Step(place, position, position),), {}))
    assert files(lake) == ["00000000000000000000.parquet"]
