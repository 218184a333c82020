"""Queries over a topic of which most is archived: through the broker, and from the files."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from millstream.archive.places import open_place
from millstream.archive.reading import PartitionArchive, open_archive
from millstream.broker.embedded import Broker
from millstream.errors import ConfigError
from millstream.query import Query, query
from millstream.query.archived import ArchivedReader, with_archived
from millstream.query.fetching import QueryFailed, Source
from millstream.query.ranges import ScanRange
from tests.archive.scenes import archived as archive_two_files
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
from tests.peers.transactional import TransactionalProducer

COUNT = 200
ABORTED = 20
SUMS = "count(*), sum(_offset), min(_offset), count(header(_headers, 'number')), max(_value)"


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, str]]:
    """Aborted records first, of which the broker's own log has none any more."""
    directory = tmp_path_factory.mktemp("archived")
    with archiving_broker(directory) as broker:
        create(broker)
        with TransactionalProducer(broker.bootstrap_servers, "orders") as producer:
            producer.init()
            producer.run("orders", [b"aborted"] * ABORTED, committed=False)
        produce(broker, 0, COUNT)
        keep_little(broker)
        wait_until(lambda: local_start(broker) > COUNT // 2)
        yield broker, str(directory / "archive")


def totals(broker: Broker, condition: str, archive: str | None, **more: bool) -> list[object]:
    sql = f"select {SUMS} from orders where {condition}"
    (row,) = query(sql, broker.bootstrap_servers, archive=archive, **more).to_pylist()
    return list(row.values())


def test_brokers_and_files_give_the_same_result(archived: tuple[Broker, str]) -> None:
    broker, path = archived
    seam = archived_end(path)
    assert local_start(broker) <= seam
    first = ABORTED + 1
    for condition, expected in [
        ("true", COUNT),
        (f"_offset < {seam}", seam - first),
        (f"_offset between {seam - 3} and {seam + 2}", 6),
        (f"_timestamp >= make_timestamptz({(START_MS + 50) * 1000})", COUNT - 50),
        (f"_timestamp >= make_timestamptz({(START_MS + COUNT) * 1000})", 0),
        ("_value like '%value 7.%' and _key = 'key2'", 1),
    ]:
        found = totals(broker, condition, path)
        assert found[0] == expected, condition
        assert found == totals(broker, condition, None), condition
    aborted = totals(broker, "_value = 'aborted'", path, read_committed=False)
    assert aborted[:2] == [ABORTED, sum(range(ABORTED))]


def test_reader_that_is_stopped_opens_no_further_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = open_place(str(tmp_path))
    archive_two_files(place)
    part = open_archive(str(tmp_path)).topic("orders").partitions[0]
    selections: list[object] = []
    select = PartitionArchive.select
    monkeypatch.setattr(
        PartitionArchive, "select", lambda *given: selections.append(given) or select(*given)
    )
    stop, wanted = Event(), ScanRange(0, 0, 250)
    brokers: Any = None  # nothing is asked of them
    reader = ArchivedReader(brokers, Source("orders", None), {0: part}, stop=stop)
    offsets = [it.next_offset for it in reader.read(wanted)]
    assert (offsets[-1], len(selections)) == (250, 1)  # whatever the number of files
    Path(part.path_of(part.files[1])).unlink()
    for step in reader.read(wanted):
        stop.set()
        assert step.next_offset <= 100


@pytest.mark.parametrize("fault", ["gone", "damaged", "empty"])
def test_a_file_that_cannot_be_read_is_named_and_read_through_the_broker(
    archived: tuple[Broker, str], tmp_path: Path, fault: str
) -> None:
    broker, path = archived
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    part = open_archive(str(copy)).topic("orders").partitions[0]
    bad, *good = part.files
    file = Path(part.path_of(bad))
    content = file.read_bytes()
    match fault:
        case "gone":
            file.unlink()
        case "damaged":
            file.write_bytes(content[:4] + bytes(len(content) // 2) + content[len(content) // 2 :])
        case "empty":
            file.write_bytes(b"")
    sql = f"select {SUMS} from orders"
    with Query(sql, broker.bootstrap_servers, archive=str(copy)) as running:
        assert next(iter(running.arrow().to_pylist()[0].values())) == COUNT
        (warning,) = running.warnings
    assert f"archived file {file} cannot be read" in warning
    assert f"to {bad.end_offset - 1} of orders-0 are read from the brokers" in warning
    assert f"millstream archive verify {copy} --topic orders" in warning
    if good:  # files after it are read as ever
        assert all(it.name not in warning for it in good)
    after = f"{sql} where _offset >= {bad.end_offset}"
    with Query(after, broker.bootstrap_servers, archive=str(copy)) as running:
        running.arrow()
        assert running.warnings == []


def test_query_fails_with_the_name_of_a_file_that_brokers_cannot_replace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files before and after it are read as ever."""
    monkeypatch.setattr("millstream.query.fetching.RETRY_SECONDS", 0.1)
    path = tmp_path / "archive"
    with archiving_broker(tmp_path) as broker:
        create(broker)
        for count in (50, 100, COUNT):
            end = archived_end(str(path))
            produce(broker, count - 50, count)
            wait_until(lambda end=end: archived_end(str(path)) > end)  # type: ignore[misc]
        keep_little(broker)
        wait_until(lambda: local_start(broker) > COUNT // 2)
    part = open_archive(str(path)).topic("orders").partitions[0]
    bad = part.files[1]
    file = Path(part.path_of(bad))
    file.unlink()
    with Broker.start(tmp_path / "data") as broker:

        def found(condition: str) -> int:
            sql = f"select _offset from orders where {condition}"
            servers = broker.bootstrap_servers
            return query(sql, servers, archive=str(path), schema="unused bigint").num_rows

        assert found(f"_offset < {bad.base_offset}") == bad.base_offset
        end = bad.end_offset
        assert found(f"_offset between {end} and {end + 9}") == 10
        with pytest.raises(QueryFailed, match=f"{file} cannot be read.*The brokers: ") as raised:
            found("true")
        assert f"orders-0 could not be read from offset {bad.base_offset}" in str(raised.value)


def test_an_archive_without_the_topic_changes_nothing(
    archived: tuple[Broker, str], tmp_path: Path
) -> None:
    broker, _ = archived
    assert totals(broker, "true", str(tmp_path))[0] == COUNT
    with pytest.raises(ConfigError, match="has the scheme ftp"):
        totals(broker, "true", "ftp://host/x")


def test_what_brokers_do_not_serve_is_read_from_the_files(tmp_path: Path) -> None:
    """A broker that does not know the archive any more."""
    path = str(tmp_path / "archive")
    with archiving_broker(tmp_path) as broker:
        create(broker)
        produce(broker, 0, 90)
        wait_until(lambda: archived_end(path) > 0)  # which ends the first file
        produce(broker, 90, COUNT)
        keep_little(broker)
        wait_until(lambda: local_start(broker) > COUNT // 2)
    with Broker.start(tmp_path / "data") as broker:
        start = local_start(broker)
        assert totals(broker, "true", None)[0] == COUNT - start
        assert totals(broker, "true", path)[:3] == [COUNT, sum(range(COUNT)), 0]
        since = f"_timestamp >= make_timestamptz({(START_MS + 90) * 1000})"
        sql = f"select _offset from orders where {since}"
        with Query(sql, broker.bootstrap_servers, archive=path) as running:
            assert running.arrow().num_rows == COUNT - 90
            (read,) = running.tables["orders"].read_ranges
            assert 0 < read.first <= 90 < start  # by the times of files


def test_ranges_have_what_is_archived_and_nothing_of_a_gap(archived: tuple[Broker, str]) -> None:
    _, path = archived
    part = open_archive(path).topic("orders").partitions[0]
    end = part.end_offset
    assert with_archived([ScanRange(0, end - 2, end + 9)], {0: part}) == [ScanRange(0, 0, end + 9)]
    assert with_archived([ScanRange(0, end + 5, end + 9)], {0: part}) == [
        ScanRange(0, 0, end),
        ScanRange(0, end + 5, end + 9),
    ]
    assert with_archived([ScanRange(1, 3, 9)], {0: part}) == [ScanRange(1, 3, 9)]
