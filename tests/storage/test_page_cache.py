"""What is in the page cache, asked of the kernel."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from millstream.storage.page_cache import is_cached

SIZE = 1_000_000

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mincore of Linux")


def test_bytes_just_written_are_cached_and_evicted_ones_are_not(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, b"x" * SIZE)
        assert is_cached(fd, SIZE, 0)
        assert is_cached(fd, 1, SIZE - 1)
        assert is_cached(fd, 10_000, 5000)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert not is_cached(fd, SIZE, 0)
    finally:
        os.close(fd)


def test_range_of_which_only_the_end_was_read_is_not_cached(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, b"x" * SIZE)
        os.fdatasync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.pread(fd, SIZE // 4, SIZE - SIZE // 4)
        assert is_cached(fd, SIZE // 4, SIZE - SIZE // 4)
        assert not is_cached(fd, SIZE, 0)
    finally:
        os.close(fd)


def test_range_past_the_end_and_what_is_no_file_are_not_cached(tmp_path: Path) -> None:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    try:
        os.write(fd, b"x" * SIZE)
        assert not is_cached(fd, 2 * SIZE, 0)
        assert not is_cached(fd, 0, 0)
    finally:
        os.close(fd)
    assert not is_cached(fd, SIZE, 0)
