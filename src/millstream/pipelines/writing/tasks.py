"""How a task writes its rows: in a transaction that it leaves open, or at once.

A task's transaction has the rows of all topics that the task writes. It is ended by the driver,
which has to decide about the batch first (`protocol.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from pyspark import TaskContext

from millstream.client.producing import RawProducer, WrittenRange
from millstream.errors import ApiError
from millstream.partitions import TopicPartition
from millstream.pipelines.workers import freeze_imports, keep_memory
from millstream.pipelines.writing.batching import Batcher
from millstream.pipelines.writing.clusters import cluster_for
from millstream.pipelines.writing.decisions import TaskTransaction

if TYPE_CHECKING:
    import pyarrow as pa

    from millstream.pipelines.writing.options import WriteOptions

logger = logging.getLogger(__name__)

TaggedRows: TypeAlias = "tuple[str, pa.RecordBatch]"  # the name of an output, and rows for it

TASKS_REMEMBERED_MAX = 1000
# If rows arrive later than this, the transaction is begun with the first one: its timeout runs.
PROMPT_SECONDS = 1.0

_written_last: dict[str, tuple[TopicPartition, ...]] = {}  # by the task's transactional id


def task_prefix(transactional_id: str) -> str:
    """The prefix of the transactional ids of a query's tasks."""
    return f"{transactional_id}-task-"


def write_at_least_once(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """Write rows that are visible at once; return their number. A repeated task repeats them."""
    keep_memory()
    cluster = cluster_for(options, "task")
    producer = RawProducer(cluster)
    producer.begin()
    try:
        count = Batcher(options, cluster, producer).write(batches)
        producer.flush()
    except BaseException:
        producer.discard()
        raise
    freeze_imports("write")
    return count


def write_open(
    topics: Mapping[str, WriteOptions], prefix: str, timeout_ms: int, rows: Iterator[TaggedRows]
) -> tuple[int, TaskTransaction | None]:
    """Write each output's rows to its topic, in one transaction that is left open.

    Returns the number of rows, and the transaction, or None if there are no rows. Attempts of one
    task have different ids, so a speculative attempt does not fence the other.
    """
    keep_memory()
    context = task_context()
    transactional_id = f"{prefix}{context.partitionId()}-{context.attemptNumber()}"
    producer = RawProducer(cluster_for(next(iter(topics.values())), "task"))
    try:
        expected = _written_last.pop(transactional_id, None)
        if expected is not None:  # it will probably write again: begin while rows are computed
            producer.begin(transactional_id, timeout_ms)
            producer.join(expected)
        waiting_since = time.monotonic()
        first = next((it for it in rows if it[1].num_rows), None)
        is_prompt = time.monotonic() - waiting_since < PROMPT_SECONDS
        if first is None:
            _abort_quietly(producer)
            return 0, None
        if producer.transaction is None:
            producer.begin(transactional_id, timeout_ms)
        count = _write_rows(topics, producer, _with_first(first, rows))
        written = producer.flush()
    except BaseException:
        _abort_quietly(producer)
        raise
    freeze_imports("write")
    if is_prompt:
        _remember(transactional_id, written)
    assert producer.transaction is not None
    return count, TaskTransaction(producer.transaction, tuple(written))


def _write_rows(
    topics: Mapping[str, WriteOptions], producer: RawProducer, rows: Iterator[TaggedRows]
) -> int:
    batchers = {
        name: Batcher(options, cluster_for(options, "task"), producer)
        for name, options in topics.items()
    }
    if len(batchers) == 1:
        return next(iter(batchers.values())).write(batch for _, batch in rows)
    return sum(batchers[name].write([batch]) for name, batch in rows)


def _remember(transactional_id: str, written: Sequence[WrittenRange]) -> None:
    if len(_written_last) >= TASKS_REMEMBERED_MAX:
        _written_last.clear()
    _written_last[transactional_id] = tuple((it.topic, it.partition) for it in written)


def _abort_quietly(producer: RawProducer) -> None:
    """Abort if begun. If that fails, the driver aborts it later; the first error is raised."""
    if producer.transaction is None:
        return
    try:
        producer.end(commit=False)
    except (ApiError, OSError) as error:
        logger.warning("a transaction is left to be aborted by the driver: %s", error)


def _with_first(first: TaggedRows, rest: Iterator[TaggedRows]) -> Iterator[TaggedRows]:
    yield first
    yield from rest


def task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context
