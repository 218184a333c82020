"""The guard must notice what it promises to: the rule about the event loop rests on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from millstream.broker.replicas.flushing import Flusher
from millstream.storage.filesystem import read_file, write_file
from millstream.testing.loop_guard import INLINE_FLUSH, LoopGuardFileSystem


def act(fs: LoopGuardFileSystem, directory: Path) -> dict[str, Callable[[], object]]:
    """Everything that may wait for the disk."""
    path = str(directory)
    return {
        "fdatasync": lambda: write_file(fs, f"{path}/file", b"x", sync=True),
        "pread": lambda: read_file(fs, f"{path}/file"),
        "sync_directory": lambda: fs.sync_directory(path),
        "sync_each": lambda: fs.sync_each([path]),
        "sync_all": lambda: fs.sync_all(path, [path]),
        "listdir": lambda: fs.listdir(path),
        "unlink": lambda: fs.unlink(f"{path}/file"),
        "remove_tree": lambda: fs.remove_tree(path),
    }


def test_every_wait_on_a_loop_is_recorded_with_its_stack(tmp_path: Path) -> None:
    fs = LoopGuardFileSystem()

    async def main() -> None:
        for action in act(fs, tmp_path).values():
            action()

    asyncio.run(main())
    assert [wait.operation for wait in fs.waits] == list(act(fs, tmp_path))
    assert fs.waits[0].path == str(tmp_path / "file")
    with pytest.raises(AssertionError, match="in write_file"):
        fs.check()


def test_waits_in_other_threads_and_in_pauses_are_fine(tmp_path: Path) -> None:
    fs = LoopGuardFileSystem()

    async def main() -> None:
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        for action in act(fs, tmp_path / "a").values():
            await asyncio.to_thread(action)
        with fs.paused():
            for action in act(fs, tmp_path / "b").values():
                action()

    asyncio.run(main())
    fs.check()


def test_inline_flush_is_allowed_by_its_name(tmp_path: Path) -> None:

    assert Flusher._flush_inline.__qualname__ == INLINE_FLUSH
    fs = LoopGuardFileSystem()

    class Double:
        def _flush_inline(self) -> None:
            fs.sync_directory(str(tmp_path))

    flush = Double._flush_inline
    flush.__code__ = flush.__code__.replace(co_qualname=INLINE_FLUSH)

    async def main() -> None:
        flush(Double())

    asyncio.run(main())
    fs.check()
