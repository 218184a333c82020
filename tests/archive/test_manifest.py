"""Manifests list what counts, and the names of files have one writer each."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from millstream.archive.manifest import (
    ArchivedFile,
    ArchiveError,
    ArchiveFenced,
    Manifest,
    decode_manifest,
    file_name,
    manifest_name,
    newest_manifest,
    older_manifests,
    orphans,
    parse_partition,
    parse_topic_id,
)
from tests.archive.scenes import TOPIC_ID, new_manifest


def entry(base: int, end: int, epoch: int = 2) -> ArchivedFile:
    return ArchivedFile(
        name=file_name(base, end, epoch),
        base_offset=base,
        end_offset=end,
        records=end - base,
        size_bytes=10,
        segment_bytes=20,
        min_timestamp=base,
        max_timestamp=end - 1,
        last_epoch=epoch,
        sha256="ab",
        source_sha256="cd",
    )


def three_files() -> Manifest:
    manifest = new_manifest()
    for base in (10, 20, 40):
        manifest = manifest.with_file(entry(base, base + 10))
    return manifest


def test_manifest_starts_and_ends_with_its_files() -> None:
    manifest = three_files()
    assert (manifest.start_offset, manifest.end_offset) == (10, 50)
    assert new_manifest().end_offset == 0


def test_manifest_survives_encoding() -> None:
    manifest = three_files()
    assert decode_manifest(manifest.encode(), "here") == manifest


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not a manifest"),
        (b"[]", "is not a manifest"),
        (b'{"version": 2}', "has version 2"),
        (b'{"version": 1}', "is not a manifest"),
        (three_files().encode().replace(b'"end_offset": 30', b'"end_offset": 45'), "overlap"),
    ],
)
def test_damaged_manifest_is_named(content: bytes, problem: str) -> None:
    with pytest.raises(ArchiveError, match=f"here .*{problem}"):
        decode_manifest(content, "here")


def test_file_must_not_overlap() -> None:
    with pytest.raises(ValueError, match="overlaps"):
        three_files().with_file(entry(45, 60))


def test_start_moves_only_forward_and_drops_whole_files() -> None:
    manifest = three_files().starting_at(25)
    assert manifest.start_offset == 25
    assert [file.base_offset for file in manifest.files] == [20, 40]
    assert manifest.starting_at(5) == manifest
    assert manifest.starting_at(90).end_offset == 90


def test_offset_in_a_gap_belongs_to_the_next_file() -> None:
    manifest = three_files()
    assert [manifest.file_for(offset) for offset in (0, 29, 30, 39, 49, 50)] == [
        *(manifest.files[0], manifest.files[1], manifest.files[2], manifest.files[2]),
        *(manifest.files[2], None),
    ]


def test_files_are_selected_by_offset_and_time() -> None:
    file = replace(entry(10, 20), min_timestamp=1000, max_timestamp=2000)
    assert file.overlaps()
    assert file.overlaps(19)
    assert not file.overlaps(20)
    assert file.overlaps(0, 11)
    assert not file.overlaps(0, 10)
    assert file.overlaps(from_ms=2000)
    assert not file.overlaps(from_ms=2001)
    assert file.overlaps(until_ms=1001)
    assert not file.overlaps(until_ms=1000)


def test_earlier_leader_is_fenced() -> None:
    manifest = three_files()
    assert manifest.led_in(3).leader_epoch == 3
    with pytest.raises(ArchiveFenced, match="orders-0"):
        manifest.led_in(1)


def test_manifest_of_the_highest_epoch_counts() -> None:
    names = [manifest_name(9), manifest_name(10), "manifest-x.json", "manifest-0000000011.json.tmp"]
    assert newest_manifest(names) == manifest_name(10)
    assert newest_manifest(["other"]) is None
    assert older_manifests(names, 10) == [manifest_name(9)]


def test_orphans_are_files_of_this_and_earlier_leaders_that_are_not_listed() -> None:
    manifest = three_files()
    mine = manifest.files[0].name
    half, other, later = (file_name(50, 60, epoch) for epoch in (2, 1, 3))
    names = [mine, half + ".tmp", other, later, manifest_name(2), "_delta_log"]
    assert orphans(names, manifest) == [half + ".tmp", other]


def test_names_are_parsed() -> None:
    assert parse_partition("partition=12") == 12
    assert parse_partition("partition=x") is None
    assert parse_topic_id(str(TOPIC_ID)) == TOPIC_ID
    assert parse_topic_id("_delta_log") is None


def test_half_files_are_left_overs() -> None:
    manifest = three_files()
    data, current = manifest.files[0].name, manifest_name(2)
    names = [data, f"{data}.0a1b.tmp", current, f"{current}.0a1b.tmp", f"{manifest_name(3)}.0a.tmp"]
    assert orphans(names, manifest) == [f"{data}.0a1b.tmp"]
    assert older_manifests(names, 2) == [f"{current}.0a1b.tmp"]


def test_manifest_without_times_of_archiving_can_be_read() -> None:
    content = json.loads(three_files().encode())
    for file in content["files"]:
        del file["archived_ms"]
    assert decode_manifest(json.dumps(content).encode(), "here") == three_files()
