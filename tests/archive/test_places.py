"""A file is there completely or not at all, in a directory and in a bucket."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from millstream.archive.manifest import ArchiveError
from millstream.archive.places import LocalPlace, open_place
from millstream.testing.filesystem import MemoryFileSystem
from tests.archive.scenes import CuttingFileSystem, PowerCut

ONE, TWO = "orders/id/partition=0/one", "orders/id/partition=0/two"


def exercise(path: str) -> None:
    place = open_place(path)
    assert place.list("orders/id") == []
    assert place.size(ONE) is None
    for name, content in ((ONE, b"first"), (TWO, b""), (ONE, b"second")):
        with place.create(name) as output:
            output.write(content)
    assert place.read(ONE) == b"second"
    assert place.size(ONE) == 6
    assert place.list("orders/id/partition=0") == ["one", "two"]
    assert place.list("orders") == ["id"]
    assert place.open(ONE).read() == b"second"
    assert place.arrow_filesystem().open_input_stream(place.path_of(ONE)).read() == b"second"
    place.delete(ONE)
    place.delete(ONE)
    assert place.list("orders/id/partition=0") == ["two"]
    for missing in (place.read, place.open):
        with pytest.raises(FileNotFoundError):
            missing(ONE)
    place.delete_directory("orders/id")
    place.delete_directory("orders/id")
    assert place.list("orders/id") == []


def test_directory_is_an_archive(tmp_path: Path) -> None:
    exercise(str(tmp_path / "new" / "archive"))
    exercise(f"file://{tmp_path}/other")


def test_bucket_is_an_archive(bucket: str) -> None:
    exercise(bucket)


def test_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    with suppress(RuntimeError), place.create(ONE) as output:
        output.write(b"half")
        raise RuntimeError
    assert place.size(ONE) is None
    with place.create(ONE) as output:
        output.write(b"whole")
    assert place.read(ONE) == b"whole"
    assert place.list("orders/id/partition=0") == ["one"]


def test_power_cut_leaves_the_old_or_the_new_file() -> None:
    """At every operation, with several mixtures of what reached the disk."""
    for cut_after in range(200):
        for seed in range(5):
            fs = CuttingFileSystem()
            place = LocalPlace("/archive", fs)
            with place.create(ONE) as output:
                output.write(b"old" * 100)
            fs.operations_left = cut_after
            is_done = False
            with suppress(PowerCut):
                with place.create(ONE) as output:
                    output.write(b"new" * 200)
                is_done = True
            fs.operations_left = None
            fs.crash(Random(seed))
            content = LocalPlace("/archive", fs).read(ONE)
            assert content == b"new" * 200 or (content == b"old" * 100 and not is_done)
        if is_done:
            return
    raise AssertionError("the file was never written")


def test_full_disk_is_an_error_of_the_archive() -> None:
    fs = MemoryFileSystem()
    place = LocalPlace("/archive", fs)
    fs.fail_writes_after(10)
    with pytest.raises(ArchiveError, match="cannot write /archive/orders"), place.create(ONE) as it:
        it.write(b"x" * 100)
    fs.fail_writes_after(None)
    with place.create(ONE) as output:
        output.write(b"x" * 100)
    assert place.read(ONE) == b"x" * 100


def test_bucket_that_is_not_there_is_named(bucket: str) -> None:
    place = open_place(bucket.replace("s3://", "s3://no-such-"))
    with pytest.raises(ArchiveError, match="cannot write no-such-"), place.create(ONE) as output:
        output.write(b"x")


def test_failed_file_leaves_nothing(tmp_path: Path) -> None:
    """Whatever failed: a disk that is full must not stay so."""
    place = open_place(str(tmp_path))
    with suppress(RuntimeError), place.create(ONE) as output:
        output.write(b"half")
        raise RuntimeError
    fs = MemoryFileSystem()
    full = LocalPlace("/archive", fs)
    fs.fail_writes_after(10)
    with suppress(ArchiveError), full.create(ONE) as output:
        output.write(b"x" * 100)
    for it in (place, full):
        assert it.list("orders/id/partition=0") == []


def test_directory_is_deleted_by_several_at_once(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    for number in range(200):
        with place.create(f"orders/id/partition={number % 5}/{number}") as output:
            output.write(b"x")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: open_place(str(tmp_path)).delete_directory("orders/id"), range(4)))
    assert place.list("orders") == []


def test_two_writers_of_a_file_do_not_mix(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    with place.create(ONE) as slow:
        slow.write(b"slow, ")
        with place.create(ONE) as fast:
            fast.write(b"fast")
        assert place.read(ONE) == b"fast"
        slow.write(b"but whole")
    assert place.read(ONE) == b"slow, but whole"
    assert place.list("orders/id/partition=0") == ["one"]
