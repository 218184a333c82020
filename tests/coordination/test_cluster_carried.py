"""Records carried as bytes: the newest of each key, removals applied, the unreadable all kept."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.coordination.cluster import ClusterImage
from millstream.coordination.cluster_carried import CarriedRecord
from millstream.coordination.cluster_records import decode_record, encode_record

TOKEN, CREDENTIAL, QUOTA, ENTRY, MIGRATION, CONTROLLER = 10, 11, 14, 18, 21, 27
REMOVED_ENTRY, REMOVED_CREDENTIAL, REMOVED_TOKEN = 19, 22, 26
LATER = 77  # a type that nobody knows yet


def text(value: str) -> bytes:
    return bytes([len(value) + 1]) + value.encode()


def frame(number: int, message: bytes, version: int = 0) -> bytes:
    return bytes([1, number, version]) + message + b"\0"


def entry(number: int, operation: int = 3, version: int = 0) -> bytes:
    rest = b"\2" + text("t") + b"\3" + text("User:a") + text("*") + bytes([operation, 3])
    return frame(ENTRY, uuid.UUID(int=number).bytes + rest, version)


def no_entry(number: int, version: int = 0) -> bytes:
    return frame(REMOVED_ENTRY, uuid.UUID(int=number).bytes, version)


def credential(user: str, mechanism: int, salt: str = "s") -> bytes:
    rest = text(salt) + text("stored") + text("server") + bytes(4)
    return frame(CREDENTIAL, text(user) + bytes([mechanism]) + rest)


def no_credential(user: str, mechanism: int) -> bytes:
    return frame(REMOVED_CREDENTIAL, text(user) + bytes([mechanism]))


def quota(*entity: tuple[str, str | None], remove: bool = False, value: int = 1) -> bytes:
    entities = bytes([len(entity) + 1]) + b"".join(
        text(kind) + (b"\0" if name is None else text(name)) + b"\0" for kind, name in entity
    )
    return frame(QUOTA, entities + text("rate") + value.to_bytes(8) + bytes([remove]))


def token(token_id: str, owner: str = "o") -> bytes:
    renewers = b"\2" + text("r")
    return frame(TOKEN, text(owner) + text("q") + renewers + bytes(24) + text(token_id))


def no_token(token_id: str) -> bytes:
    return frame(REMOVED_TOKEN, text(token_id))


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
        ((entry(1), entry(2), no_entry(1)), (entry(2),)),
        ((entry(1), entry(2), entry(1, operation=4)), (entry(2), entry(1, operation=4))),
        ((no_entry(1), entry(1)), (entry(1),)),
        (
            (credential("a", 1), credential("a", 2), credential("b", 1), no_credential("a", 1)),
            (credential("a", 2), credential("b", 1)),
        ),
        ((credential("a", 1), credential("a", 1, salt="x")), (credential("a", 1, salt="x"),)),
        (
            (quota(("user", "a")), quota(("user", None)), quota(("user", "a"), remove=True)),
            (quota(("user", None)),),
        ),
        (
            (quota(("user", "a"), ("client-id", "c")), quota(("client-id", "c"), ("user", "a"))),
            (quota(("client-id", "c"), ("user", "a")),),
        ),
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
    frames = [entry(1), entry(2, version=1), entry(1, operation=4), no_entry(2), no_entry(1)]
    assert carried(*frames) == frames
    assert carried(*frames, credential("a", 1), no_credential("a", 1)) == frames


def test_removal_of_a_newer_version_is_kept_behind_what_it_removes() -> None:
    frames = [entry(1), entry(2), no_entry(1, version=1)]
    assert carried(*frames) == frames


def test_record_that_ends_within_its_key_is_refused() -> None:
    with pytest.raises(Exception, match="field of 16 bytes exceeds the remaining 3"):
        decode_record(bytes([1, ENTRY, 0, 1, 2, 3]))


FRAMES = (
    entry(1), entry(2), entry(1, operation=4), entry(3, version=1), no_entry(1), no_entry(2),
    credential("a", 1), credential("a", 2), no_credential("a", 1), quota(("user", "a")),
    quota(("user", "a"), remove=True), frame(LATER, b"a"), frame(LATER, b"b"),
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
