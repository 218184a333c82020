"""What is read from a checkpoint; the files are as Spark writes them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from millstream.errors import ConfigError
from millstream.pipelines import query_files
from millstream.pipelines.query_files import (
    arrow_uri,
    batch_ends,
    batch_watermark_ms,
    is_committed_here,
    newest_local_batch,
    query_id,
    replace_file,
    sync_batch,
    sync_batch_meanwhile,
    watermark_ms_of,
)

OFFSETS = """v1
{"batchWatermarkMs":0,"batchTimestampMs":1700000000000,"conf":{}}
{"orders":{"0":17,"1":4},"views":{"0":9}}
-
{"logOffset":3}
{"orders":{"0":12}}
"""


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    (tmp_path / "metadata").write_text('{"id":"8c1a"}')
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(OFFSETS)
    return tmp_path


@pytest.mark.parametrize("scheme", ["", "file:", "file://"])
def test_query_id_is_found_however_the_location_is_written(checkpoint: Path, scheme: str) -> None:
    assert query_id(f"{scheme}{checkpoint}") == "8c1a"


def test_query_id_without_a_checkpoint_is_refused_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"hdfs://.*kafka\.transactional\.id"):
        query_id(str(tmp_path / "nowhere"))


def test_query_id_on_an_unknown_file_system_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"kafka\.transactional\.id"):
        query_id("wasb://container/checkpoint")


def test_location_in_s3_is_known_by_all_of_hadoops_names() -> None:
    assert arrow_uri("s3a://bucket/c") == arrow_uri("s3://bucket/c") == "s3://bucket/c"
    assert arrow_uri("hdfs://namenode/c") == "hdfs://namenode/c"


def test_batch_ends_takes_the_lower_of_two_sources_and_passes_over_other_kinds(
    checkpoint: Path,
) -> None:
    expected = {("orders", 0): 12, ("orders", 1): 4, ("views", 0): 9}
    assert batch_ends(str(checkpoint), 3) == expected


def test_batch_ends_is_none_for_a_batch_that_is_not_there(checkpoint: Path) -> None:
    assert batch_ends(str(checkpoint), 4) is None


def test_sync_batch_syncs_local_checkpoints_only(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(query_files, "_sync", synced.append)
    sync_batch("hdfs://namenode/checkpoint", 3)
    assert synced == []
    sync_batch(f"file://{checkpoint}", 4)
    assert synced[0] == checkpoint / "offsets" / "4", "Spark may not have written it"
    assert checkpoint / "offsets" in synced


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_sync_batch_syncs_the_querys_id_and_all_directories(
    checkpoint: Path, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    code = "import sys; from millstream.pipelines.query_files import sync_batch as sync; "
    call = "[sync(sys.argv[1], it) for it in (3, 3)]"
    strace = ["strace", "-f", "-y", "-e", "trace=fsync", "-o", trace]
    subprocess.run([*strace, sys.executable, "-c", code + call, checkpoint], check=True)
    synced = re.findall(r"fsync\(\d+<([^>]*)>\) += 0", trace.read_text())
    batch = [str(checkpoint / "offsets" / "3"), str(checkpoint / "offsets")]
    query = [str(checkpoint / "metadata"), str(checkpoint), *map(str, checkpoint.parents[:2])]
    assert synced == [*batch, *query, *batch]


def test_sync_in_a_thread_raises_its_error_to_the_waiting_caller(checkpoint: Path) -> None:
    sync_batch_meanwhile(str(checkpoint), 3)()
    (checkpoint / "offsets" / "4").symlink_to("4")  # which cannot be opened
    with pytest.raises(OSError, match="symbolic links"):
        sync_batch_meanwhile(str(checkpoint), 4)()


def test_newest_local_batch_is_the_last_that_was_begun(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "offsets" / "12").write_text(OFFSETS)
    (checkpoint / "offsets" / ".13.crc").write_text("")
    assert newest_local_batch(f"file://{checkpoint}") == 12
    assert newest_local_batch(str(tmp_path / "nowhere")) is None
    assert newest_local_batch("hdfs://namenode/checkpoint") is None


def test_batch_is_committed_when_spark_has_written_it_down(checkpoint: Path) -> None:
    assert not is_committed_here(str(checkpoint), 3)
    (checkpoint / "commits").mkdir()
    (checkpoint / "commits" / "3").write_text("v1")
    assert is_committed_here(f"file:{checkpoint}", 3)
    assert not is_committed_here(str(checkpoint), 4)
    assert not is_committed_here("s3://bucket/checkpoint", 3)


def write_offsets(checkpoint: Path, batch: int, watermark_ms: int, *ends: str) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    marks = json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 7})
    (checkpoint / "offsets" / str(batch)).write_text("\n".join(["v1", marks, *ends]))
    (checkpoint / "offsets" / f".{batch}.crc").write_text("")


def test_watermark_is_that_of_the_newest_batch_if_it_ends_where_the_reader_does(
    tmp_path: Path,
) -> None:
    write_offsets(tmp_path, 9, 0, '{"t":{"0":5}}')
    assert batch_watermark_ms(str(tmp_path), {("t", 0): 5}) is None, "0 is none yet"
    write_offsets(tmp_path, 10, 1500, '{"files":3}', '{"t":{"0":7}}')
    assert batch_watermark_ms(f"file://{tmp_path}", {("t", 0): 7}) == 1500
    for wrong in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ConfigError, match="the same as the writer's"):
            batch_watermark_ms(str(wrong), {("t", 0): 5})


def test_watermark_of_a_batch_is_found_by_its_number(tmp_path: Path) -> None:
    write_offsets(tmp_path, 3, 1500, "-")
    assert watermark_ms_of(str(tmp_path), 3) == 1500
    with pytest.raises(ConfigError, match="no batch 4"):
        watermark_ms_of(str(tmp_path), 4)


def test_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file"
    for content in ("one", "two"):
        replace_file(file, content)
        assert file.read_text() == content
        (file.parent / ".file.crc").write_bytes(b"of the old content")
    replace_file(file, "three")
    assert [it.name for it in file.parent.iterdir()] == ["file"]
