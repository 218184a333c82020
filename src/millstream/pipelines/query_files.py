"""The files of a query's checkpoint that readers and writers use: the query's id, the offsets of a
batch, and its watermark.

Spark passes only the option `checkpointLocation`. It writes `metadata` and `offsets/N` before it
plans the partitions of batch N, and does not change them when it repeats the batch:

    metadata        {"id": "<the query's id>"}, the same after every restart
    commits/N       written when all sinks have returned from committing batch N
    offsets/N       "v1"; then {"batchWatermarkMs": ..., "batchTimestampMs": ..., ...}, with the
                    watermark that the batches before N have led to, 0 if there is none; then a line
                    for each source: where batch N ends in it, as {"topic": {"0": 17}} if it is
                    ours, or "-"

Spark does not sync them. A batch that is decided must keep its ends, or a replay would skip
records; and a query must keep its id, or it would start from the beginning and write everything
again. `sync_batch` makes both durable before the decision.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from millstream.errors import ConfigError
from millstream.pipelines.offsets import (
    Offsets,
    merge_lowest,
    offsets_if_ours,
    topic_ids_in,
)

QUERY_ID_PROPERTY = "sql.streaming.queryId"  # in Spark's local properties
_synced: set[str] = set()  # checkpoints whose metadata and directories are synced


def query_id(location: str) -> str:
    """Raises `ConfigError` where there is no checkpoint."""
    text = _read(f"{location}/metadata")
    if text is None:
        raise ConfigError(
            f"checkpointLocation: there is no metadata in {location}; write the location with its "
            "scheme (hdfs://..., s3://...), or name the query with kafka.transactional.id"
        )
    found: str = json.loads(text)["id"]
    return found


def batch_ends(location: str, batch_id: int) -> Offsets | None:
    """Where the batch ends in the topics that it reads; None if it is unknown.

    See `ends_in`.
    """
    text = _read(f"{location}/offsets/{batch_id}")
    return None if text is None else ends_in(text)


def ends_in(offset_log: str) -> Offsets:
    """Where a batch ends, from its file in `offsets/`."""
    return ends_of_sources(offset_log.splitlines()[2:])


def ends_of_sources(lines: Iterable[str]) -> Offsets:
    """The offsets of sources, one on each line: of the sources that are ours."""
    return merge_lowest(_offsets_of(line) for line in lines)


def topic_ids_of_sources(lines: Iterable[str]) -> dict[str, str]:
    """The ids of the topics in the offsets of sources, one on each line."""
    found: dict[str, str] = {}
    for line in lines:
        with contextlib.suppress(ValueError, AttributeError, TypeError):
            found |= {name: str(it) for name, it in topic_ids_in(json.loads(line)).items()}
    return found


def newest_local_batch(location: str) -> int | None:
    """The running batch, or else the last one; None if there is none, or if listing is slow."""
    if not is_local(location):
        return None
    try:
        found = Path(f"{local_path(location)}/offsets").iterdir()
        return max((int(it.name) for it in found if it.name.isdigit()), default=None)
    except OSError:
        return None


def is_committed_here(location: str, batch_id: int) -> bool:
    """Whether Spark has recorded the batch as committed, in a checkpoint on a local disk."""
    return is_local(location) and Path(f"{local_path(location)}/commits/{batch_id}").exists()


def newest_ends(location: str) -> Offsets:
    """Where the newest batch ends; nowhere if there is none yet."""
    newest = _newest_batch(location)
    return {} if newest is None else batch_ends(location, newest) or {}


def batch_watermark_ms(location: str, ends: Offsets) -> int | None:
    """The watermark of the batch that is being planned, which ends here; None if there is none yet.

    The batch is the newest that has offsets. Raises `ConfigError` if it is another query's.
    """
    newest = _newest_batch(location)
    text = None if newest is None else _read(f"{location}/offsets/{newest}")
    lines = text.splitlines() if text is not None else []
    if not any(_offsets_of(line) == ends for line in lines[2:]):
        raise ConfigError(
            f"checkpointLocation: the newest batch in {location} is not the one that is read. Give "
            "the reader the checkpointLocation of its own query, the same as the writer's"
        )
    watermark_ms = int(json.loads(lines[1])["batchWatermarkMs"])
    return watermark_ms or None


def watermark_ms_of(location: str, batch_id: int) -> int | None:
    """The watermark of a batch; None if there is none yet. Raises `ConfigError` if not known."""
    text = _read(f"{location}/offsets/{batch_id}")
    if text is None:
        raise ConfigError(
            f"there is no batch {batch_id} in the checkpoint {location}: name the "
            "checkpointLocation of the query itself, as its tasks reach it"
        )
    return int(json.loads(text.splitlines()[1])["batchWatermarkMs"]) or None


def sync_batch(location: str, batch_id: int) -> None:
    """Make `offsets/N` durable, if the checkpoint is on a local disk."""
    checkpoint = Path(local_path(location))
    offsets = checkpoint / "offsets"
    if not is_local(location) or not offsets.is_dir():
        return
    paths = [offsets / str(batch_id), offsets / f".{batch_id}.crc", offsets]
    if location not in _synced:
        paths += [checkpoint / "metadata", checkpoint / ".metadata.crc", checkpoint]
        paths += checkpoint.parents[:2]  # which may have been made with it
    for path in paths:
        _sync(path)
    _synced.add(location)


def sync_batch_meanwhile(location: str, batch_id: int) -> Callable[[], None]:
    """`sync_batch` in a thread; the returned function waits for its end, and raises its error."""
    threads = ThreadPoolExecutor(max_workers=1)
    synced = threads.submit(sync_batch, location, batch_id)
    threads.shutdown(wait=False)
    return synced.result


def replace_file(path: Path, content: str) -> None:
    """Replace a file, or create it: all of it is there, also after a power cut, or the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")
    with unfinished.open("w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    unfinished.replace(path)
    # Spark's file systems write checksums beside their files, and would find this one damaged.
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    for directory in (path.parent, *path.parent.parents[:2]):  # they may be as new
        _sync(directory)


def _sync(path: Path) -> None:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, PermissionError):
        return  # not every file manager of Spark's writes checksums; parents may not be ours
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _offsets_of(line: str) -> Offsets:
    try:
        return offsets_if_ours(json.loads(line))
    except ValueError:  # "-", and what sources of other kinds may write
        return {}


