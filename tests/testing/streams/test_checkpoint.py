"""What a trial reads from a checkpoint and does to it, on files as Spark writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from millstream.testing.streams.checkpoint import (
    PlannedBatch,
    lose_commit,
    planned_batches,
    set_time,
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "commits").mkdir()
    for number, (watermark_ms, place) in enumerate([(0, 0), (5000, 1), (9000, 1)]):
        about = {"batchWatermarkMs": watermark_ms, "batchTimestampMs": 1, "conf": {"a": "b"}}
        source = json.dumps({"logOffset": place})
        text = "\n".join(["v1", json.dumps(about), source, source])
        (tmp_path / f"offsets/{number}").write_text(text)
        (tmp_path / f"offsets/.{number}.crc").write_text("sum")
        (tmp_path / f"commits/{number}").write_text("v1\n{}")
        (tmp_path / f"commits/.{number}.crc").write_text("sum")
    return tmp_path


def test_batches_tell_how_far_they_go_and_their_watermark(checkpoint: Path) -> None:
    assert planned_batches(checkpoint) == [
        PlannedBatch(0, 0, None),
        PlannedBatch(1, 1, 5000),
        PlannedBatch(2, 1, 9000),
    ]


def test_lost_commit_leaves_no_checksum_behind(checkpoint: Path) -> None:
    assert lose_commit(checkpoint) == 2
    assert {it.name for it in (checkpoint / "commits").iterdir()} == {"0", ".0.crc", "1", ".1.crc"}


def test_without_commits_none_is_lost(tmp_path: Path) -> None:
    assert lose_commit(tmp_path) is None


def test_time_of_a_batch_is_set_and_all_else_stays(checkpoint: Path) -> None:
    set_time(checkpoint, 1, 77)
    about = json.loads((checkpoint / "offsets/1").read_text().splitlines()[1])
    assert about == {"batchWatermarkMs": 5000, "batchTimestampMs": 77, "conf": {"a": "b"}}
    assert not (checkpoint / "offsets/.1.crc").exists()
    assert planned_batches(checkpoint)[1] == PlannedBatch(1, 1, 5000)
