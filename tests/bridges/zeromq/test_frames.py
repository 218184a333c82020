"""Messages as frames, and frames of strangers."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.zeromq.frames import (
    FRAMES_MAX,
    BadMessage,
    Foreign,
    Heartbeat,
    Numbered,
    encode_foreign,
    encode_heartbeat,
    encode_numbered,
    parse_frames,
)

SENDER = bytes(range(16))


@given(
    st.integers(0, 2**64 - 1),
    st.none() | st.binary(max_size=50),
    st.none() | st.binary(max_size=50),
)
def test_message_comes_out_as_it_went_in(
    number: int, key: bytes | None, value: bytes | None
) -> None:
    message = Numbered(SENDER, number, key, value)
    assert parse_frames(encode_numbered(message)) == message
    assert parse_frames(encode_heartbeat(Heartbeat(SENDER, number))) == Heartbeat(SENDER, number)


def test_header_has_the_number_and_the_sender() -> None:
    header = b"MSQ1" + b"\x03" + SENDER + b"\x00\x00\x00\x00\x00\x00\x01\x00"
    assert encode_numbered(Numbered(SENDER, 256, b"k", b"v")) == [header, b"k", b"v"]


@pytest.mark.parametrize(
    ("frames", "found"),
    [
        ([b"value"], Foreign(None, b"value")),
        ([b"key", b"value"], Foreign(b"key", b"value")),
        ([b"key", b"a", b"b", b"value"], Foreign(b"key", b"value", (b"a", b"b"))),
        ([b"MSQ1", b"value"], Foreign(b"MSQ1", b"value")),
        (encode_foreign(None, None), Foreign(b"", b"")),
    ],
)
def test_frames_of_strangers(frames: list[bytes], found: Foreign) -> None:
    assert parse_frames(frames) == found


def test_bad_messages_have_a_reason() -> None:
    heartbeat = encode_heartbeat(Heartbeat(SENDER, 1))
    with pytest.raises(BadMessage, match="bad header"):
        parse_frames([*heartbeat, b"more"])
    with pytest.raises(BadMessage, match="bad header"):
        parse_frames(encode_numbered(Numbered(SENDER, 1, None, None))[:2])
    with pytest.raises(BadMessage, match="too many frames"):
        parse_frames([b""] * (FRAMES_MAX + 1))


@given(st.lists(st.binary(max_size=40) | st.just(b"MSQ1" + bytes(25)), max_size=70))
def test_any_frames_are_a_message_or_bad(frames: list[bytes]) -> None:
    with suppress(BadMessage):
        parse_frames(frames)
