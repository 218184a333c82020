"""The checksum function that is taken out of its package."""

from __future__ import annotations

import crc32c as package
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.records._walk import compute_crc
from millstream.records.checksum import crc32c


def test_crc32c_is_castagnolis_checksum() -> None:
    assert crc32c(b"123456789") == 0xE3069283


def test_crc32c_continues_from_what_was_summed_before() -> None:
    assert crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")


def test_crc32c_agrees_with_its_package_beside_it() -> None:
    data = bytes(range(256)) * 100
    assert crc32c(memoryview(data)) == package.crc32c(data)


@pytest.mark.parametrize("with_tables", [False, True])
@given(data=st.binary(max_size=100), skipped=st.integers(0, 8))
def test_compiled_code_computes_the_same(with_tables: bool, data: bytes, skipped: int) -> None:
    """At any address, of any length: both go on in words."""
    part = memoryview(data)[skipped:]
    assert compute_crc(part, with_tables=with_tables) == package.crc32c(part)
