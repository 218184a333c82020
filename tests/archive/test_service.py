"""The archive of a partition: written in steps that may end anywhere, read by offset and time."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from millstream.archive import rows as rows_module
from millstream.archive.manifest import ArchiveError, ArchiveFenced, Manifest
from millstream.archive.places import LocalPlace, Place, open_place
from millstream.archive.reading import load_manifest
from millstream.archive.service import (
    ArchiveService,
    Source,
    _Cache,
    directory_of,
    save_manifest,
)
from millstream.records.batch import iterate_headers
from tests.archive.scenes import (
    START_MS,
    CuttingFileSystem,
    PowerCut,
    all_kinds,
    archived,
    batches,
    decoded,
    new_manifest,
    transaction,
)
from tests.peers.patience import PATIENCE_SECONDS


def read_all(service: ArchiveService, manifest: Manifest, max_bytes: int = 500) -> bytes:
    """As a consumer does: from the end of what it has got."""
    found, offset = [], manifest.start_offset
    while (entry := manifest.file_for(offset)) is not None:
        records = service.read(directory_of(manifest), entry, offset, max_bytes).records
        found.append(records)
        headers = [header for _, header in iterate_headers(records)]
        offset = headers[-1].next_offset if headers else entry.end_offset
    return b"".join(found)


def check(service: ArchiveService, manifest: Manifest) -> None:
    assert read_all(service, manifest) == batches(manifest.start_offset, manifest.end_offset)


def test_written_records_are_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_module, "GROUP_ROWS_MAX", 40)
    place = open_place(str(tmp_path))
    manifest = archived(place)
    service = ArchiveService(place)
    assert service.load(directory_of(manifest)) == manifest
    for max_bytes in (0, 500, 10**6):
        assert read_all(service, manifest, max_bytes) == batches(0, 250)


def test_bucket_serves_what_was_written(bucket: str) -> None:
    place = open_place(bucket)
    manifest = archived(place)
    service = ArchiveService(open_place(bucket))
    loaded = service.load(directory_of(manifest))
    assert loaded == manifest
    check(service, manifest)


def test_read_begins_with_the_batch_of_the_offset(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    manifest = archived(place, [(0, 100)])
    entry = manifest.files[0]
    found = ArchiveService(place).read(directory_of(manifest), entry, 37, 1)
    (header,) = [header for _, header in iterate_headers(found.records)]
    assert (header.base_offset, header.last_offset) == (30, 39)


def test_aborted_transactions_come_with_the_records_they_are_in(tmp_path: Path) -> None:
    data, end, aborted = all_kinds()
    place = open_place(str(tmp_path))
    service = ArchiveService(place)
    manifest = service.write(new_manifest(), end, aborted, Source(0, [data]))
    directory, entry = directory_of(manifest), manifest.files[0]
    whole = service.read(directory, entry, 0, 10**6)
    assert decoded(whole.records) == decoded(data)
    assert whole.aborted == list(aborted)
    assert service.read(directory, entry, 0, 1).aborted == []
    inside = service.read(directory, entry, aborted[0].last_offset, 1)
    assert inside.aborted == list(aborted)
    assert service.read(directory, entry, aborted[0].last_offset + 1, 10**6).aborted == []


def test_transaction_over_two_files_is_aborted_in_both(tmp_path: Path) -> None:
    """Its marker is in the second file."""
    data = transaction(0, 5, committed=False)
    cut = list(iterate_headers(data))[1][0]
    first, marker = data[:cut], data[cut:]
    service = ArchiveService(open_place(str(tmp_path)))
    aborted = (rows_module.Aborted(5, 0, 4),)
    manifest = service.write(new_manifest(), 4, aborted, Source(0, [first]))
    manifest = service.write(manifest, 5, aborted, Source(4, [marker]))
    for entry in manifest.files:
        found = service.read(directory_of(manifest), entry, entry.base_offset, 1000)
        assert found.aborted == list(aborted)


def test_gap_at_the_end_of_a_file_is_passed(tmp_path: Path) -> None:
    """As compaction leaves it."""
    service = ArchiveService(open_place(str(tmp_path)))
    manifest = service.write(new_manifest(), 80, (), Source(0, [batches(0, 50)]))
    manifest = service.write(manifest, 100, (), Source(80, [batches(90, 100)]))
    assert service.read(directory_of(manifest), manifest.files[0], 60, 1000).records == b""
    assert read_all(service, manifest) == batches(0, 50) + batches(90, 100)


def test_record_is_found_by_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "GROUP_ROWS_MAX", 20)
    place = open_place(str(tmp_path))
    manifest = archived(place, [(0, 100)])
    service, directory, entry = ArchiveService(place), directory_of(manifest), manifest.files[0]
    assert service.find(directory, entry, START_MS + 10 * 37 - 5, 0) == (37, START_MS + 370, 2)
    assert service.find(directory, entry, 0, 55) == (55, START_MS + 550, 2)
    assert service.find(directory, entry, START_MS + 10**6, 0) is None


def test_dropped_files_are_deleted_after_the_manifest_is_saved(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    manifest = archived(place)
    service = ArchiveService(place)
    after = manifest.starting_at(120)
    service.save(after, [manifest.files[0].name])
    assert load_manifest(place, directory_of(manifest)) == after
    assert [it for it in place.list(directory_of(manifest)) if it.endswith("parquet")] == [
        manifest.files[1].name
    ]


def test_later_leader_goes_on_and_the_earlier_one_harms_nothing(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    service = ArchiveService(place)
    earlier = archived(place, [(0, 100)])
    loaded = load_manifest(place, directory_of(earlier))
    assert loaded is not None
    later = loaded.led_in(5)
    # Both archive the same segment.
    later = service.write(later, 200, (), Source(100, [batches(100, 200)]))
    with pytest.raises(ArchiveFenced):
        service.write(earlier, 150, (), Source(100, [batches(100, 150)]))
    assert load_manifest(place, directory_of(earlier)) == later
    check(service, later)
    assert len(service.clean_up(later)) == 2  # the file and the manifest of the earlier leader
    check(ArchiveService(place), later)
    assert service.clean_up(later) == []


def test_earlier_leader_that_saved_unnoticed_is_ignored(tmp_path: Path) -> None:
    """It looked for later leaders just before there was one."""
    place = open_place(str(tmp_path))
    earlier = archived(place, [(0, 100)])
    later = ArchiveService(place).write(
        earlier.led_in(5), 200, (), Source(100, [batches(100, 200)])
    )
    name = f"{directory_of(earlier)}/manifest-{earlier.leader_epoch:010d}.json"
    with place.create(name) as output:
        output.write(earlier.encode())
    assert load_manifest(place, directory_of(earlier)) == later


def test_power_cut_at_any_operation_leaves_a_whole_archive() -> None:
    """And the next attempt continues from it."""
    for cut_after in range(300):
        fs = CuttingFileSystem()
        place: Place = LocalPlace("/archive", fs)
        manifest = archived(place, [(0, 30)])
        fs.operations_left = cut_after
        is_done = False
        with suppress(PowerCut):
            service = ArchiveService(place)
            after = service.write(manifest, 60, (), Source(30, [batches(30, 60)]))
            service.save(after.starting_at(30), [after.files[0].name])
            is_done = True
        fs.operations_left = None
        fs.crash(Random(cut_after))
        service = ArchiveService(LocalPlace("/archive", fs))
        loaded = service.load(directory_of(manifest))
        assert loaded is not None
        assert (loaded.start_offset, loaded.end_offset) in ((0, 30), (0, 60), (30, 60))
        check(service, loaded)
        if loaded.end_offset == 30:
            loaded = service.write(loaded, 60, (), Source(30, [batches(30, 60)]))
        check(ArchiveService(service.place), loaded)
        service.clean_up(loaded)
        check(ArchiveService(service.place), loaded)
        listed = {file.name for file in loaded.files}
        assert {it for it in service.place.list(directory_of(loaded)) if "parquet" in it} == listed
        if is_done:
            assert loaded.start_offset == 30
            assert cut_after > 10
            return
    raise AssertionError("it was never done")


def test_several_threads_read_one_file(tmp_path: Path) -> None:
    """A `ParquetFile` that two of them read at the same time may never answer."""
    place = open_place(str(tmp_path))
    manifest = archived(place, [(0, 100)])
    directory, wanted = directory_of(manifest), batches(0, 100)
    for _ in range(60):
        service = ArchiveService(place)
        found: list[bytes] = []

        def read(service: ArchiveService = service, found: list[bytes] = found) -> None:
            found.append(service.read(directory, manifest.files[0], 0, 10**6).records)

        threads = [threading.Thread(target=read, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert found == [wanted] * 8


def test_value_is_made_once_and_again_after_a_failure() -> None:
    cache: _Cache[str] = _Cache(2)
    made: list[str] = []

    def make() -> str:
        made.append("x")
        if len(made) == 1:
            raise ArchiveError("not now")
        return "value"

    with pytest.raises(ArchiveError):
        cache.get("a", make)
    assert [cache.get("a", make) for _ in range(3)] == ["value"] * 3
    assert len(made) == 2
    cache.drop(lambda key: key == "a")
    cache.get("a", make)
    assert len(made) == 3


def test_partition_is_emptied_and_earlier_leaders_stay_out(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    manifest = archived(place)
    service, directory = ArchiveService(place), directory_of(manifest)
    assert service.empty("orders/none/partition=0", 5) is None
    read_all(service, manifest)
    left = service.empty(directory, 5)
    assert left is not None
    assert (left.leader_epoch, left.files, left.start_offset) == (5, (), 0)
    assert place.list(directory) == ["manifest-0000000005.json"]
    assert service.empty(directory, 5) == left
    with pytest.raises(ArchiveFenced):
        save_manifest(place, manifest)
    # It can be archived again, from wherever the log begins by then.
    after = service.write(left, 80, (), Source(50, [batches(50, 80)]))
    assert (after.start_offset, after.end_offset) == (50, 80)


def test_damaged_file_fails_only_what_reads_it(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    manifest = archived(place)
    directory = directory_of(manifest)
    (tmp_path / directory / manifest.files[0].name).unlink()
    service = ArchiveService(place)
    with pytest.raises(ArchiveError, match="is missing"):
        service.read(directory, manifest.files[0], 0, 100)
    assert service.read(directory, manifest.files[1], 100, 100).records


def test_manifest_of_a_later_leader_is_not_overwritten(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    save_manifest(place, new_manifest(leader_epoch=4))
    with pytest.raises(ArchiveFenced, match="later leader than epoch 3"):
        save_manifest(place, new_manifest(leader_epoch=3))
