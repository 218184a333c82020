"""Archived topics as clients see them: nothing is lost, whatever the brokers keep."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import KafkaException, ShareConsumer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from millstream.broker.embedded import Broker
from millstream.errors import ApiError
from millstream.query import query
from tests.broker.archiving.scenes import (
    START_MS,
    alter,
    archived_end,
    archiving_broker,
    check_records,
    consume,
    create,
    keep_little,
    list_offset,
    local_start,
    manifests,
    produce,
    set_group,
    settings,
)
from tests.peers.patience import PATIENCE_SECONDS, wait_until

COUNT = 300


def test_nothing_is_imported_without_an_archived_topic() -> None:
    program = (
        "import sys, millstream.broker.server\n"
        "assert 'millstream.broker.archiving.archiving' in sys.modules\n"
        "assert 'millstream.broker.archiving.archiver' not in sys.modules\n"
        "assert not any(name.startswith('millstream.archive') for name in sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def archived_topic(broker: Broker, archive: Path, **config: object) -> int:
    """Returns where the broker's own log starts."""
    create(broker, **config)
    produce(broker, 0, COUNT)
    keep_little(broker)
    wait_until(lambda: local_start(broker) > COUNT // 2)
    assert local_start(broker) <= archived_end(archive)
    return local_start(broker)


def test_consumers_read_from_the_archive_and_go_on_with_the_log(tmp_path: Path) -> None:
    with archiving_broker(tmp_path) as broker:
        archived_topic(broker, tmp_path / "archive")
        check_records(consume(broker, COUNT), 0, COUNT)
        check_records(consume(broker, COUNT, first=37), 37, COUNT)
        committed = {"isolation.level": "read_committed"}
        check_records(consume(broker, COUNT, **committed), 0, COUNT)
        sql = 'select count(*), min("_offset"), max("_offset") from orders where _offset >= 20'
        found = query(sql, broker.bootstrap_servers).to_pylist()
        assert [list(it.values()) for it in found] == [[COUNT - 20, 20, COUNT - 1]]
        produce(broker, COUNT, COUNT + 50)
        check_records(consume(broker, COUNT + 50, first=COUNT - 60), COUNT - 60, COUNT + 50)


def test_archive_is_found_again_after_a_restart(tmp_path: Path) -> None:
    with archiving_broker(tmp_path) as broker:
        archived_topic(broker, tmp_path / "archive")
    with archiving_broker(tmp_path) as broker:
        check_records(consume(broker, COUNT), 0, COUNT)
        produce(broker, COUNT, 2 * COUNT)
        wait_until(lambda: archived_end(tmp_path / "archive") > COUNT + COUNT // 2)
        check_records(consume(broker, 2 * COUNT), 0, 2 * COUNT)


def test_offsets_are_listed_in_archive_and_log(tmp_path: Path) -> None:
    with archiving_broker(tmp_path) as broker:
        archived_topic(broker, tmp_path / "archive")
        assert list_offset(broker, OffsetSpec.earliest()) == 0
        assert list_offset(broker, OffsetSpec.latest()) == COUNT
        assert list_offset(broker, OffsetSpec.max_timestamp()) == COUNT - 1
        for number in (0, 40, COUNT - 1):
            assert list_offset(broker, OffsetSpec.for_timestamp(START_MS + number)) == number


def test_deleted_records_are_deleted_from_the_archive(tmp_path: Path) -> None:
    with archiving_broker(tmp_path) as broker:
        archived_topic(broker, tmp_path / "archive")
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        wanted = TopicPartition("orders", 0, 45)
        deleted = admin.delete_records([wanted])[TopicPartition("orders", 0)]
        assert deleted.result(PATIENCE_SECONDS).low_watermark == 45
        assert list_offset(broker, OffsetSpec.earliest()) == 45
    with archiving_broker(tmp_path) as broker:
        assert list_offset(broker, OffsetSpec.earliest()) == 45
        check_records(consume(broker, COUNT, first=45), 45, COUNT)
        with pytest.raises(AssertionError, match=r"[Oo]ffset out of range|OFFSET_OUT_OF_RANGE"):
            consume(broker, COUNT, first=10)


def test_retention_applies_to_the_archive(tmp_path: Path) -> None:
    """Its records are years old."""
    with archiving_broker(tmp_path) as broker:
        archived_topic(broker, tmp_path / "archive")
        alter(broker, local_retention_ms=1000, retention_ms=1000)
        wait_until(lambda: list_offset(broker, OffsetSpec.earliest()) > COUNT // 2)
        start = list_offset(broker, OffsetSpec.earliest())
        wait_until(lambda: manifests(tmp_path / "archive")[-1]["start_offset"] >= start)
        listed = {it["name"] for it in manifests(tmp_path / "archive")[-1]["files"]}
        wait_until(lambda: {it.name for it in (tmp_path / "archive").rglob("*.parquet")} == listed)


def test_aborted_transactions_stay_hidden(tmp_path: Path) -> None:
    from confluent_kafka import Producer

    with archiving_broker(tmp_path) as broker:
        create(broker)
        producer = Producer(
            {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t"}
        )
        producer.init_transactions(PATIENCE_SECONDS)
        for number in range(12):
            producer.begin_transaction()
            for _ in range(8):
                producer.produce("orders", key=b"k", value=b"%d" % number + b"." * 80)
            if number % 3 == 1:
                producer.flush(PATIENCE_SECONDS)
                producer.abort_transaction(PATIENCE_SECONDS)
            else:
                producer.commit_transaction(PATIENCE_SECONDS)
        before = consume(broker, 10**6, **{"isolation.level": "read_committed"})
        everything = consume(broker, 10**6, **{"isolation.level": "read_uncommitted"})
        assert len(before) == 8 * 8
        assert len(everything) == 12 * 8
        keep_little(broker)
        wait_until(lambda: local_start(broker) > 60)
        after = consume(broker, 10**6, **{"isolation.level": "read_committed"})
        assert [(it.offset(), it.value()) for it in after] == [
            (it.offset(), it.value()) for it in before
        ]
        again = consume(broker, 10**6, **{"isolation.level": "read_uncommitted"})
        assert [it.offset() for it in again] == [it.offset() for it in everything]


def test_compacted_topic_archives_its_history_first(tmp_path: Path) -> None:
    from millstream.archive.reading import open_archive

    with archiving_broker(tmp_path) as broker:
        create(broker, cleanup_policy="compact", min_cleanable_dirty_ratio=0.01)
        produce(broker, 0, COUNT)
        wait_until(lambda: len(consume(broker, COUNT)) < COUNT // 2)
    part = open_archive(str(tmp_path / "archive")).topic("orders").partitions[0]
    offsets = [it for rows in part.read() for it in rows.column("offset").to_pylist()]
    assert offsets == list(range(part.end_offset))
    assert part.end_offset > COUNT // 2


def test_archive_of_a_topic_that_is_archived_no_longer_is_deleted(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with archiving_broker(tmp_path) as broker:
        start = archived_topic(broker, archive)
        with pytest.raises(ApiError, match="without deleting remote data"):
            alter(broker, remote_storage_enable="false")
        check_records(consume(broker, COUNT), 0, COUNT)
        disabled = {"remote_storage_enable": "false", "remote_log_delete_on_disable": "true"}
        alter(broker, **disabled, local_retention_bytes=-2)
        wait_until(lambda: not list(archive.rglob("*.parquet")))
        assert [it["files"] for it in manifests(archive)] == [[]]
        start = local_start(broker)
        assert list_offset(broker, OffsetSpec.earliest()) == start
        check_records(consume(broker, COUNT, first=start), start, COUNT)
        alter(broker, remote_storage_enable="true", local_retention_bytes=1000)
        produce(broker, COUNT, 2 * COUNT)
        wait_until(lambda: local_start(broker) > COUNT + COUNT // 2)
        assert list_offset(broker, OffsetSpec.earliest()) == start
        check_records(consume(broker, 2 * COUNT, first=start), start, 2 * COUNT)
        alter(broker, **disabled, local_retention_bytes=-2)
        wait_until(lambda: not list(archive.rglob("*.parquet")))


def share(broker: Broker, group: str, reset: str, wanted: set[int]) -> set[int]:
    """The offsets that a share group gets, until these are among them."""
    set_group(broker, group, reset)
    options = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "log_level": 0}
    consumer = ShareConsumer(options)
    offsets: set[int] = set()
    try:
        consumer.subscribe(["orders"])
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not wanted <= offsets:
            assert time.monotonic() < deadline, f"only {len(offsets)} records"
            offsets |= {it.offset() for it in consumer.poll(1) if it.error() is None}
        return offsets
    finally:
        consumer.close()


@pytest.mark.slow
def test_share_groups_read_from_the_archive(tmp_path: Path) -> None:
    """From its beginning, by time, and on after a restart."""
    everything = set(range(COUNT))
    with archiving_broker(tmp_path) as broker:
        archived_topic(broker, tmp_path / "archive")
        assert share(broker, "all", "earliest", everything) == everything
        age = time.time() - START_MS / 1000 + 60
        assert share(broker, "aged", f"by_duration:PT{age:.0f}S", {0}) <= everything
        some = share(broker, "some", "earliest", {0})
    with archiving_broker(tmp_path) as broker:
        share(broker, "some", "earliest", everything - some)


def test_topic_is_refused_without_an_archive(tmp_path: Path) -> None:
    with (
        Broker.start(tmp_path / "data") as broker,
        pytest.raises(KafkaException, match=r"millstream\.archive\.path"),
    ):
        create(broker)


def test_nothing_is_deleted_while_the_archive_fails(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.write_text("not a directory")
    with Broker.start(tmp_path / "data", settings(str(archive))) as broker:
        create(broker, local_retention_bytes=1000)
        produce(broker, 0, COUNT)
        check_records(consume(broker, COUNT), 0, COUNT)
        assert local_start(broker) == 0
        archive.unlink()
        wait_until(lambda: local_start(broker) > COUNT // 2)
        check_records(consume(broker, COUNT), 0, COUNT)


def test_retention_goes_on_while_nothing_is_archived_any_more(tmp_path: Path) -> None:
    with archiving_broker(tmp_path) as broker:
        archived_topic(broker, tmp_path / "archive")
        alter(broker, remote_log_copy_disable="true", local_retention_bytes=-2)
        alter(broker, retention_ms=1000)
        wait_until(lambda: not manifests(tmp_path / "archive")[-1]["files"])
        wait_until(lambda: list_offset(broker, OffsetSpec.earliest()) == local_start(broker))


def test_consumers_cross_what_was_deleted_between_archive_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        pass

    monkeypatch.setattr("millstream.broker.archiving.archiver.Archiver._retain", nothing)
    with archiving_broker(tmp_path) as broker:
        archived_topic(broker, tmp_path / "archive")
        alter(broker, remote_log_copy_disable="true", local_retention_bytes=-2)
        produce(broker, COUNT, 2 * COUNT)
        alter(broker, retention_ms=1000)
        wait_until(lambda: local_start(broker) > COUNT)
        alter(broker, retention_ms=-1)
        produce(broker, 2 * COUNT, 2 * COUNT + 5)
        end = archived_end(tmp_path / "archive")
        shown = consume(broker, 2 * COUNT + 5)
        start = next(it.offset() for it in shown if it.offset() >= end)
        assert COUNT < start <= 2 * COUNT
        wanted = [*range(end), *range(start, 2 * COUNT + 5)]
        assert [it.offset() for it in shown] == wanted
        check_records(consume(broker, 2 * COUNT + 5, first=end + 1), start, 2 * COUNT + 5)
