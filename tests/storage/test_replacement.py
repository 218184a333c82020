"""Start-up after a crash in the middle of a compaction's renames."""

from __future__ import annotations

import pytest

from millstream.config.topic import TopicConfig
from millstream.storage import lookup, names
from tests.storage.store import DATA, Store, make_batch, read_all

PATH = f"{DATA}/orders-0"
STEPS = ("cleaned", "log is swap", "all are swap", "old ones gone", "indexes in place", "done")


def offset_file(base_offset: int, suffix: str) -> str:
    return names.offset_file(PATH, base_offset, suffix)


def interrupted_store(step: str) -> Store:
    """Segments 0, 1 and 2 are replaced by one with only offset 2; segment 3 is active."""
    store = Store(config=TopicConfig(segment_bytes=100))
    for number in range(4):
        store.append(b"%d" % number)
    store.flush(0, to_segments=True)
    store.directories.checkpoint()
    fs = store.fs
    batch = bytearray(make_batch(b"2", timestamp=store.clock.now_ms()))
    batch[:8] = (2).to_bytes(8)
    reached = STEPS.index(step)
    for kind, content in (
        (names.INDEX_SUFFIX, b""),
        (names.TIME_INDEX_SUFFIX, store.clock.now_ms().to_bytes(8) + (2).to_bytes(4)),
        (names.LOG_SUFFIX, bytes(batch)),
    ):
        if reached >= 5 or (reached == 4 and kind != names.LOG_SUFFIX):
            suffix = ""
        elif reached >= 2 or (reached == 1 and kind == names.LOG_SUFFIX):
            suffix = names.SWAP_SUFFIX
        else:
            suffix = names.CLEANED_SUFFIX
        path = offset_file(0, kind) + suffix
        if fs.exists(path):
            fs.unlink(path)
        fd = fs.open(path, create=True)
        fs.pwritev(fd, [content], 0)
        fs.fdatasync(fd)
    if reached >= 3:
        for base_offset in (0, 1, 2):
            for kind in (names.LOG_SUFFIX, names.INDEX_SUFFIX, names.TIME_INDEX_SUFFIX):
                path = offset_file(base_offset, kind)
                if fs.exists(path) and not (base_offset == 0 and reached >= 4):
                    fs.rename(path, path + names.DELETED_SUFFIX)
        if reached == 4:
            fs.rename(offset_file(0, names.LOG_SUFFIX), offset_file(0, ".log.deleted"))
    fs.sync_directory(PATH)
    return store


@pytest.mark.parametrize("step", STEPS)
def test_interrupted_replacement_is_undone_or_finished(step: str) -> None:
    store = interrupted_store(step)
    store.crash()
    values = [record.value for record in read_all(store.log())]
    if step == "cleaned":
        assert values == [b"0", b"1", b"2", b"3"]
    else:
        assert values == [b"2", b"3"]
        assert [segment.base_offset for segment in store.log().segments] == [0, 3]
    leftovers = [
        path
        for path in store.files()
        if path.endswith((names.CLEANED_SUFFIX, names.SWAP_SUFFIX, names.DELETED_SUFFIX))
    ]
    assert leftovers == []
    found = lookup.offset_for_timestamp(store.log(), 0)
    assert found is not None
    assert found.offset == (0 if step == "cleaned" else 2)


@pytest.mark.parametrize("step", STEPS)
def test_finishing_twice_changes_nothing(step: str) -> None:
    store = interrupted_store(step)
    store.crash()
    before = store.files(".log")
    store.crash()
    assert store.files(".log") == before
