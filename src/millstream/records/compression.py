"""Compression of a batch's records: gzip, snappy, lz4 and zstd, as Kafka's clients write them."""

from __future__ import annotations

from enum import IntEnum

from millstream.errors import CorruptBatch


class Compression(IntEnum):
    """The codec named by bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4

    @classmethod
    def from_attributes(cls, attributes: int) -> Compression:
        code = attributes & 0x07
        if code > cls.ZSTD:
            raise CorruptBatch(
                f"batch attributes {attributes:#06x} name unknown compression {code}"
            )
        return cls(code)
