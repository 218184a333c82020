"""A pipeline's checkpoint as the driver sees it: whose it is, and which batch ended where.

Beside Spark's own files we keep `millstream.json`, which says for which topics the checkpoint was
made, by name and id: offsets of other topics, and of a topic that was deleted and recreated, would
be nonsense, and Spark does not notice. All of it is read through Hadoop's file systems, so that a
checkpoint may be wherever Spark can have one.

    {"pipeline": "revenue", "reads": {"orders": "orders"}, "topics": {"orders": "<topic id>"}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.errors import ConfigError
from millstream.pipelines.offsets import Offsets, from_json, to_json
from millstream.pipelines.query_files import ends_of_sources
from millstream.pipelines.running.progress import parse_offset_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipelines.spec import PipelineSpec

QUERY_ID_PROPERTY = "sql.streaming.queryId"
OWNER_FILE = "millstream.json"
STARTING_FILE = "millstream-starting.json"


class Checkpoint:
    """See the module."""

    was_taken_over = False  # whether another writer, such as Spark's Kafka connector, created it

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._ends: dict[int, Offsets] = {}  # of the batches that were planned last
        self._spark: Any = spark
        self._jvm: Any = spark._jvm
        self._hadoop: Any = spark._jsc.hadoopConfiguration()

    def query_id(self) -> str | None:
        """Spark's id of the query; None before its first start."""
        text = self._read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def batch_end(self, batch_id: int) -> Offsets | None:
        """Where a batch that was begun ends, according to its file."""
        text = self._read(f"offsets/{batch_id}")
        return None if text is None else parse_offset_log(text)

    def batch_start(self, batch_id: int) -> Offsets:
        """Where a batch begins: where the one before ended; nothing if that is not known."""
        if batch_id - 1 in self._ends:
            return self._ends[batch_id - 1]
        return self.batch_end(batch_id - 1) or {}

    def planned_end(self, batch_id: int) -> Offsets:
        """Where the batch that is being run ends, according to its plan: what is being read.

        Raises `ConfigError` if its file contains something else: another driver has written it.
        """
        found = self.batch_end(batch_id)
        planned = self._planned()
        if planned is not None and planned != found:
            raise ConfigError(
                f"batch {batch_id} ends at {to_json(planned)}, but the checkpoint {self.location} "
                f"contains {None if found is None else to_json(found)}: another process writes to "
                "it. Stop one of the two"
            )
        end = found or {}
        self._ends = {it: known for it, known in self._ends.items() if it == batch_id - 1}
        self._ends[batch_id] = end
        return end

    def _planned(self) -> Offsets | None:
        """The offsets that Spark has planned the current batch with; None outside of a query.

        Spark has no public interface for them: these are the offsets that its plan is made of.
        """
        query_id = self._spark.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
        query = query_id and self._spark._jsparkSession.streams().get(query_id)
        if not query:
            return None
        offsets = query.streamingQuery().availableOffsets().values().mkString("\n")
        return ends_of_sources(offsets.splitlines())

    def last_completed_batch(self) -> int | None:
        """The newest batch that Spark knows to be done."""
        numbers = [int(name) for name in self._list("commits") if name.isdigit()]
        return max(numbers, default=None)

    def incomplete_batch(self) -> int | None:
        """The batch that was begun and that Spark has not recorded as completed."""
        begun = max((int(it) for it in self._list("offsets") if it.isdigit()), default=None)
        return None if begun is None or begun == self.last_completed_batch() else begun

    def claim(self, pipeline: PipelineSpec, topic_ids: Mapping[str, UUID]) -> None:
        """Make it the pipeline's; raises `ConfigError` if it was made for something else."""
        topics = {parameter: it.name for parameter, it in pipeline.reads.items()}
        ids = {name: str(topic_ids[name]) for name in topics.values() if name in topic_ids}
        text = self._read(OWNER_FILE)
        self.was_taken_over = text is None and bool(self._list("offsets"))
        if text is not None:
            earlier = json.loads(text)
            self._check_names(earlier, topics)
            self._check_ids(pipeline, earlier.get("topics", {}), ids)
            if earlier.get("topics") == ids:
                return
        owner = {"pipeline": pipeline.name, "reads": topics, "topics": ids}
        self._write(OWNER_FILE, json.dumps(owner))

    def _check_names(self, earlier: Mapping[str, Any], topics: Mapping[str, str]) -> None:
        if sorted(earlier["reads"].values()) != sorted(topics.values()):
            raise ConfigError(
                f"the checkpoint {self.location} was made by {earlier['pipeline']} reading "
                f"{', '.join(earlier['reads'].values())}, and now it is to read "
                f"{', '.join(topics.values())}: its offsets mean nothing there. Give the pipeline "
                "another name or checkpoint (it starts anew), or the topics they had"
            )

    def _check_ids(
        self, pipeline: PipelineSpec, earlier: Mapping[str, str], now: Mapping[str, str]
    ) -> None:
        """A reader cannot tell a topic made anew from the old one, once it has grown as long."""
        may_lose = {it.name for it in pipeline.reads.values() if it.may_lose_data}
        for name, topic_id in now.items():
            if earlier.get(name, topic_id) == topic_id or name in may_lose:
                continue
            raise ConfigError(
                f"topic {name} was deleted and recreated since {pipeline.name} last ran, and the "
                f"checkpoint {self.location} has the offsets of the old one. Give the pipeline "
                "another name or checkpoint (it starts anew), or accept that some records are "
                'left out: topic(..., options={"failOnDataLoss": False})'
            )

    def starting(self) -> dict[str, Offsets]:
        """Where inputs began that were to begin at a place that moves, by parameter."""
        text = self._read(STARTING_FILE)
        found = {} if text is None else json.loads(text)
        return {parameter: from_json(offsets) for parameter, offsets in found.items()}

    def keep_starting(self, starting: Mapping[str, Offsets]) -> None:
        content = {parameter: to_json(offsets) for parameter, offsets in starting.items()}
        self._write(STARTING_FILE, json.dumps(content))

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
        files.delete(path, False)
        files.rename(unfinished, path)
