"""What a writer looks up in the query's checkpoint: who the query is, and what a batch reads.

A writer is given neither by Spark, only the option `checkpointLocation`. Spark writes both files
before it begins the batch:

    metadata        {"id": "<the query's id>"}, the same after every restart
    offsets/N       two lines of Spark's, then one for each source: where batch N ends in it, as
                    {"topic": {"0": 17}} if it is ours, or "-"

Spark does not sync them. A batch that is decided must keep its ends, or a replay would leave out
what came since; and a query must keep its id, or it would begin anew and write all of it again.
`sync_batch` makes both durable before.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from millstream.errors import ConfigError
from millstream.pipelines.offsets import Offsets, from_json

_synced: set[str] = set()  # the checkpoints whose own files and directories are


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
    """Where the batch ends in the topics that it reads; None where that cannot be told.

    Sources of other kinds are passed over: their offsets have another shape. Of a topic that is
    read by two sources the lower offset counts: what both have done.
    """
    text = _read(f"{location}/offsets/{batch_id}")
    if text is None:
        return None
    ends: Offsets = {}
    for line in text.splitlines()[2:]:
        for key, offset in _offsets_of(line).items():
            ends[key] = min(offset, ends.get(key, offset))
    return ends


def sync_batch(location: str, batch_id: int) -> None:
    """Make `offsets/N` outlive a power cut, where that is ours to do: on a local disk."""
    checkpoint = Path(_local_path(location))
    offsets = checkpoint / "offsets"
    if not _is_local(location) or not offsets.is_dir():
        return
    paths = [offsets / str(batch_id), offsets / f".{batch_id}.crc", offsets]
    if location not in _synced:
        paths += [checkpoint / "metadata", checkpoint / ".metadata.crc", checkpoint]
        paths += checkpoint.parents[:2]  # which may have been made with it
    for path in paths:
        _sync(path)
    _synced.add(location)


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
        nested: Any = json.loads(line)
        return from_json(nested)
    except (ValueError, AttributeError, TypeError):
        return {}


def _read(location: str) -> str | None:
    """A small file on any file system that pyarrow knows; None if it is not there."""
    from pyarrow import ArrowInvalid, fs

    try:
        if _is_local(location):
            files, path = fs.LocalFileSystem(), _local_path(location)
        else:
            files, path = fs.FileSystem.from_uri(arrow_uri(location))
        with files.open_input_stream(path) as stream:
            content: bytes = stream.read()
            return content.decode()
    except (OSError, ArrowInvalid):  # the latter for a scheme that it does not know
        return None


def arrow_uri(location: str) -> str:
    """Hadoop has several names for S3, pyarrow one."""
    scheme, separator, rest = location.partition("://")
    return f"s3{separator}{rest}" if scheme in ("s3a", "s3n") else location


def _is_local(location: str) -> bool:
    return location.startswith("file:") or "://" not in location


def _local_path(location: str) -> str:
    return location.removeprefix("file:").replace("///", "/", 1)
