"""Tables of Delta; what they have in common with other targets is tested with the runner."""

from __future__ import annotations

import time
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from millstream.connect.sinks.delta import DeltaSink
from millstream.connect.sinks.opening import open_sink
from millstream.connect.sinks.positions import Place, Position, PositionMoved, Step
from millstream.connect.sinks.sink import Write
from millstream.errors import SchemaMismatch, StoreError
from tests.connect.sinks.conftest import DeltaTables, Log, delete_row
from tests.connect.sinks.test_runner import capture_writes, run_once


@pytest.fixture
def lake(tmp_path: Path) -> DeltaTables:
    return DeltaTables(tmp_path)


def test_types_are_kept(lake: DeltaTables, log: Log) -> None:
    columns = "id long, price decimal(9,2), at timestamp, day date, tags json, raw binary"
    row = {"id": 1, "price": "1.50", "at": "2026-01-31T10:00:00Z", "day": 20_000, "tags": ["a"]}
    log.send((b"1", row | {"raw": "AAE="}))
    run_once(lake.config(log, format="json", topic={"columns": columns}))
    (found,) = DeltaTable(str(lake.path / "items")).to_pyarrow_table().to_pylist()
    assert found == {
        "id": 1,
        "price": Decimal("1.50"),
        "at": datetime(2026, 1, 31, 10, tzinfo=UTC),
        "day": date(2024, 10, 4),
        "tags": '["a"]',
        "raw": b"\0\1",
    }


def test_rows_and_position_are_one_commit(lake: DeltaTables, log: Log) -> None:
    log.put((1, "one"), (2, "two"))
    run_once(lake.config(log))
    log.send(delete_row(99))  # changes no row
    run_once(lake.config(log))
    table = DeltaTable(str(lake.path / "items"))
    assert table.version() == 2  # and the one that created it
    prefix = f"millstream/shop/{log.topic}"
    assert table.transaction_version(f"{prefix}/0") == 3
    assert table.transaction_version(f"{prefix}/partitions") == 1


