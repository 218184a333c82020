"""What a writer looks up in the query's checkpoint: who the query is, and what a batch reads.

A writer is given neither by Spark, only the option `checkpointLocation`. Spark writes both files
before it begins the batch:

    metadata        {"id": "<the query's id>"}, the same after every restart
    offsets/N       see millstream.pipelines.progress
"""

from __future__ import annotations

import json
from typing import Any

from millstream.errors import ConfigError
from millstream.pipelines.offsets import Offsets, from_json


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


def _offsets_of(line: str) -> Offsets:
    try:
        nested: Any = json.loads(line)
        return from_json(nested)
    except (ValueError, AttributeError, TypeError):
        return {}


def _read(location: str) -> str | None:
    """A small file on any file system that pyarrow knows; None if it is not there."""
    from pyarrow import fs

    try:
        if "://" in location and not location.startswith("file:"):
            files, path = fs.FileSystem.from_uri(location)
        else:
            files = fs.LocalFileSystem()
            path = location.removeprefix("file:").replace("///", "/", 1)
        with files.open_input_stream(path) as stream:
            content: bytes = stream.read()
            return content.decode()
    except OSError:
        return None
