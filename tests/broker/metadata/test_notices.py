"""Notices of changed files."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from millstream.broker.metadata.notices import Notices
from tests.peers.patience import PATIENCE_SECONDS


async def noticed(path: Path, change: str) -> None:
    """Change a file of the directory until it is noticed: once, if nothing is missed."""
    changed = asyncio.Event()
    notices = Notices(str(path), changed.set)
    try:
        (path / change).write_text(change)
        await asyncio.wait_for(changed.wait(), PATIENCE_SECONDS)
    finally:
        notices.close()


def test_new_and_written_files_are_noticed(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    asyncio.run(noticed(tmp_path, "old"))
    asyncio.run(noticed(tmp_path, "new"))


def test_closed_notices_are_silent(tmp_path: Path) -> None:
    async def scenario() -> None:
        heard: list[None] = []
        Notices(str(tmp_path), lambda: heard.append(None)).close()
        await noticed(tmp_path, "new")
        assert not heard

    asyncio.run(scenario())


def test_directory_that_cannot_be_watched_is_polled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        polled = asyncio.Event()
        with caplog.at_level(logging.WARNING):
            notices = Notices(str(tmp_path / "missing"), polled.set)
        assert notices.is_polling
        polled.clear()
        await asyncio.wait_for(polled.wait(), PATIENCE_SECONDS)
        notices.close()

    asyncio.run(scenario())
    assert "looking every 50 ms" in caplog.text
