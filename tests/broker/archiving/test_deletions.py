"""The archive of a deleted topic is deleted after it: also after crashes, and never of another."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest

from millstream.admin.topics import delete_topic
from millstream.archive.deleting import MARKS, Mark, mark_topic, marked_topics
from millstream.archive.manifest import ArchiveError
from millstream.archive.places import open_place
from millstream.broker.archiving.deletions import MARKS_KEPT_MS, RETRY_SECONDS, Deletions
from millstream.broker.archiving.process import ArchiveProcess
from millstream.broker.embedded import Broker
from millstream.client.cluster import Cluster
from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_records import TopicRecord
from millstream.errors import ApiError
from millstream.testing.clock import ManualClock
from tests.archive.scenes import TOPIC_ID, archived
from tests.broker.archiving.scenes import (
    archived_end,
    archiving_broker,
    check_records,
    consume,
    create,
    produce,
)
from tests.peers.patience import wait_until

COUNT = 150
OTHER_ID = UUID("0ace1f2e-2222-4222-8333-444455556666")


def delete(broker: Broker, topic: str = "orders") -> None:
    with Cluster(broker.bootstrap_servers) as cluster:
        delete_topic(cluster, topic)


def files(archive: Path, topic: str = "orders") -> list[Path]:
    # Not rglob, which fails if a directory is deleted meanwhile.
    return [Path(at) / name for at, _, names in os.walk(archive / topic) for name in names]


def fill(broker: Broker, archive: Path, topic: str = "orders", **config: object) -> None:
    create(broker, topic, **config)
    produce(broker, 0, COUNT, topic)
    wait_until(lambda: archived_end(archive, topic) > COUNT // 2)


class Metadata:
    def __init__(self, *topics: UUID) -> None:
        records = [TopicRecord(f"t{number}", it) for number, it in enumerate(topics)]
        self.image = ClusterImage().apply(records, 0)
        self.problem: Exception | None = None

    async def refresh(self) -> ClusterImage:
        if self.problem is not None:
            raise self.problem
        return self.image


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ArchiveProcess]:
    found = ArchiveProcess(str(tmp_path))
    yield found
    found.stop()


def deletions(process: ArchiveProcess, metadata: Metadata, clock: ManualClock) -> Deletions:
    return Deletions(
        process=process,
        metadata=metadata,  # type: ignore[arg-type]
        clock=clock,
        run_blocking=asyncio.to_thread,
    )


def test_only_marked_topics_that_are_gone_are_deleted(
    tmp_path: Path, process: ArchiveProcess
) -> None:
    async def main() -> None:
        place, clock = open_place(str(tmp_path)), ManualClock()
        archived(place)
        metadata = Metadata()
        subject = deletions(process, metadata, clock)
        assert not await subject.delete_marked()
        assert len(files(tmp_path)) == 3  # it is not marked, so it is no business of ours

        mark_topic(place, Mark("orders", TOPIC_ID, clock.now_ms()))
        metadata.image = Metadata(TOPIC_ID).image
        assert not await subject.delete_marked()
        assert len(files(tmp_path)) == 3  # its deletion was refused

        metadata.image = Metadata(OTHER_ID).image
        assert await subject.delete_marked()
        assert files(tmp_path) == []
        archived(place)  # by a former leader that had begun before
        clock.advance(MARKS_KEPT_MS - 1)
        assert await subject.delete_marked()
        assert files(tmp_path) == []
        clock.advance(1)
        assert not await subject.delete_marked()
        assert marked_topics(place) == []

    asyncio.run(main())


def test_nothing_is_deleted_while_the_metadata_is_not_known(
    tmp_path: Path, process: ArchiveProcess
) -> None:
    async def main() -> None:
        place, clock = open_place(str(tmp_path)), ManualClock()
        archived(place)
        mark_topic(place, Mark("orders", TOPIC_ID, clock.now_ms()))
        metadata = Metadata()
        metadata.problem = ArchiveError("no controller")
        subject = deletions(process, metadata, clock)
        assert await subject._look() == RETRY_SECONDS
        assert subject.problem == "no controller"
        assert len(files(tmp_path)) == 3
        metadata.problem = None
        assert await subject._look() is not None
        assert subject.problem is None
        assert files(tmp_path) == []

    asyncio.run(main())


def test_archive_goes_with_its_topic_unless_it_is_kept(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with archiving_broker(tmp_path) as broker:
        fill(broker, archive)
        fill(broker, archive, "kept", millstream_archive_keep_on_delete="true")
        kept = files(archive, "kept")
        delete(broker, "kept")
        delete(broker)
        create(broker)
        produce(broker, 0, COUNT)
        wait_until(lambda: len(list((archive / "orders").iterdir())) == 1)
        wait_until(lambda: archived_end(archive) > COUNT // 2)
        check_records(consume(broker, COUNT), 0, COUNT)
        assert set(kept) <= set(files(archive, "kept"))
        assert len(list((archive / MARKS).iterdir())) == 1


def test_deletion_is_finished_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if no topic is archived any more."""
    archive = tmp_path / "archive"

    async def nothing(_: object) -> bool:
        return False

    with monkeypatch.context() as patch, archiving_broker(tmp_path) as broker:
        patch.setattr(Deletions, "delete_marked", nothing)
        fill(broker, archive)
        delete(broker)
    assert files(archive)
    with archiving_broker(tmp_path):
        wait_until(lambda: not files(archive))


def test_topic_stays_if_its_archive_could_not_be_deleted_later(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    with archiving_broker(tmp_path) as broker:
        fill(broker, archive)
        (archive / MARKS).write_text("no directory")
        with pytest.raises(ApiError, match=r"millstream\.archive\.keep\.on\.delete=true"):
            delete(broker)
        check_records(consume(broker, COUNT), 0, COUNT)
        (archive / MARKS).unlink()
        delete(broker)
        wait_until(lambda: not files(archive))
