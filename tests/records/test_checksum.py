"""The checksum function that is taken out of its package."""

from __future__ import annotations

import crc32c as package

from millstream.records.checksum import crc32c


def test_crc32c_is_castagnolis_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_crc32c_continues_from_what_was_summed_before() -> None:
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")


def test_crc32c_agrees_with_its_package_beside_it() -> None:
    data = bytes(range(256)) * 100
    assert crc32c(memoryview(data)) == package.crc32c(data)
