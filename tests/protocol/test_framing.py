"""Frames out of a byte stream, however the stream is cut."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ProtocolError
from millstream.protocol.framing import FrameReader, ReceiveBuffer

LIMIT_BYTES = 10_000_000


def frame(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def take_all(reader: FrameReader) -> list[bytes]:
    frames = []
    while (taken := reader.next_frame()) is not None:
        frames.append(bytes(taken))
    return frames


def read_from(reader: FrameReader, stream: bytes, chunk_bytes: int) -> list[bytes]:
    """Play the socket: copy what fits into the reader's buffer, a chunk at a time."""
    frames, position = [], 0
    while position < len(stream):
        buffer = reader.get_buffer()
        size = min(len(buffer), chunk_bytes, len(stream) - position)
        buffer[:size] = stream[position : position + size]
        position += size
        reader.buffer_updated(size)
        frames += take_all(reader)
    return frames


@given(
    contents=st.lists(st.binary(max_size=300), max_size=8),
    chunk_bytes=st.integers(1, 400),
    shared_bytes=st.integers(16, 256),
)
def test_reader_finds_every_frame_however_the_stream_is_cut(
    contents: list[bytes], chunk_bytes: int, shared_bytes: int
) -> None:
    stream = b"".join(map(frame, contents))
    reader = FrameReader(LIMIT_BYTES, ReceiveBuffer(shared_bytes))
    assert read_from(reader, stream, chunk_bytes) == contents


def test_reader_keeps_held_frames_while_others_use_the_shared_buffer() -> None:
    shared = ReceiveBuffer(64)
    first, second = FrameReader(LIMIT_BYTES, shared), FrameReader(LIMIT_BYTES, shared)
    stream = frame(b"one") + frame(b"two") + frame(b"three")[:5]
    buffer = first.get_buffer()
    buffer[: len(stream)] = stream
    first.buffer_updated(len(stream))
    assert bytes(first.next_frame() or b"") == b"one"
    assert first.hold()
    assert read_from(second, frame(b"x" * 60), 64) == [b"x" * 60]
    assert take_all(first) == [b"two"]
    assert read_from(first, frame(b"three")[5:], 64) == [b"three"]


def test_reader_has_nothing_to_hold_when_all_was_taken() -> None:
    reader = FrameReader(LIMIT_BYTES)
    assert read_from(reader, frame(b"one"), 64) == [b"one"]
    assert not reader.hold()


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_reader_refuses_a_length_that_no_frame_may_have(length: int) -> None:
    reader = FrameReader(1000)
    with pytest.raises(ProtocolError, match=r"socket\.request\.max\.bytes"):
        read_from(reader, struct.pack(">i", length), 64)


def test_reader_allocates_for_bytes_that_arrived_not_for_the_length_field() -> None:
    reader = FrameReader(2**30)
    stream = struct.pack(">i", 2**30) + b"x" * 1000
    assert read_from(reader, stream, 64_000) == []
    assert len(reader.get_buffer()) < 1_000_000


def test_reader_gives_back_the_memory_of_a_long_frame() -> None:
    reader = FrameReader(LIMIT_BYTES, ReceiveBuffer(1024))
    content = b"x" * 1_000_000
    assert read_from(reader, frame(content), 65_536) == [content]
    reader.release()
    assert len(reader.get_buffer()) == 1024
    assert read_from(reader, frame(content), 65_536) == [content]


def receive(reader: FrameReader, data: bytes) -> list[bytes]:
    """Play the socket that reads once."""
    buffer = reader.get_buffer()
    assert len(data) <= len(buffer)
    buffer[: len(data)] = data
    reader.buffer_updated(len(data))
    return take_all(reader)


def test_readers_count_what_they_keep_together() -> None:
    shared = ReceiveBuffer(1024)
    first, second = FrameReader(LIMIT_BYTES, shared), FrameReader(LIMIT_BYTES, shared)
    assert receive(first, frame(b"x" * 100)[:50]) == []
    assert shared.kept_bytes == 50
    receive(second, frame(b"y" * 900)[:500])
    assert shared.kept_bytes >= 550
    assert receive(first, frame(b"x" * 100)[50:]) == [b"x" * 100]
    second.close()
    assert shared.kept_bytes == 0


def test_held_frames_are_counted_until_they_are_taken() -> None:
    shared = ReceiveBuffer(1024)
    reader = FrameReader(LIMIT_BYTES, shared)
    stream = frame(b"one") + frame(b"two")
    buffer = reader.get_buffer()
    buffer[: len(stream)] = stream
    reader.buffer_updated(len(stream))
    assert reader.hold()
    assert shared.kept_bytes == len(stream)
    assert take_all(reader) == [b"one", b"two"]
    assert shared.kept_bytes == 0


def test_long_frame_waits_for_memory_that_others_keep() -> None:
    shared = ReceiveBuffer(1024, kept_bytes_max=300_000)
    first, second = FrameReader(LIMIT_BYTES, shared), FrameReader(LIMIT_BYTES, shared)
    content = b"x" * 200_000
    receive(first, frame(content)[:1000])
    assert not first.needs_memory
    receive(second, frame(content)[:1000])
    assert second.needs_memory
    assert shared.kept_bytes <= 300_000
    assert not second.grow()
    assert read_from(first, frame(content)[1000:], 65_536) == [content]
    first.release()
    assert second.grow()
    assert read_from(second, frame(content)[1000:], 65_536) == [content]


def test_long_frame_that_may_exceed_the_limit_gets_all_of_its_memory() -> None:
    shared = ReceiveBuffer(1024, kept_bytes_max=1000)
    reader = FrameReader(LIMIT_BYTES, shared)
    content = b"x" * 200_000
    receive(reader, frame(content)[:1000])
    assert reader.needs_memory
    assert reader.grow(whatever_others_keep=True)
    assert read_from(reader, frame(content)[1000:], 65_536) == [content]


def test_little_is_received_at_once_while_readers_keep_too_much() -> None:
    shared = ReceiveBuffer(kept_bytes_max=1000)
    first, second = FrameReader(LIMIT_BYTES, shared), FrameReader(LIMIT_BYTES, shared)
    receive(first, frame(b"x" * 10_000)[:5000])
    assert len(second.get_buffer()) <= 16 * 1024
    assert receive(second, frame(b"y" * 10_000)) == [b"y" * 10_000]
