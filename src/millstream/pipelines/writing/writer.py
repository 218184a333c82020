"""`df.write.format("millstream")` and `df.writeStream.format("millstream")`.

A stream is written exactly once, unless told otherwise. Spark makes a writer anew for every batch,
in two processes of the driver's and in every task; nothing is kept between them but what is on the
brokers, in the checkpoint and in the messages that tasks send back:

    driver   the writer is pickled for the tasks     begin the query's next transaction, which
             (`_prepare`)                            fences an older driver; complete or abort
                                                     what it finds
    task     write()                                 write in a transaction of its own, leave it
                                                     open, say in the message what it is
    driver   commit()                                decide; commit the tasks' transactions
    driver   abort()                                 look whether it is decided; if not, abort

Every message carries the transaction that the driver began, so that the decision is made with it:
a driver that has been superseded since is fenced. See `decisions.py` and `settling.py`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer, WrittenRange
from millstream.client.transactions import (
    FENCED,
    Transaction,
    begin_transaction,
    end_transactions,
)
from millstream.errors import ApiError, ConfigError, ErrorCode, MillstreamError
from millstream.partitions import TopicPartition
from millstream.pipelines.offsets import Offsets, to_json
from millstream.pipelines.query_files import (
    batch_ends,
    is_committed_here,
    newest_local_batch,
    query_id,
    sync_batch_meanwhile,
)
from millstream.pipelines.workers import keep_memory, settle
from millstream.pipelines.writing.batching import Batcher, Layout
from millstream.pipelines.writing.clusters import (
    cluster_for,
    decision_timeout_ms,
    partition_count,
    transaction_timeout_ms,
)
from millstream.pipelines.writing.decisions import (
    Decision,
    DecisionLog,
    DriverEpoch,
    TaskTransaction,
    decide,
)
from millstream.pipelines.writing.options import EXACTLY_ONCE, WriteOptions
from millstream.pipelines.writing.settling import Settling

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

BATCH_ID_PROPERTY = "streaming.sql.batchId"
QUERY_ID_PROPERTY = "sql.streaming.queryId"  # the id in the checkpoint
TASKS_REMEMBERED_MAX = 1000
# A task whose rows came later begins its transaction with the first: the broker's patience counts.
PROMPT_SECONDS = 1.0

_logs: dict[tuple[Any, ...], DecisionLog] = {}
_prepared: dict[str, PreparedBatch] = {}  # by the query's transactional id
_written_last: dict[str, tuple[TopicPartition, ...]] = {}  # by the task's transactional id


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver."""

    row_count: int
    driver: Transaction | None = None
    task: TaskTransaction | None = None  # None where nothing was written
    is_skipped: bool = False  # the batch had been decided before
    query_id: str | None = None


@dataclass(frozen=True)
class BatchPlan:
    """What the driver tells the tasks of one batch."""

    driver: Transaction
    decided_batch_id: int
    decided_query_id: str | None  # whose batch that was; None where it is this query's, or of old
    timeout_ms: int

    @property
    def task_prefix(self) -> str:
        return task_prefix(self.driver.transactional_id)


@dataclass(frozen=True)
class PreparedBatch:
    """The batch of a query that this process has prepared last."""

    location: str
    batch_id: int
    ends: Offsets | None
    plan: BatchPlan

    def is_done(self) -> bool:
        """Whether its commit has returned, and the next batch is the one that is being prepared.

        Spark writes the one down when the other is true: the checkpoint says both.
        """
        return (
            newest_local_batch(self.location) == self.batch_id + 1
            and is_committed_here(self.location, self.batch_id)
            and batch_ends(self.location, self.batch_id) == self.ends
        )


def task_prefix(transactional_id: str) -> str:
    """What the transactional ids of a query's tasks begin with."""
    return f"{transactional_id}-task-"