def test_second_commit_from_the_same_position_fails(
    lake: DeltaTables, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was paused after it had read the position."""
    config = lake.config(log)
    log.put((1, "old"))
    with open_sink(config) as zombie:
        zombie.open()
        seen = DeltaTable(str(lake.path / "items"))
        written = capture_writes(config)
        log.put((1, "new"))
        run_once(config)
        monkeypatch.setattr(zombie, "_load", lambda target: seen)
        with pytest.raises(PositionMoved, match="another commit was faster"):
            zombie.apply(written[0])
    assert lake.rows() == {1: "new"}


def test_table_that_does_not_fit_is_refused(lake: DeltaTables, log: Log) -> None:
    lake.path.mkdir()
    write_deltalake(str(lake.path / "items"), pa.table({"id": pa.array([1], pa.int32())}))
    with (
        open_sink(lake.config(log)) as sink,
        pytest.raises(SchemaMismatch, match="'id' is int32 there, and the rows need int64"),
    ):
        sink.open()


@pytest.mark.parametrize("partition_by", [[], ["kind"]])
def test_rows_are_found_by_keys_of_text(
    lake: DeltaTables, log: Log, partition_by: list[str]
) -> None:
    schema = pa.schema([("name", pa.string()), ("kind", pa.string())])
    lake.path.mkdir()
    DeltaTable.create(str(lake.path / "items"), schema, partition_by=partition_by)
    columns = {"columns": "name string, kind string", "key": ["name"]}
    config = lake.config(log, format="json", topic=columns)
    for start in range(0, 30, 10):  # a file for each
        rows = [{"name": f"n{n:02}", "kind": f"k{n % 2}"} for n in range(start, start + 10)]
        log.send(*((row["name"].encode(), row) for row in rows))
        run_once(config)
    with open_sink(config) as sink:
        sink.open()
        found = sink.stored_rows(sink.targets[0], [("n07",), ("n21",), ("n99",)])
    assert found == {
        ("n07",): {"name": "n07", "kind": "k1"},
        ("n21",): {"name": "n21", "kind": "k1"},
    }


def test_position_survives_checkpoints_and_maintenance(lake: DeltaTables, log: Log) -> None:
    config = lake.config(log)
    log.put((1, "one"))
    run_once(config)
    table = DeltaTable(str(lake.path / "items"))
    table.optimize.compact()
    table.create_checkpoint()
    for left in sorted((lake.path / "items" / "_delta_log").glob("*.json"))[:-1]:
        left.unlink()  # as the log's retention does
    with open_sink(config) as sink:
        sink.open()
        assert sink.positions()[Place(log.topic, 0)].offset == 1
    log.put((2, "two"))
    run_once(config)
    assert lake.rows() == {1: "one", 2: "two"}


def moment_between_commits() -> datetime:
    """A time that is later than the commits so far, and earlier than the next one.

    The time of a commit is that of its file, not the one in it, and the clock of files is some
    milliseconds behind.
    """
    time.sleep(0.05)
    moment = datetime.now(UTC)
    time.sleep(0.05)
    return moment


@pytest.mark.parametrize("how", ["version", "time", "twice"])
def test_restored_table_continues_from_the_position_of_its_rows(
    lake: DeltaTables, log: Log, how: str
) -> None:
    """Delta keeps the numbers of the newest commit, while the rows become old."""
    config = lake.config(log)
    log.put((1, "one"))
    run_once(config)
    table = DeltaTable(str(lake.path / "items"))
    version, at = table.version(), moment_between_commits()
    log.put((2, "two"))
    run_once(config)
    log.put((3, "three"))
    run_once(config)
    table.update_incremental()
    if how == "time":
        table.restore(at)
    else:
        table.restore(version)
    if how == "twice":
        table.restore(version + 2)
        table.restore(version + 3)  # the commit of the first one
    assert lake.rows() == {1: "one"}
    run_once(config)
    assert lake.rows() == {1: "one", 2: "two", 3: "three"}
    log.put((2, "last"))
    run_once(config)  # whose position is the newest again
    assert lake.rows() == {1: "one", 2: "last", 3: "three"}


def test_commit_of_the_position_alone_fails_if_the_table_is_restored_meanwhile(
    lake: DeltaTables, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = lake.config(log)
    log.put((1, "one"))
    run_once(config)
    version = DeltaTable(str(lake.path / "items")).version()
    log.put((2, "two"))
    run_once(config)
    make_properties, restored = DeltaSink._properties, list[int]()

    def restoring(*arguments: Any) -> Any:
        made = make_properties(*arguments)
        if not restored:
            restored.append(version)
            DeltaTable(str(lake.path / "items")).restore(version)
        return made

    with open_sink(config) as sink:
        sink.open()
        (stored,) = sink.positions().items()
        place, position = stored
        step = Step(place, position, Position(position.topic_id, position.offset + 1))
        monkeypatch.setattr(DeltaSink, "_properties", restoring)
        with pytest.raises(PositionMoved, match="another commit was faster"):
            sink.apply(Write((step,), {}))
    assert lake.rows() == {1: "one"}
    run_once(config)
    assert lake.rows() == {1: "one", 2: "two"}


def test_restored_version_without_its_log_asks_for_a_rebuild(lake: DeltaTables, log: Log) -> None:
    config = lake.config(log)
    for id in (1, 2, 3):
        log.put((id, "name"))
        run_once(config)
    table = DeltaTable(str(lake.path / "items"))
    table.restore(1)
    table.create_checkpoint()
    (lake.path / "items" / "_delta_log" / f"{1:020d}.json").unlink()
    with open_sink(config) as sink:
        sink.open()
        with pytest.raises(StoreError, match=r"was restored .* run with --rebuild"):
            sink.positions()
