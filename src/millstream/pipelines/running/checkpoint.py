"""A pipeline's checkpoint in the driver: its owner, and the ends of its batches.

In addition to Spark's files, a checkpoint contains `millstream.json`, with the names and ids of its
topics: offsets of other topics, or of a topic that was deleted and recreated, would be wrong, and
Spark does not notice. Unless the checkpoint is on a local disk, it is read through Hadoop's file
systems, so that it can be wherever Spark supports it.

    {"pipeline": "revenue", "reads": {"orders": "orders"}, "topics": {"orders": "<topic id>"},
     "first_batch": 0, "windows": ["tumbling 1 minute, the end of the window + 5 minutes"],
     "state": ["aggregate by (user): sum(amount)"], "columns": {...}, "carried_from": "1"}

All of it is compared with the pipeline that starts, once a batch was planned. A first start that
failed before it has read nothing, so the next one may read other topics.

Batches before "first_batch" are those of another writer, whose checkpoint was taken over. "windows"
are those that Spark computes and that have an allowed lateness, which is in the key of their state:
with another one, Spark would emit an open window twice, with a part of its rows each. "state" are
the operators that keep state, and "columns" the columns of bucketed state (see state_columns.py).
"carried_from" is in the copy of the checkpoint of another version until the first start, which
compares them.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from uuid import UUID

from millstream.errors import ConfigError
from millstream.pipelines.offsets import EARLIEST, Offsets, from_json, to_json
from millstream.pipelines.plans import BucketedOperator
from millstream.pipelines.query_files import (
    QUERY_ID_PROPERTY,
    ends_of_sources,
    is_local,
    local_path,
    replace_file,
    topic_ids_of_sources,
)
from millstream.pipelines.running.progress import parse_offset_log
from millstream.pipelines.running.state_columns import StateColumns
from millstream.pipelines.state.stored_columns import Generations

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from millstream.pipelines.spec import PipelineSpec

NO_OFFSETS = "-"  # of a source that has none yet
OWNER_FILE = "millstream.json"
STARTING_FILE = "millstream-starting.json"
STATE = "state"
COLUMNS = "columns"
CARRIED = "carried_from"


class Checkpoint:
    """See the module."""

    was_taken_over = False  # whether another writer, such as Spark's Kafka connector, created it

    def __init__(self, spark: SparkSession, location: str) -> None:
        self.location = location
        self._ends: dict[int, Offsets] = {}  # of the batches that were planned last
        self._spark: Any = spark
        self._jvm: Any = spark._jvm
        self._hadoop: Any = spark._jsc.hadoopConfiguration()

    def at(self, location: str) -> Checkpoint:
        """Another checkpoint."""
        return Checkpoint(self._spark, location)

    def stop_query(self) -> None:
        """Stop the query that this thread works for, in another thread: this one is part of it."""
        query_id = self._spark.sparkContext.getLocalProperty(QUERY_ID_PROPERTY)
        query = query_id and self._spark.streams.get(query_id)
        if query:
            threading.Thread(target=query.stop, name="stop-query", daemon=True).start()

    def query_id(self) -> str | None:
        """Spark's id of the query; None before its first start."""
        text = self._read("metadata")
        return None if text is None else str(json.loads(text)["id"])

    def batch_end(self, batch_id: int) -> Offsets | None:
        """Where a batch that was begun ends, according to its file."""
        text = self._read(f"offsets/{batch_id}")
        return None if text is None else parse_offset_log(text)

    def topic_ids(self, batch_id: int) -> dict[str, str]:
        """The ids of the topics that a batch reads, as far as they are known."""
        lines = (self._read(f"offsets/{batch_id}") or "").splitlines()[2:]
        return topic_ids_of_sources(lines)

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
        """The newest batch that Spark has recorded as completed."""
        numbers = [int(name) for name in self._list("commits") if name.isdigit()]
        return max(numbers, default=None)

    def is_new(self) -> bool:
        """Whether no batch was begun. Spark deletes the files of old ones, but never all."""
        return not any(it.isdigit() for it in self._list("offsets"))

    def incomplete_batch(self) -> int | None:
        """The batch that was begun and that Spark has not recorded as completed."""
        begun = max((int(it) for it in self._list("offsets") if it.isdigit()), default=None)
        return None if begun is None or begun == self.last_completed_batch() else begun

    def claim(self, pipeline: PipelineSpec, topic_ids: Mapping[str, UUID]) -> None:
        """Record the pipeline as its owner; raises `ConfigError` if it has batches of another."""
        topics = {parameter: it.name for parameter, it in pipeline.reads.items()}
        ids = {name: str(topic_ids[name]) for name in topics.values() if name in topic_ids}
        text = self._read(OWNER_FILE)
        is_new = self.is_new()
        self.was_taken_over = text is None and not is_new
        if text is not None:
            earlier = json.loads(text)
            if is_new:
                self._correct_starting(pipeline, earlier.get("topics", {}), ids)
            else:
                self._check_names(earlier, topics)
                self._check_ids(pipeline, earlier.get("topics", {}), ids)
                if earlier.get("topics") == ids:
                    return
        owner = self._owner()
        if text is None:
            done = self.last_completed_batch()
            owner["first_batch"] = 0 if done is None else done + 1
        owner |= {"pipeline": pipeline.name, "reads": topics, "topics": ids}
        self._write(OWNER_FILE, json.dumps(owner))

    def check_windows(self, closing: Sequence[str]) -> None:
        """Raises `ConfigError` if a window in Spark's state would end at another time."""
        owner = self._owner()
        known = owner.get("windows", [])
        if (gone := [it for it in known if it not in closing]) and not self.is_new():
            raise ConfigError(
                f"the checkpoint {self.location} has windows that end at {'; '.join(gone)}, and "
                f"now they end at {'; '.join(closing) or 'their own end'}: those that are open "
                "would be emitted twice. Restore allowed_lateness, or give the pipeline another "
                "name or version, which starts from the beginning"
            )
        if known != list(closing):
            self._write(OWNER_FILE, json.dumps(owner | {"windows": list(closing)}))

    def check_state(self, pipeline: PipelineSpec, operators: Sequence[str]) -> None:
        """Raises `ConfigError` if the state is a copy of another version's, and was kept by other
        operators."""
        owner = self._owner()
        known, source = owner.get(STATE), owner.pop(CARRIED, None)
        if source is not None and known != list(operators):
            raise ConfigError(
                f"version {pipeline.version} of {pipeline.name} cannot begin with the state of "
                f"version {source}: {_difference(known or [], operators)}. Remove it, `millstream "
                f"versions remove {pipeline.name} {pipeline.version}`, and deploy it without "
                "--state-from: it then reads its topics from the beginning"
            )
        if source is not None or known != list(operators):
            self._write(OWNER_FILE, json.dumps(owner | {STATE: list(operators)}))

    def number_columns(self, operators: Sequence[BucketedOperator]) -> dict[int, Generations]:
        """The generations of the columns of state, by the number of their operator."""
        owner = self._owner()
        done = self.last_completed_batch()
        known = StateColumns.of_json(owner.get(COLUMNS))
        columns = known.from_batch(0 if done is None else done + 1, operators)
        if columns != known:
            self._write(OWNER_FILE, json.dumps(owner | {COLUMNS: columns.to_json()}))
        return columns.of_operators(operators)

    def first_batch(self) -> int:
        """The first batch of this pipeline: those before are of the writer that it took over."""
        return int(self._owner().get("first_batch", 0))

    def align_sources(self, pipeline: PipelineSpec, planned: Sequence[str]) -> None:
        """Put the offsets of the newest batches into the order of the plan's sources.

        Spark knows a source only by its place in the plan, and a function that was edited may use
        its inputs in another order, or more often. `planned` are the inputs of the plan, by
        parameter. If several of them read one topic, the order stays as it is.
        """
        topics = [pipeline.reads[it].name for it in planned if it in pipeline.reads]
        if len(topics) != len(planned) or len(set(topics)) != len(set(planned)):
            return
        numbers = sorted(int(it) for it in self._list("offsets") if it.isdigit())
        for number in numbers[-2:]:  # Spark reads the last, and the one before it
            lines = (self._read(f"offsets/{number}") or "").splitlines()
            aligned = [*lines[:2], *align(lines[2:], topics)]
            if aligned != lines:
                self._write(f"offsets/{number}", "\n".join(aligned))

    def _owner(self) -> dict[str, Any]:
        text = self._read(OWNER_FILE)
        return {} if text is None else dict(json.loads(text))

    def _check_names(self, earlier: Mapping[str, Any], topics: Mapping[str, str]) -> None:
        if sorted(earlier["reads"].values()) != sorted(topics.values()):
            raise ConfigError(
                f"the checkpoint {self.location} was made by {earlier['pipeline']} reading "
                f"{', '.join(earlier['reads'].values())}, and now reads "
                f"{', '.join(topics.values())}: its offsets mean nothing there. Give the pipeline "
                "another name or checkpoint, which starts from the beginning, or restore its topics"
            )

    def _check_ids(
        self, pipeline: PipelineSpec, earlier: Mapping[str, str], now: Mapping[str, str]
    ) -> None:
        """A reader cannot distinguish a recreated topic from the old one, once it is as long."""
        may_lose = {it.name for it in pipeline.reads.values() if it.may_lose_data}
        for name, topic_id in now.items():
            if earlier.get(name, topic_id) == topic_id or name in may_lose:
                continue
            raise ConfigError(
                f"topic {name} was deleted and recreated since {pipeline.name} last ran, and the "
                f"checkpoint {self.location} has the offsets of the old one. Give the pipeline "
                "another name or checkpoint, which starts from the beginning, or accept that some "
                'records are skipped: topic(..., options={"failOnDataLoss": False})'
            )

    def starting(self) -> dict[str, Offsets]:
        """Where inputs began that were to begin at a place that moves, by parameter."""
        text = self._read(STARTING_FILE)
        found = {} if text is None else json.loads(text)
        return {parameter: from_json(offsets) for parameter, offsets in found.items()}

    def keep_starting(self, starting: Mapping[str, Offsets]) -> None:
        content = {parameter: to_json(offsets) for parameter, offsets in starting.items()}
        self._write(STARTING_FILE, json.dumps(content))

    def _correct_starting(
        self, pipeline: PipelineSpec, earlier: Mapping[str, str], now: Mapping[str, str]
    ) -> None:
        """Forget where inputs began whose topic is another one. The end of a topic that was
        recreated is its beginning: all of its records came after the first start."""
        kept = self.starting()
        corrected = {}
        for parameter, offsets in kept.items():
            it = pipeline.reads.get(parameter)
            if it is None or any(name != it.name for name, _ in offsets):
                continue
            if it.name not in now or earlier.get(it.name, now[it.name]) == now[it.name]:
                corrected[parameter] = offsets
            elif it.start_at == "latest":
                corrected[parameter] = dict.fromkeys(offsets, EARLIEST)
        if corrected != kept:
            self.keep_starting(corrected)

    # Files: of a local disk in Python, which can sync them; of others through Hadoop

    def _list(self, name: str) -> list[str]:
        if is_local(self.location):
            directory = self._local(name)
            return [it.name for it in directory.iterdir()] if directory.exists() else []
        path = self._path(name)
        files = path.getFileSystem(self._hadoop)
        if not files.exists(path):
            return []
        return [str(it.getPath().getName()) for it in files.listStatus(path)]

    def _read(self, name: str) -> str | None:
        if is_local(self.location):
            file = self._local(name)
            return file.read_text(encoding="utf-8") if file.exists() else None
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
        """Replace the file in one step, and durably."""
        if is_local(self.location):
            replace_file(self._local(name), content)
            return
        path = self._path(name)
        unfinished = self._path(str(PurePosixPath(name).with_name(f".{path.getName()}.unfinished")))
        files = path.getFileSystem(self._hadoop)
        stream = files.create(unfinished, True)
        try:
            stream.write(bytearray(content, "utf-8"))
            stream.hsync()
        finally:
            stream.close()
        hadoop = self._jvm.org.apache.hadoop.fs
        rename = getattr(hadoop, "Options$Rename")
        options = self._spark.sparkContext._gateway.new_array(rename, 1)
        options[0] = rename.OVERWRITE
        context = hadoop.FileContext.getFileContext(path.toUri(), self._hadoop)
        context.rename(unfinished, path, options)

    def _local(self, name: str) -> Path:
        return Path(local_path(self.location)) / name

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.location}/{name}")


def _difference(known: Sequence[str], now: Sequence[str]) -> str:
    gone = [it for it in known if it not in now]
    new = [it for it in now if it not in known]
    if not gone and not new:
        return "its operators keep state in another order or number"
    had, has = ("; ".join(it) or "no such operator" for it in (gone, new))
    return f"that state is of {had}, and now there is {has}"


def align(lines: Sequence[str], topics: Sequence[str]) -> list[str]:
    """The lines with the offsets of sources, one for each topic; unchanged if that is unclear."""
    found: dict[str, str] = {}
    for line in lines:
        names = {topic for topic, _ in ends_of_sources([line])}
        if len(names) > 1 or not names <= set(topics):
            return list(lines)
        found |= dict.fromkeys(names, line)
    return [found.get(topic, NO_OFFSETS) for topic in topics]
