"""Codecs: the shapes that clients write, and the limit on what comes out."""

from __future__ import annotations

import contextlib
import gzip
import tracemalloc

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import CorruptBatch
from millstream.records.compression import Compression, compress, decompress

CODECS = [codec for codec in Compression if codec is not Compression.NONE]
MEGABYTE = 1024 * 1024


@given(st.binary(max_size=200_000), st.sampled_from(Compression))
def test_codec_gives_back_what_it_took(data: bytes, codec: Compression) -> None:
    assert bytes(decompress(compress(data, codec), codec)) == data


@pytest.mark.parametrize("codec", Compression)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_codec_takes_any_buffer(codec: Compression, kind: type) -> None:
    packed = compress(kind(b"some records"), codec)
    assert bytes(decompress(kind(packed), codec)) == b"some records"


@pytest.mark.parametrize("codec", CODECS)
def test_codec_gives_back_what_grows_a_thousandfold(codec: Compression) -> None:
    data = b"all the same " * 200_000
    packed = compress(data, codec)
    assert bytes(decompress(packed, codec)) == data


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("limit_bytes", [10, 4_096, MEGABYTE])
def test_decompress_refuses_a_bomb_before_it_fills_memory(
    codec: Compression, limit_bytes: int
) -> None:
    bomb = compress(bytes(8 * MEGABYTE), codec)

    def peak_bytes() -> int:
        tracemalloc.start()
        try:
            with pytest.raises(CorruptBatch, match="more than"):
                decompress(bomb, codec, limit_bytes)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    # The least of a few: what other threads take meanwhile counts, too.
    assert min(peak_bytes() for _ in range(3)) < 4 * limit_bytes + 64 * 1024


@pytest.mark.parametrize("codec", CODECS)
def test_decompress_takes_exactly_the_limit(codec: Compression) -> None:
    data = b"0123456789" * 1_000
    packed = compress(data, codec)
    assert bytes(decompress(packed, codec, len(data))) == data
    with pytest.raises(CorruptBatch, match="more than"):
        decompress(packed, codec, len(data) - 1)


@pytest.mark.parametrize("codec", CODECS)
def test_decompress_refuses_damaged_bytes(codec: Compression) -> None:
    packed = compress(b"some records " * 100, codec)
    for damaged in (b"\xff", b"garbage, not compressed", packed[: len(packed) // 2]):
        with pytest.raises(CorruptBatch):
            decompress(damaged, codec)


@given(st.binary(max_size=300), st.sampled_from(CODECS))
def test_decompress_of_any_bytes_returns_or_raises_corrupt(data: bytes, codec: Compression) -> None:
    with contextlib.suppress(CorruptBatch):
        decompress(data, codec, 100_000)


def test_snappy_reads_raw_blocks_as_other_clients_write_them() -> None:
    data = b"raw snappy " * 1_000
    assert bytes(decompress(bytes(cramjam.snappy.compress_raw(data)), Compression.SNAPPY)) == data


def test_snappy_is_written_with_the_framing_of_java() -> None:
    data = bytes(range(256)) * 300
    packed = compress(data, Compression.SNAPPY)
    assert packed[:16] == b"\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"
    first = int.from_bytes(packed[16:20])
    assert bytes(cramjam.snappy.decompress_raw(packed[20 : 20 + first])) == data[: 32 * 1024]


@pytest.mark.parametrize("tail", [b"\x00\x00", b"\x00\x00\x00\x09abc", b"\xff\xff\xff\xff"])
def test_snappy_refuses_a_torn_block(tail: bytes) -> None:
    with pytest.raises(CorruptBatch):
        decompress(compress(b"abc", Compression.SNAPPY) + tail, Compression.SNAPPY)


def test_snappy_refuses_a_torn_framing_header() -> None:
    with pytest.raises(CorruptBatch, match="header"):
        decompress(compress(b"abc", Compression.SNAPPY)[:12], Compression.SNAPPY)


def test_lz4_blocks_are_independent_as_java_demands() -> None:
    for size in (0, 100, 500_000):
        frame = compress(bytes(size), Compression.LZ4)
        assert frame[:4] == b"\x04\x22\x4d\x18"
        version, independent = frame[4] >> 6, frame[4] >> 5 & 1
        assert (version, independent) == (1, 1)


def test_gzip_is_plain_gzip() -> None:
    assert gzip.decompress(compress(b"abc" * 100, Compression.GZIP)) == b"abc" * 100
    assert bytes(decompress(gzip.compress(b"abc" * 100), Compression.GZIP)) == b"abc" * 100


def test_level_makes_a_difference() -> None:
    data = b"".join(b"%d " % (i * i % 977) for i in range(20_000))
    for codec, low, high in (
        (Compression.GZIP, 1, 9),
        (Compression.LZ4, 1, 12),
        (Compression.ZSTD, -5, 19),
    ):
        assert len(compress(data, codec, high)) < len(compress(data, codec, low))


def test_codec_is_found_by_attributes_and_by_name() -> None:
    assert Compression.from_attributes(0x30 | 4) is Compression.ZSTD
    assert Compression.from_name("uncompressed") is Compression.NONE
    assert Compression.from_name("lz4") is Compression.LZ4
    with pytest.raises(CorruptBatch, match="unknown compression"):
        Compression.from_attributes(5)
