"""What it costs to make one small append durable in each of N partitions.

    python benchmarks/bench_flush_strategies.py [--directory DIR] [--rounds 20] [--json]

Per round every file gets one write, and then all of them are made durable by

    per file      fdatasync of each
    in threads    the same, by four threads
    syncfs        one call for the whole filesystem, whatever else is dirty there
    journal       the bytes read back, written once more to one shared file, and that one synced
    journal kept  the same, overwriting a file that has its length already

docs/decisions/0004-flush.md draws the conclusions. Every figure is the best of the rounds,
of the flush alone, in milliseconds: other work on the machine can only add to it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

FILE_COUNTS = (1, 2, 4, 8, 16, 100, 1000)
WRITE_SIZES = (200, 16_384)
JOURNAL_BYTES_MAX = 64 * 1024 * 1024

Flush = Callable[[list[int], int, int], None]


def per_file(files: list[int], position: int, size: int) -> None:
    for fd in files:
        os.fdatasync(fd)


def make_in_threads(pool: ThreadPoolExecutor) -> Flush:
    def in_threads(files: list[int], position: int, size: int) -> None:
        list(pool.map(os.fdatasync, files))

    return in_threads


def make_syncfs(directory: Path) -> Flush:
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.open(directory, os.O_RDONLY)

    def syncfs(files: list[int], position: int, size: int) -> None:
        if libc.syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed")

    return syncfs


def make_journal(path: Path, *, kept: bool) -> Flush:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    end = 0
    if kept:
        os.pwrite(fd, bytes(JOURNAL_BYTES_MAX), 0)
        os.fsync(fd)

    def journal(files: list[int], position: int, size: int) -> None:
        nonlocal end
        buffers = [os.pread(file, size, position) for file in files]
        if end + size * len(files) > JOURNAL_BYTES_MAX:
            end = 0
        for start in range(0, len(buffers), 1000):
            end += os.pwritev(fd, buffers[start : start + 1000], end)
        os.fdatasync(fd)

    return journal


def measure(directory: Path, flush: Flush, count: int, size: int, rounds: int) -> float:
    """Milliseconds, at best, of a flush of `count` files with `size` new bytes each."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        files = [
            os.open(Path(place) / str(number), os.O_RDWR | os.O_CREAT, 0o644)
            for number in range(count)
        ]
        taken_ms = []
        for number in range(rounds):
            for fd in files:
                os.pwrite(fd, os.urandom(size), number * size)
            started = time.perf_counter()
            flush(files, number * size, size)
            taken_ms.append((time.perf_counter() - started) * 1000)
        for fd in files:
            os.close(fd)
    return min(taken_ms)


def run(directory: Path, rounds: int) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(dir=directory) as place, ThreadPoolExecutor(4) as pool:
        root = Path(place)
        strategies = {
            "per file": per_file,
            "in threads": make_in_threads(pool),
            "syncfs": make_syncfs(root),
            "journal": make_journal(root / "journal", kept=False),
            "journal kept": make_journal(root / "journal-kept", kept=True),
        }
        return {
            f"{count} x {size} B": {
                name: measure(root, flush, count, size, rounds)
                for name, flush in strategies.items()
            }
            for size in WRITE_SIZES
            for count in FILE_COUNTS
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", type=Path, default=Path.cwd(), help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    results = run(arguments.directory, arguments.rounds)
    if arguments.json:
        json.dump(results, sys.stdout, indent=2)
        return
    columns = list(next(iter(results.values())))
    print("| dirty files | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * len(columns))
    for row, figures in results.items():
        print(f"| {row} | " + " | ".join(f"{figures[name]:.2f}" for name in columns) + " |")


if __name__ == "__main__":
    main()
