"""Compression of a batch's records: gzip, snappy, lz4 (frames), zstd, as Kafka clients write them.

Snappy has two formats: Java writes xerial's framing (a header of 16 bytes, then blocks, each
with its length), other clients one raw block. We read both and write xerial's, which all clients
read. An lz4 frame must consist of independent blocks, or Java does not read it.

`decompress` takes a limit: a bomb of a few bytes raises `CorruptBatch` before more than that limit
is allocated. The codecs work without the GIL.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Protocol, TypeAlias

import cramjam

from millstream.errors import CorruptBatch

Buffer: TypeAlias = bytes | bytearray | memoryview

# Far above what an honest batch of the largest message size (1 MB by default) grows to.
DEFAULT_LIMIT_BYTES = 256 * 1024 * 1024

# Kafka's default levels; gzip also accepts -1 for its default.
_GZIP_LEVEL = 6
_GZIP_LEVEL_UNSET = -1
_ZSTD_LEVEL = 3
_LZ4_LEVEL = 9

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024
_BLOCK_LENGTH = struct.Struct(">i")

_FIRST_GUESS_FACTOR = 4
_FIRST_GUESS_MIN_BYTES = 4096
# cramjam's error when the output does not fit (a test checks it).
_OUTPUT_FULL = "failed to write whole buffer"


class Compression(IntEnum):
    """The codec named by bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_attributes(cls, attributes: int) -> Compression:
        try:
            return _BY_CODE[attributes & 0x07]
        except IndexError:
            raise CorruptBatch(
                f"batch attributes {attributes:#06x} name an unknown compression"
            ) from None

    @classmethod
    def from_name(cls, name: str) -> Compression:
        """The codec of a `compression.type`: none (or uncompressed), gzip, snappy, lz4, zstd."""
        return cls.NONE if name == "uncompressed" else cls[name.upper()]


_BY_CODE = tuple(Compression)


class _Codec(Protocol):
    def decompress_into(self, input: Buffer, output: bytearray) -> int: ...


def compress(data: Buffer, compression: Compression, level: int | None = None) -> bytes:
    """`data` compressed; `level` as in Kafka's settings `compression.<codec>.level`."""
    if compression is Compression.NONE:
        return bytes(data)
    return _COMPRESSORS[compression](data, level)


def decompress(
    data: Buffer, compression: Compression, limit_bytes: int = DEFAULT_LIMIT_BYTES
) -> Buffer:
    """The records inside; `CorruptBatch` if damaged or larger than `limit_bytes`."""
    if compression is Compression.NONE:
        return data
    try:
        if compression is Compression.SNAPPY:
            return _decompress_snappy(data, limit_bytes)
        return _decompress_growing(_DECOMPRESSORS[compression], data, limit_bytes)
    except cramjam.DecompressionError as error:
        raise CorruptBatch(
            f"{len(data)} bytes of records are not valid {compression.name.lower()}: {error}"
        ) from None


def _decompress_growing(codec: _Codec, data: Buffer, limit_bytes: int) -> Buffer:
    """Decompress into a buffer that starts small and grows up to the limit.

    Not every format contains its decompressed size, and one that does contains the sender's claim.
    """
    size = min(max(len(data) * _FIRST_GUESS_FACTOR, _FIRST_GUESS_MIN_BYTES), limit_bytes)
    while True:
        output = bytearray(size)
        try:
            written = codec.decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if _OUTPUT_FULL not in str(error):
                raise
            if size >= limit_bytes:
                raise _too_large(data, limit_bytes) from None
            size = min(size * 4, limit_bytes)
        else:
            return memoryview(output)[:written]


def _too_large(data: Buffer, limit_bytes: int) -> CorruptBatch:
    return CorruptBatch(
        f"{len(data)} bytes of records decompress to more than {limit_bytes} bytes; let the "
        "producer write smaller batches"
    )


def _compress_gzip(data: Buffer, level: int | None) -> bytes:
    level = _GZIP_LEVEL if level is None or level == _GZIP_LEVEL_UNSET else level
    return bytes(cramjam.gzip.compress(data, level=level))


def _compress_lz4(data: Buffer, level: int | None) -> bytes:
    level = _LZ4_LEVEL if level is None else level
    # Java reads only frames of independent blocks; cramjam's own default links them.
    compressor = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
    compressor.compress(bytes(data))
    return bytes(compressor.finish())


def _compress_zstd(data: Buffer, level: int | None) -> bytes:
    level = _ZSTD_LEVEL if level is None else level
    return bytes(cramjam.zstd.compress(data, level=level))


def _compress_snappy(data: Buffer, level: int | None) -> bytes:
    view = memoryview(data)
    framed = bytearray(_XERIAL_HEADER)
    for start in range(0, len(view), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + _XERIAL_BLOCK_BYTES]))
        framed += _BLOCK_LENGTH.pack(len(block))
        framed += block
    return bytes(framed)


def _decompress_snappy(data: Buffer, limit_bytes: int) -> Buffer:
    view = memoryview(data)
    if view[: len(_XERIAL_MAGIC)] != _XERIAL_MAGIC:
        return _decompress_snappy_block(view, limit_bytes)
    records = bytearray()
    position = len(_XERIAL_HEADER)
    if position > len(view):
        raise CorruptBatch("snappy records end inside the header of their framing")
    while position < len(view):
        if position + _BLOCK_LENGTH.size > len(view):
            raise CorruptBatch("snappy records end inside a block's length")
        (length,) = _BLOCK_LENGTH.unpack_from(view, position)
        position += _BLOCK_LENGTH.size
        if length < 0 or length > len(view) - position:
            raise CorruptBatch(
                f"snappy block claims {length} bytes, but {len(view) - position} are there"
            )
        block = view[position : position + length]
        records += _decompress_snappy_block(block, limit_bytes - len(records))
        position += length
    return records


def _decompress_snappy_block(block: memoryview, limit_bytes: int) -> Buffer:
    if cramjam.snappy.decompress_raw_len(block) > limit_bytes:
        raise _too_large(block, limit_bytes)
    return bytes(cramjam.snappy.decompress_raw(block))


_COMPRESSORS: dict[Compression, Callable[[Buffer, int | None], bytes]] = {
    Compression.GZIP: _compress_gzip,
    Compression.SNAPPY: _compress_snappy,
    Compression.LZ4: _compress_lz4,
    Compression.ZSTD: _compress_zstd,
}
_DECOMPRESSORS: dict[Compression, _Codec] = {
    Compression.GZIP: cramjam.gzip,
    Compression.LZ4: cramjam.lz4,
    Compression.ZSTD: cramjam.zstd,
}
