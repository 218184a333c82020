"""A pipeline's checkpoint as the driver sees it: whose it is, and which batch ended where.

Beside Spark's own files we keep `millstream.json`, which says for which topics the checkpoint was
made: offsets of other topics would be nonsense, and Spark does not notice. All of it is read
through Hadoop's file systems, so that a checkpoint may be wherever Spark can have one.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from millstream.errors import ConfigError
from millstream.pipelines.offsets import Offsets
from millstream.pipelines.progress import parse_offset_log
from millstream.pipelines.query_files import sync_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipelines.pipeline import Pipeline

OWNER_FILE = "millstream.json"


class Checkpoint:
    """See the module."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._jvm: Any = spark._jvm
        self._hadoop: Any = spark._jsc.hadoopConfiguration()

    def batch_end(self, batch_id: int) -> Offsets:
        """Where a batch that was begun ends."""
        return parse_offset_log(self._read(f"offsets/{batch_id}") or "")

    def durable_batch_end(self, batch_id: int) -> Offsets:
        """The same, safe from a power cut: for who is about to write the batch."""
        sync_batch(self.location, batch_id)
        return self.batch_end(batch_id)

    def last_completed_batch(self) -> int | None:
        """The newest batch that Spark knows to be done."""
        numbers = [int(name) for name in self._list("commits") if name.isdigit()]
        return max(numbers, default=None)

    def claim(self, pipeline: Pipeline) -> None:
        """Make it the pipeline's; raises `ConfigError` if it was made for something else."""
        topics = {parameter: it.name for parameter, it in pipeline.reads.items()}
        text = self._read(OWNER_FILE)
        if text is None:
            self._write(OWNER_FILE, json.dumps({"pipeline": pipeline.name, "reads": topics}))
            return
        earlier = json.loads(text)
        if sorted(earlier["reads"].values()) != sorted(topics.values()):
            raise ConfigError(
                f"the checkpoint {self.location} was made by {earlier['pipeline']} reading "
                f"{', '.join(earlier['reads'].values())}, and now it is to read "
                f"{', '.join(topics.values())}: its offsets mean nothing there. Give the pipeline "
                "another name or checkpoint (it starts anew), or the topics they had"
            )

    # Files

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")

    def _list(self, name: str) -> list[str]:
        path = self._path(name)
        files = path.getFileSystem(self._hadoop)
        if not files.exists(path):
            return []
        return [str(it.getPath().getName()) for it in files.listStatus(path)]

    def _read(self, name: str) -> str | None:
        path = self._path(name)
        files = path.getFileSystem(self._hadoop)
        if not files.exists(path):
            return None
        stream = files.open(path)
        try:
            return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()

    def _write(self, name: str, content: str) -> None:
        """As a whole or not at all."""
        path, unfinished = self._path(name), self._path(f".{name}.unfinished")
        files = path.getFileSystem(self._hadoop)
        stream = files.create(unfinished, True)
        try:
            stream.write(bytearray(content, "utf-8"))
        finally:
            stream.close()
        files.rename(unfinished, path)