class TopicWriter(DataSourceArrowWriter):
    """A batch job. With delivery exactly-once readers see nothing of it before it has succeeded:
    each task leaves a transaction open, and `commit` ends them all. Should the driver die while it
    does so, some are committed and some are not: a job has no checkpoint to remember it by."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options
        self._job_id = f"millstream-{uuid4().hex}"
        self._timeout_ms = (
            0
            if options.delivery != EXACTLY_ONCE
            else transaction_timeout_ms(options, cluster_for(options, "driver"))
        )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        if self._options.delivery != EXACTLY_ONCE:
            return write_at_least_once(self._options, iterator)
        return write_open(self._options, task_prefix(self._job_id), self._timeout_ms, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self._end(messages, commit=True)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self._end(messages, commit=False)

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, commit: bool) -> None:
        tasks = _tasks_of(messages)
        if self._options.delivery != EXACTLY_ONCE:
            return
        cluster = cluster_for(self._options, "driver")
        codes = end_transactions(cluster, [it.transaction for it in tasks], commit)
        failed = [code for code in codes if code is not ErrorCode.NONE]
        if commit and failed:
            raise ApiError(
                failed[0],
                f"{len(failed)} of {len(tasks)} transactions of this job were not committed; "
                "the others were. Raise kafka.transaction.timeout.ms if the job takes long",
            )
        settling = _settling(self._options, self._job_id, cluster, self._timeout_ms)
        settling.sweep(task_prefix(self._job_id), keep=tasks)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    """A stream's batch; see the module."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_schema(options, schema)
        self._options = options
        self._plan: BatchPlan | None = None
        if options.delivery == EXACTLY_ONCE and options.checkpoint_location is None:
            raise ConfigError(
                "exactly-once delivery needs the option checkpointLocation on the writer itself: "
                "the query is known by it"
            )

    def __getstate__(self) -> dict[str, Any]:
        """Pickled it is for the tasks of a batch, and only then: the batch is about to begin."""
        if self._plan is None and self._options.delivery == EXACTLY_ONCE:
            self._plan = self._prepare()
        settle("prepare a batch")
        return self.__dict__

    def _prepare(self) -> BatchPlan:
        """Leave nothing behind of earlier batches and drivers."""
        transactional_id = query_transactional_id(self._options)
        plan = self._go_on(transactional_id) or self._clean_up(transactional_id)
        location = self._options.checkpoint_location
        assert location is not None
        batch_id = newest_local_batch(location)
        if batch_id is not None:
            ends = batch_ends(location, batch_id)
            _prepared[transactional_id] = PreparedBatch(location, batch_id, ends, plan)
        return plan

    def _go_on(self, transactional_id: str) -> BatchPlan | None:
        """After a batch that this process prepared, which is committed and cleaned up behind.

        It is enough then to begin the next transaction, if nobody else has begun one since: not
        another driver, nor the commit, in order to write records again. None where that is so.
        """
        last = _prepared.pop(transactional_id, None)
        if last is None or not last.is_done():
            return None
        cluster = cluster_for(self._options, "driver")
        timeout_ms = decision_timeout_ms(self._options, cluster)
        try:
            driver = begin_transaction(
                cluster, transactional_id, timeout_ms, after=last.plan.driver
            )
        except ApiError as error:
            if error.code in FENCED:
                return None
            raise
        decided_batch_id = max(last.batch_id, last.plan.decided_batch_id)
        return replace(
            last.plan, driver=driver, decided_batch_id=decided_batch_id, decided_query_id=None
        )

    def _clean_up(self, transactional_id: str) -> BatchPlan:
        """Begin the next transaction, whoever had the last; complete or abort what there is."""
        cluster = cluster_for(self._options, "driver")
        timeout_ms = transaction_timeout_ms(self._options, cluster)
        log = _decision_log(cluster, transactional_id)
        log.create_topic()
        driver = begin_transaction(
            cluster, transactional_id, decision_timeout_ms(self._options, cluster)
        )
        state = log.latest(driver)
        settling = _settling(self._options, transactional_id, cluster, timeout_ms)
        if not state.is_completed:
            driver = settling.settle(driver, state.decision)
        settling.sweep(task_prefix(transactional_id))
        self._check_same_batch(state.decision)
        return BatchPlan(driver, state.decided_batch_id, state.decision.query_id, timeout_ms)

    def _check_same_batch(self, decision: Decision) -> None:
        """Batches that are decided are passed over: they must be what they were."""
        location = self._options.checkpoint_location
        if decision.ends is None or location is None:
            return
        found = batch_ends(location, decision.batch_id)
        if found != decision.ends:
            raise ConfigError(
                f"batch {decision.batch_id} was written up to {to_json(decision.ends)}, but the "
                f"checkpoint {location} says {None if found is None else to_json(found)}: it has "
                "been set back or changed, and records would be left out. Restore it; or, to write "
                "again what comes after it, name the query anew with kafka.transactional.id"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        plan = self._plan
        if plan is None:
            return write_at_least_once(self._options, iterator)
        if _batch_id() <= plan.decided_batch_id:
            _check_same_query(plan)
            for _ in iterator:
                pass
            return TaskMessage(0, plan.driver, is_skipped=True)
        message = write_open(self._options, plan.task_prefix, plan.timeout_ms, iterator)
        message.driver, message.query_id = plan.driver, _query_id()
        return message

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        if self._options.delivery != EXACTLY_ONCE:
            self._commit_offsets(batchId)
            return
        known = [it for it in messages if isinstance(it, TaskMessage)]
        if any(it.is_skipped for it in known):
            return
        driver = _driver_of(messages)
        assert driver is not None, "Spark runs at least one task for every batch"
        cluster = cluster_for(self._options, "driver")
        log = _decision_log(cluster, driver.transactional_id)
        ends, until_durable = self._batch_ends(batchId)
        decision = Decision(
            batchId,
            tuple(_tasks_of(messages)),
            ends,
            next((it.query_id for it in known), None),
            DriverEpoch(driver.producer_id, driver.epoch),
        )
        decide(
            cluster,
            log,
            driver,
            decision,
            group_id=self._group_id(driver.transactional_id),
            offsets=self._offsets_here(cluster, ends),
            until_durable=until_durable,
        )
        settling = self._settling_for(cluster, driver)
        settling.settle(driver, decision)
        settling.sweep(task_prefix(driver.transactional_id), keep=decision.tasks)
        settle("commit a batch")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        """Also called when `commit` has raised: then the batch may have been decided."""
        driver = _driver_of(messages)
        if self._options.delivery != EXACTLY_ONCE or driver is None:
            return  # what failed tasks left open, the next batch finds
        cluster = cluster_for(self._options, "driver")
        timeout_ms = decision_timeout_ms(self._options, cluster)
        written = [it.transaction for it in _tasks_of(messages)]
        try:
            driver = begin_transaction(cluster, driver.transactional_id, timeout_ms, after=driver)
        except ApiError as error:
            if error.code not in FENCED:
                raise
            logger.warning("batch %d is another driver's now", batchId)
            # Nobody may come soon who sweeps. Had the batch been decided after all, the other one
            # would find these aborted, and write their records again.
            end_transactions(cluster, written, commit=False)
            return
        state = _decision_log(cluster, driver.transactional_id).latest(driver)
        settling = self._settling_for(cluster, driver)
        if not state.is_completed:
            settling.settle(driver, state.decision)
        if state.decided_batch_id < batchId:
            end_transactions(cluster, written, commit=False)
        settling.sweep(task_prefix(driver.transactional_id), keep=state.decision.tasks)

    def _settling_for(self, cluster: Cluster, driver: Transaction) -> Settling:
        timeout_ms = transaction_timeout_ms(self._options, cluster)
        return _settling(self._options, driver.transactional_id, cluster, timeout_ms)

    # Progress, as a group's offsets

    def _group_id(self, transactional_id: str) -> str:
        options = self._options
        return options.group_id or (
            f"millstream-{options.query_name}" if options.query_name else transactional_id
        )

    def _batch_ends(self, batch_id: int) -> tuple[Offsets | None, Callable[[], None]]:
        """Where the batch ends in its sources, and what to call to have that be durable."""
        location = self._options.checkpoint_location
        if location is None:
            return None, lambda: None
        ends = batch_ends(location, batch_id)
        if ends is None:
            logger.warning("offsets/%d cannot be read: no progress is shown", batch_id)
            return None, lambda: None
        return ends, sync_batch_meanwhile(location, batch_id)

    def _offsets_here(self, cluster: Cluster, ends: Offsets | None) -> Offsets:
        """What of it are topics of this cluster."""
        if ends is None or not self._options.commits_offsets:
            return {}
        needed: dict[str, int] = {}
        for topic, partition in sorted(ends):
            needed[topic] = partition + 1
        counts = {topic: partition_count(cluster, topic, it) for topic, it in needed.items()}
        return {it: offset for it, offset in ends.items() if it[1] < counts[it[0]]}

    def _commit_offsets(self, batch_id: int) -> None:
        """At least once: after the batch, and not with it."""
        cluster = cluster_for(self._options, "driver")
        ends, until_durable = self._batch_ends(batch_id)
        offsets = self._offsets_here(cluster, ends)
        until_durable()
        if offsets:
            from millstream.pipelines.running.progress import GroupProgress

            options = self._options
            group_id = self._group_id(query_transactional_id(options))
            progress = GroupProgress(options.bootstrap_servers, group_id, security=options.security)
            progress.report(offsets)
            progress.close()


# What tasks do


def write_at_least_once(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> TaskMessage:
    """Write rows that readers see at once; if the task is repeated, so are they."""
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
    settle("write")
    return TaskMessage(count)


def write_open(
    options: WriteOptions, prefix: str, timeout_ms: int, batches: Iterator[pa.RecordBatch]
) -> TaskMessage:
    """Write rows in a transaction and leave it open, for whoever has the message to end.

    Attempts of one task have different ids: the speculative one does not fence the other.
    """
    keep_memory()
    context = _task_context()
    transactional_id = f"{prefix}{context.partitionId()}-{context.attemptNumber()}"
    cluster = cluster_for(options, "task")
    producer = RawProducer(cluster)
    try:
        expected = _written_last.pop(transactional_id, None)
        if expected is not None:  # then it will write again: begin while its rows are on their way
            producer.begin(transactional_id, timeout_ms)
            producer.join(expected)
        waiting_since = time.monotonic()
        first = next((it for it in batches if it.num_rows), None)
        is_prompt = time.monotonic() - waiting_since < PROMPT_SECONDS
        if first is None:
            _abort_quietly(producer)
            return TaskMessage(0)
        if producer.transaction is None:
            producer.begin(transactional_id, timeout_ms)
        count = Batcher(options, cluster, producer).write(_with_first(first, batches))
        written = producer.flush()
    except BaseException:
        _abort_quietly(producer)
        raise
    settle("write")
    if is_prompt:
        _remember(transactional_id, written)
    assert producer.transaction is not None
    return TaskMessage(count, task=TaskTransaction(producer.transaction, tuple(written)))


def _remember(transactional_id: str, written: Sequence[WrittenRange]) -> None:
    if len(_written_last) >= TASKS_REMEMBERED_MAX:
        _written_last.clear()
    _written_last[transactional_id] = tuple((it.topic, it.partition) for it in written)


def _abort_quietly(producer: RawProducer) -> None:
    """If it began; what stays open is swept later, and what went wrong before is told."""
    if producer.transaction is None:
        return
    try:
        producer.end(commit=False)
    except (ApiError, OSError) as error:
        logger.warning("a transaction is left to be aborted by the driver: %s", error)


def _batch_id() -> int:
    text = _task_context().getLocalProperty(BATCH_ID_PROPERTY)
    if text is None:
        raise MillstreamError(f"Spark has not told this task its batch ({BATCH_ID_PROPERTY})")
    return int(text)


def _query_id() -> str | None:
    found: str | None = _task_context().getLocalProperty(QUERY_ID_PROPERTY)
    return found


def _check_same_query(plan: BatchPlan) -> None:
    """The driver cannot tell everywhere: not each checkpoint can be read by it (`query_files`)."""
    query_id = _query_id()
    if None not in (query_id, plan.decided_query_id) and query_id != plan.decided_query_id:
        raise ConfigError(
            f"batches up to {plan.decided_batch_id} were written under the transactional id "
            f"{plan.driver.transactional_id} from another checkpoint (of query "
            f"{plan.decided_query_id}, now {query_id}), and records would be left out. Bring that "
            "checkpoint back, or choose another kafka.transactional.id for this one"
        )


def _with_first(first: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield from rest


def _task_context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None
    return context


# What both need


def check_schema(options: WriteOptions, schema: StructType) -> None:
    """Raises `ConfigError` before anything runs."""
    import pyarrow as pa
    from pyspark.sql.pandas.types import to_arrow_schema

    from millstream.pipelines.writing.encoding import make_encoder

    arrow = to_arrow_schema(schema, timezone="UTC")
    layout = Layout(options, arrow)
    if options.value_format != "raw":
        make_encoder(options, pa.schema([arrow.field(it) for it in layout.value_columns]))


def query_transactional_id(options: WriteOptions) -> str:
    """The driver's transactional id, the same for all runs of the query."""
    if options.transactional_id is not None:
        return options.transactional_id
    assert options.checkpoint_location is not None
    return f"millstream-{query_id(options.checkpoint_location)}"


def _decision_log(cluster: Cluster, transactional_id: str) -> DecisionLog:
    """Kept too: what has been read of the topic need not be read again."""
    key = (id(cluster), transactional_id)
    log = _logs.get(key)
    if log is None:
        log = _logs[key] = DecisionLog(cluster, transactional_id)
    return log


def _settling(
    options: WriteOptions, transactional_id: str, cluster: Cluster, timeout_ms: int
) -> Settling:
    return Settling(
        cluster,
        _decision_log(cluster, transactional_id),
        timeout_ms=timeout_ms,
        fail_on_loss=options.fail_on_data_loss,
    )


def _tasks_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskTransaction]:
    return [it.task for it in messages if isinstance(it, TaskMessage) and it.task is not None]


def _driver_of(messages: Sequence[WriterCommitMessage | None]) -> Transaction | None:
    return next((it.driver for it in messages if isinstance(it, TaskMessage)), None)
