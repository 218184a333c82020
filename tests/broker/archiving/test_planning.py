"""What is archived next, what is forgotten, and when archive and log do not match."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest

from millstream.archive.channel import FILES_MAX
from millstream.archive.manifest import ArchivedFile, Manifest
from millstream.broker.archiving import planning
from millstream.broker.archiving.planning import Upload, expired, find_divergence, next_upload
from millstream.config.topic import TopicConfig
from millstream.storage.epochs import LeaderEpochs
from tests.archive.scenes import new_manifest
from tests.archive.test_manifest import entry


class Segment(NamedTuple):
    base_offset: int
    size: int = 100
    max_timestamp: int | None = None


KEEPING = TopicConfig(retention_ms=-1)
SEGMENTS = [Segment(10), Segment(20), Segment(30), Segment(40)]


def upload(archived: int = 0, log_start: int = 10, limit: int = 1000) -> Upload | None:
    return next_upload(SEGMENTS, KEEPING, archived=archived, log_start=log_start, limit=limit)


def test_closed_segments_are_archived_together() -> None:
    assert upload() == (10, 40, (0, 1, 2))
    assert upload(archived=20) == (20, 40, (1, 2))
    assert upload(archived=40) is None


def test_active_segment_is_not_archived() -> None:
    assert next_upload([Segment(0)], KEEPING, archived=0, log_start=0, limit=1000) is None


def test_unstable_records_are_not_archived() -> None:
    assert upload(limit=39) == (10, 30, (0, 1))
    assert upload(limit=19) is None


def test_archive_continues_inside_a_segment() -> None:
    """Segments of the new leader end elsewhere than those of the earlier one."""
    assert upload(archived=25) == (25, 40, (1, 2))


def test_deleted_records_are_not_archived() -> None:
    assert upload(log_start=33) == (33, 40, (2,))


def test_files_are_a_small_part_of_what_is_retained() -> None:
    """They expire as a whole."""
    wanted = {"archived": 0, "log_start": 0, "limit": 1000}
    assert next_upload(SEGMENTS, TopicConfig(retention_bytes=2000), **wanted) == (0, 30, (0, 1))
    compacted = TopicConfig(retention_bytes=2000, cleanup_policy=("compact",))
    assert next_upload(SEGMENTS, compacted, **wanted) == (0, 40, (0, 1, 2))
    timed = [Segment(10 * n, 100, time) for n, time in enumerate((0, 70, 101, None, 500))]
    assert next_upload(timed, TopicConfig(retention_ms=1000), **wanted) == (0, 20, (0, 1))
    assert next_upload(timed, KEEPING, **wanted) == (0, 40, (0, 1, 2, 3))


def test_files_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "FILE_BYTES_MAX", 150)
    assert upload() == (10, 20, (0,))
    many = [Segment(offset, 0) for offset in range(200)]
    found = next_upload(many, KEEPING, archived=0, log_start=0, limit=1000)
    assert found is not None
    assert len(found.segments) == FILES_MAX


def epochs(*entries: tuple[int, int]) -> LeaderEpochs:
    made = LeaderEpochs("nowhere")
    for epoch, start in entries:
        made.assign(epoch, start)
    return made


def manifest_of(*files: ArchivedFile) -> Manifest:
    manifest = new_manifest(leader_epoch=9)
    for file in files:
        manifest = manifest.with_file(file)
    return manifest


def test_log_that_has_all_archived_records_matches() -> None:
    manifest = manifest_of(entry(0, 10, 1), entry(10, 20, 2))
    known = epochs((1, 0), (2, 12), (5, 25))
    assert find_divergence(manifest, known, log_start=0, log_end=30) is None
    # Older epochs are forgotten with the records.
    assert find_divergence(manifest, epochs((2, 20)), log_start=20, log_end=20) is None
    assert find_divergence(new_manifest(), epochs(), log_start=0, log_end=0) is None


@pytest.mark.parametrize(
    ("known", "log_end"),
    [
        (epochs((1, 0), (2, 12)), 15),  # the log has lost its end
        (epochs((1, 0), (2, 12), (3, 15)), 40),  # and has other records now
        (epochs((1, 0), (3, 10)), 40),  # an epoch that it never saw
        (epochs(), 0),  # the disk was replaced
    ],
)
def test_log_that_has_lost_archived_records_does_not_match(
    known: LeaderEpochs, log_end: int
) -> None:
    manifest = manifest_of(entry(0, 10, 1), entry(10, 20, 2))
    found = find_divergence(manifest, known, log_start=0, log_end=log_end)
    assert found is not None
    assert "differ" in found


def names(found: object) -> list[int]:
    return [file.base_offset for file in found]  # type: ignore[attr-defined]


def test_old_files_expire() -> None:
    manifest = manifest_of(entry(0, 10), entry(10, 20), entry(20, 30))  # times are offsets
    by_age = TopicConfig(retention_ms=100)
    assert names(expired(manifest, by_age, unarchived_bytes=0, now_ms=105)) == []
    assert names(expired(manifest, by_age, unarchived_bytes=0, now_ms=110)) == [0]
    assert names(expired(manifest, by_age, unarchived_bytes=0, now_ms=1000)) == [0, 10, 20]
    forever = TopicConfig(retention_ms=-1)
    assert names(expired(manifest, forever, unarchived_bytes=0, now_ms=10**15)) == []


def test_large_archives_expire() -> None:
    manifest = manifest_of(entry(0, 10), entry(10, 20), entry(20, 30))  # 20 bytes each
    by_size = TopicConfig(retention_ms=-1, retention_bytes=45)
    assert names(expired(manifest, by_size, unarchived_bytes=0, now_ms=0)) == []
    assert names(expired(manifest, by_size, unarchived_bytes=5, now_ms=0)) == [0]
    assert names(expired(manifest, by_size, unarchived_bytes=10**6, now_ms=0)) == [0, 10, 20]


def test_compacted_topic_keeps_its_history() -> None:
    config = TopicConfig(cleanup_policy=frozenset({"compact"}), retention_ms=1, retention_bytes=1)
    manifest = manifest_of(entry(0, 10))
    assert names(expired(manifest, config, unarchived_bytes=0, now_ms=10**15)) == []


def test_file_without_timestamps_is_as_old_as_its_archiving() -> None:
    untimed = replace(entry(0, 10), min_timestamp=-1, max_timestamp=-1, archived_ms=50)
    by_age = TopicConfig(retention_ms=100)
    manifest = manifest_of(untimed, entry(10, 20))
    assert names(expired(manifest, by_age, unarchived_bytes=0, now_ms=100)) == []
    assert names(expired(manifest, by_age, unarchived_bytes=0, now_ms=151)) == [0, 10]


def test_file_of_unknown_age_expires_with_the_next_one() -> None:
    unknown = replace(entry(0, 10), max_timestamp=-1)
    by_age = TopicConfig(retention_ms=100)
    manifest = manifest_of(unknown, entry(10, 20))
    assert names(expired(manifest, by_age, unarchived_bytes=0, now_ms=119)) == []
    assert names(expired(manifest, by_age, unarchived_bytes=0, now_ms=120)) == [0, 10]
    assert names(expired(manifest_of(unknown), by_age, unarchived_bytes=0, now_ms=10**15)) == []
