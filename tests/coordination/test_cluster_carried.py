"""Records carried as bytes: the newest of each key, removals applied, the unreadable all kept."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_carried import CarriedRecord
from millstream.coordination.cluster_records import decode_record, encode_record
from millstream.coordination.record_codec import CorruptRecord

TOKEN, MIGRATION, REMOVED_TOKEN, CONTROLLER = 10, 21, 26, 27
LATER = 77  # a type that nobody knows yet


def text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def frame(number: int, message: bytes, version: int = 0) -> bytes:
    return bytes([1, number, version]) + message + b"\0"


def token(token_id: str, owner: str = "o", version: int = 0) -> bytes:
    renewers = b"\2" + text("r")
    return frame(TOKEN, text(owner) + text("q") + renewers + bytes(24) + text(token_id), version)


def no_token(token_id: str, version: int = 0) -> bytes:
    return frame(REMOVED_TOKEN, text(token_id), version)


def controller(number: int, incarnation: int) -> bytes:
    rest = uuid.UUID(int=incarnation).bytes + b"\0\1\1"
    return frame(CONTROLLER, number.to_bytes(4) + rest)


def carried(*frames: bytes) -> list[bytes]:
    """What a snapshot has after these records, each a commit of its own."""
    image = ClusterImage()
    for version, value in enumerate(frames):
        image = image.apply([decode_record(value)], version)
    return [encode_record(record) for record in image.records()]


@pytest.mark.parametrize(
    ("frames", "kept"),
    [
        ((no_token("x"), token("x")), (token("x"),)),
        ((token("x"), token("y"), token("x", owner="p")), (token("y"), token("x", owner="p"))),
        ((token("x"), token("y"), no_token("y")), (token("x"),)),
        (
            (controller(1, 1), controller(2, 1), controller(1, 2)),
            (controller(2, 1), controller(1, 2)),
        ),
        ((frame(MIGRATION, b"\0"), frame(MIGRATION, b"\4")), (frame(MIGRATION, b"\4"),)),
    ],
)  # fmt: skip
def test_newest_record_of_each_key_is_kept_until_it_is_removed(
    frames: tuple[bytes, ...], kept: tuple[bytes, ...]
) -> None:
    assert carried(*frames) == list(kept)


def test_all_records_of_an_unknown_type_are_kept_in_order() -> None:
    frames = [frame(LATER, b"a"), frame(LATER, b"b"), frame(LATER, b"a")]
    assert carried(*frames) == frames


def test_nothing_is_dropped_of_a_kind_once_one_record_cannot_be_read() -> None:
    """A newer version may have changed any key, so later removals stay where they are."""
    renewed = token("x", owner="p")
    frames = [token("x"), token("y", version=1), renewed, no_token("y"), no_token("x")]
    assert carried(*frames) == frames
    assert carried(*frames, controller(1, 1), controller(1, 2)) == [*frames, controller(1, 2)]


def test_removal_of_a_newer_version_is_kept_behind_what_it_removes() -> None:
    frames = [token("x"), token("y"), no_token("x", version=1)]
    assert carried(*frames) == frames


def test_record_that_ends_within_its_key_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="field of 4 bytes exceeds the remaining 3"):
        decode_record(bytes([1, CONTROLLER, 0, 1, 2, 3]))


FRAMES = (
    token("x"), token("y"), token("x", owner="p"), token("z", version=1), no_token("x"),
    no_token("y"), controller(1, 1), controller(2, 1), controller(1, 2), frame(MIGRATION, b"\0"),
    frame(LATER, b"a"), frame(LATER, b"b"),
)  # fmt: skip


@given(st.lists(st.sampled_from(FRAMES)), st.integers(0, 20))
def test_snapshot_in_between_changes_nothing(frames: list[bytes], cut: int) -> None:
    snapshot = carried(*frames[:cut])
    assert carried(*snapshot) == snapshot
    assert carried(*snapshot, *frames[cut:]) == carried(*frames)


@given(st.lists(st.sampled_from(FRAMES)), st.integers(0, 20))
def test_grouping_of_records_changes_nothing(frames: list[bytes], cut: int) -> None:
    records = [decode_record(value) for value in frames]
    at_once = ClusterImage().apply(records, 1)
    in_two = ClusterImage().apply(records[:cut], 0).apply(records[cut:], 1)
    assert list(at_once.carried.items()) == list(in_two.carried.items())


def test_record_is_encoded_as_it_came() -> None:
    value = frame(LATER, b"\1\2\3")
    assert decode_record(value) == CarriedRecord(LATER, None, False, value)
    assert encode_record(decode_record(value)) == value