def _newest_batch(location: str) -> int | None:
    from pyarrow import ArrowInvalid, fs

    try:
        files, path = _open(f"{location}/offsets")
        found = files.get_file_info(fs.FileSelector(path))
    except (OSError, ArrowInvalid):
        return None
    return max((int(it.base_name) for it in found if it.base_name.isdigit()), default=None)


def _open(location: str) -> tuple[Any, str]:
    """The file system that pyarrow has for a location, and the path in it."""
    from pyarrow import fs

    if is_local(location):
        return fs.LocalFileSystem(), local_path(location)
    files, path = fs.FileSystem.from_uri(arrow_uri(location))
    return files, path


def _read(location: str) -> str | None:
    """A small file on any file system that pyarrow knows; None if it is not there."""
    from pyarrow import ArrowInvalid

    try:
        files, path = _open(location)
        with files.open_input_stream(path) as stream:
            content: bytes = stream.read()
            return content.decode()
    except (OSError, ArrowInvalid):  # the latter for a scheme that it does not know
        return None


def arrow_uri(location: str) -> str:
    """Hadoop has several names for S3, pyarrow one."""
    scheme, separator, rest = location.partition("://")
    return f"s3{separator}{rest}" if scheme in ("s3a", "s3n") else location


def is_local(location: str) -> bool:
    return location.startswith("file:") or "://" not in location


def local_path(location: str) -> str:
    return location.removeprefix("file:").replace("///", "/", 1)
