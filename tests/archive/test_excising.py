"""Records are removed from archived files, and nothing else changes; no power cut loses a file."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from millstream.archive.excising import excise_file
from millstream.archive.manifest import Manifest
from millstream.archive.places import LocalPlace, Place, open_place
from millstream.archive.reading import load_manifest
from millstream.archive.service import ArchiveService, Source, directory_of
from millstream.config.excised import ExcisedOffsets, OffsetRanges
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, decode_batch
from tests.archive.scenes import (
    CuttingFileSystem,
    PowerCut,
    all_kinds,
    archived,
    new_manifest,
    record,
)
from tests.archive.test_service import read_all


def records_of(service: ArchiveService, manifest: Manifest) -> list[Record]:
    data = read_all(service, manifest)
    return [it for at, _ in iterate_headers(data) for it in decode_batch(data, at)]


def excised(
    service: ArchiveService, manifest: Manifest, offsets: OffsetRanges, epoch: int = 3
) -> Manifest:
    names = [file.name for file in manifest.files]
    return service.excise(manifest, names, ExcisedOffsets({epoch: offsets}))


def test_records_leave_the_files_that_have_them(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    before = archived(place)
    service = ArchiveService(place)
    read_all(service, before)  # now it is in the caches
    after = excised(service, before, OffsetRanges.of([5, 7, 99]))
    assert after.files[0].name != before.files[0].name
    assert after.files[1] == before.files[1]
    assert after.files[0].records == before.files[0].records - 3
    assert load_manifest(place, directory_of(after)) == after
    assert before.files[0].name not in place.list(directory_of(after))
    expected = [record(it) for it in range(250) if it not in (5, 7, 99)]
    assert records_of(service, after) == expected
    assert excised(service, after, OffsetRanges.of([5, 7, 99])) == after  # nothing left to do


def test_file_without_such_records_is_not_written_again(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    manifest = archived(place)
    for wanted in ({3: OffsetRanges.of([100])}, {1: OffsetRanges.of([5])}):  # a later epoch's
        assert excise_file(place, manifest, manifest.files[0], ExcisedOffsets(wanted)) is None


def test_file_that_loses_all_records_still_stands_for_its_offsets(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    service = ArchiveService(place)
    after = excised(service, archived(place), OffsetRanges([(0, 99)]))
    assert [(it.base_offset, it.end_offset, it.records) for it in after.files] == [
        (0, 100, 0),
        (100, 250, 150),
    ]
    assert after.files[0].last_epoch == 2
    assert [it.offset for it in records_of(service, after)] == list(range(100, 250))


def test_batches_of_every_kind_keep_what_belongs_to_them(tmp_path: Path) -> None:
    """Compression, transactions, markers, producers, gaps."""
    data, end, aborted = all_kinds()
    place = open_place(str(tmp_path))
    service = ArchiveService(place)
    before = service.write(new_manifest(), end, aborted, Source(0, [data]))
    random = Random(48)
    gone = OffsetRanges.of(random.sample(range(end), 40))
    after = excised(service, before, gone)
    expected = [
        it
        for at, header in iterate_headers(data)
        for it in decode_batch(data, at)
        if header.is_control or it.offset not in gone
    ]
    assert records_of(service, after) == expected
    entry = after.files[0]
    shown = service.read(directory_of(after), entry, aborted[0].first_offset, 10**6)
    assert shown.aborted == list(aborted)


def test_no_power_cut_loses_or_doubles_records() -> None:
    operations = 0
    while True:
        fs = CuttingFileSystem()
        fs.make_directory("/archive")
        place: Place = LocalPlace("/archive", fs)
        manifest = archived(place, ((0, 20), (20, 40)))
        fs.operations_left = operations
        try:
            excised(ArchiveService(place), manifest, OffsetRanges.of([5, 35]))
        except PowerCut:
            fs.operations_left = None
            fs.crash(Random(operations))
            operations += 3
        else:
            break
        service = ArchiveService(place)
        found = load_manifest(place, directory_of(manifest))
        assert found is not None
        offsets = [it.offset for it in records_of(service, found)]
        assert set(offsets) >= set(range(40)) - {5, 35}
        again = excised(service, found, OffsetRanges.of([5, 35]))
        kept = [it for it in range(40) if it not in (5, 35)]
        assert [it.offset for it in records_of(service, again)] == kept
    assert operations > 5


def test_other_offsets_cannot_take_the_place_of_a_file(tmp_path: Path) -> None:
    manifest = archived(open_place(str(tmp_path)))
    with pytest.raises(ValueError, match="has other offsets"):
        manifest.replacing(manifest.files[0], manifest.files[1])
