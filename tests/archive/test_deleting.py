"""The archive of a deleted topic is deleted, whatever interrupts it, and no other one."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from millstream.archive.deleting import (
    MARKS,
    Mark,
    delete_topic,
    mark_topic,
    marked_topics,
    unmark_topic,
)
from millstream.archive.manifest import ArchiveError
from millstream.archive.places import LocalPlace, Place, open_place
from millstream.archive.reading import open_archive
from millstream.archive.service import ArchiveService, Source
from tests.archive.scenes import (
    TOPIC_ID,
    CuttingFileSystem,
    PowerCut,
    archived,
    batches,
    new_manifest,
)

OTHER_ID = UUID("0ace1f2e-2222-4222-8333-444455556666")


def create_again(place: Place) -> None:
    """The topic, under its name."""
    manifest = replace(new_manifest(), topic_id=OTHER_ID)
    ArchiveService(place).write(manifest, 20, (), Source(0, [batches(0, 20)]))


def exercise(path: str) -> None:
    place = open_place(path)
    archived(place)
    create_again(place)
    mark = Mark("orders", TOPIC_ID, 1234)
    mark_topic(place, mark)
    mark_topic(place, mark)
    assert marked_topics(place) == [mark]
    assert [it.topic_id for it in open_archive(path).topics()["orders"]] == [OTHER_ID, TOPIC_ID]
    for _ in range(2):  # also if there is nothing
        delete_topic(place, "orders", TOPIC_ID)
        assert place.list(f"orders/{TOPIC_ID}") == []
    assert [it.topic_id for it in open_archive(path).topics()["orders"]] == [OTHER_ID]
    assert marked_topics(place) == [mark]
    unmark_topic(place, TOPIC_ID)
    unmark_topic(place, TOPIC_ID)
    assert marked_topics(place) == []
    assert sum(rows.num_rows for rows in open_archive(path).topic("orders").partitions[0].read())


def test_topic_of_the_same_name_stays_in_a_directory(tmp_path: Path) -> None:
    exercise(str(tmp_path))


def test_topic_of_the_same_name_stays_in_a_bucket(bucket: str) -> None:
    exercise(bucket)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"topic": "orders", "topic_id": "x"}'])
def test_damaged_mark_is_named(tmp_path: Path, content: bytes) -> None:
    place = open_place(str(tmp_path))
    with place.create(f"{MARKS}/{TOPIC_ID}.json") as output:
        output.write(content)
    with pytest.raises(ArchiveError, match=f"{TOPIC_ID}.json does not name a deleted topic"):
        marked_topics(place)


@pytest.mark.parametrize("topic", ["", "..", "../other", "a/b"])
def test_mark_cannot_name_other_directories(tmp_path: Path, topic: str) -> None:
    place = open_place(str(tmp_path))
    mark_topic(place, Mark(topic, TOPIC_ID, 1))
    with place.create(f"{MARKS}/notes.txt") as output:
        output.write(b"not a mark")
    assert marked_topics(place) == []


def test_deletion_is_finished_after_a_power_cut_at_any_operation() -> None:
    for cut_after in range(200):
        fs = CuttingFileSystem()
        place: Place = LocalPlace("/archive", fs)
        archived(place, [(0, 30), (30, 60)])
        create_again(place)
        fs.operations_left = cut_after
        is_done = is_marked = False
        with suppress(PowerCut):
            mark_topic(place, Mark("orders", TOPIC_ID, 5))
            is_marked = True
            delete_topic(place, "orders", TOPIC_ID)
            is_done = True
        fs.operations_left = None
        fs.crash(Random(cut_after))
        place = LocalPlace("/archive", fs)
        marks = marked_topics(place)
        assert marks == [Mark("orders", TOPIC_ID, 5)] or not is_marked
        for mark in marks:
            delete_topic(place, mark.topic, mark.topic_id)
            assert place.list(f"orders/{TOPIC_ID}") == []
        assert len(place.list(f"orders/{OTHER_ID}/partition=0")) == 2
        if is_done:
            assert cut_after > 5
            return
    raise AssertionError("it was never done")
