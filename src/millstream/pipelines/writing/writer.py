"""`df.write.format("millstream")` and `df.writeStream.format("millstream")`.

A stream is written exactly once by default. Spark creates a writer for every batch, in two
processes of the driver and in every task. Between them, the only state is on the brokers, in the
checkpoint and in the messages that tasks send back:

    driver   the writer is pickled for the tasks     `BatchProtocol.begin` or `resume`
             (`_prepare`)
    task     write()                                 write in a transaction of its own, leave it
                                                     open, and describe it in the message
    driver   commit()                                `BatchProtocol.decide` and `complete`
    driver   abort()                                 `BatchProtocol.begin`: it completes the batch
                                                     if it is decided, and aborts it if not

Every message contains the transaction that the driver began, and the decision is made in it: a
driver that has been superseded since is fenced. See `protocol.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from millstream.client.cluster import Cluster
from millstream.client.transactions import FENCED, Transaction, end_transactions
from millstream.errors import ApiError, ConfigError, ErrorCode, MillstreamError
from millstream.pipelines.offsets import Offsets, to_json
from millstream.pipelines.query_files import (
    QUERY_ID_PROPERTY,
    batch_ends,
    is_committed_here,
    newest_local_batch,
    query_id,
    sync_batch_meanwhile,
)
from millstream.pipelines.spec import ONLY
from millstream.pipelines.workers import freeze_imports
from millstream.pipelines.writing.batching import Layout
from millstream.pipelines.writing.clusters import cluster_for, transaction_timeout_ms
from millstream.pipelines.writing.completing import Completer
from millstream.pipelines.writing.decisions import (
    Decision,
    DecisionLog,
    DriverEpoch,
    TaskTransaction,
)
from millstream.pipelines.writing.options import EXACTLY_ONCE, WriteOptions
from millstream.pipelines.writing.protocol import BatchProtocol, group_id, offsets_here
from millstream.pipelines.writing.tasks import (
    task_context,
    task_prefix,
    write_at_least_once,
    write_open,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

BATCH_ID_PROPERTY = "streaming.sql.batchId"

_logs: dict[tuple[Any, ...], DecisionLog] = {}
_prepared: dict[str, PreparedBatch] = {}  # by the query's transactional id


@dataclass
class TaskMessage(WriterCommitMessage):
    """What a task tells the driver."""

    row_count: int
    task: TaskTransaction | None = None  # None if nothing was written
    plan: BatchPlan | None = None
    is_skipped: bool = False  # the batch had been decided before
    query_id: str | None = None


@dataclass(frozen=True)
class BatchPlan:
    """What the driver tells the tasks of one batch."""

    driver: Transaction
    decided_batch_id: int
    decided_query_id: str | None  # whose batch that was; None where it is this query's, or of old
    timeout_ms: int
    owner: str  # see `protocol.py`

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
            return TaskMessage(write_at_least_once(self._options, iterator))
        prefix = task_prefix(self._job_id)
        return TaskMessage(*_write_open(self._options, prefix, self._timeout_ms, iterator))

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
        log = DecisionLog(cluster, self._job_id)
        Completer(cluster, log, timeout_ms=self._timeout_ms).sweep(
            task_prefix(self._job_id), keep=tasks
        )


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
        freeze_imports("prepare a batch")
        return self.__dict__

    def _prepare(self) -> BatchPlan:
        transactional_id = query_transactional_id(self._options)
        plan = self._resume(transactional_id) or self._begin(transactional_id)
        location = self._options.checkpoint_location
        assert location is not None
        batch_id = newest_local_batch(location)
        if batch_id is not None:
            ends = batch_ends(location, batch_id)
            _prepared[transactional_id] = PreparedBatch(location, batch_id, ends, plan)
        return plan

    def _resume(self, transactional_id: str) -> BatchPlan | None:
        """After a batch that this process prepared and that is completed. None if it is not, or if
        another process has begun a transaction since: another driver, or the one that commits, in
        order to write records again."""
        last = _prepared.pop(transactional_id, None)
        if last is None or not last.is_done():
            return None
        decided_batch_id = max(last.batch_id, last.plan.decided_batch_id)
        protocol = self._protocol(transactional_id, last.plan.owner)
        begun = protocol.resume(last.plan.driver, Decision(decided_batch_id))
        if begun is None:
            return None
        return replace(
            last.plan,
            driver=begun.driver,
            decided_batch_id=decided_batch_id,
            decided_query_id=None,
        )

    def _begin(self, transactional_id: str) -> BatchPlan:
        protocol = self._protocol(transactional_id)
        begun = protocol.begin()
        decided = begun.decided
        self._check_same_batch(decided)
        return BatchPlan(
            begun.driver,
            decided.batch_id,
            decided.query_id,
            protocol.task_timeout_ms,
            protocol.owner,
        )

    def _protocol(self, transactional_id: str, owner: str | None = None) -> BatchProtocol:
        cluster = cluster_for(self._options, "driver")
        log = _decision_log(cluster, transactional_id)
        return BatchProtocol(self._options, cluster, log, owner)

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
                "again what comes after it, give the query another name with kafka.transactional.id"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        plan = self._plan
        if plan is None:
            return TaskMessage(write_at_least_once(self._options, iterator))
        if _batch_id() <= plan.decided_batch_id:
            _check_same_query(plan)
            for _ in iterator:
                pass
            return TaskMessage(0, plan=plan, is_skipped=True)
        count, task = _write_open(self._options, plan.task_prefix, plan.timeout_ms, iterator)
        return TaskMessage(count, task, plan, query_id=_query_id())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        if self._options.delivery != EXACTLY_ONCE:
            self._commit_offsets(batchId)
            return
        known = [it for it in messages if isinstance(it, TaskMessage)]
        if any(it.is_skipped for it in known):
            return
        plan = _plan_of(messages)
        assert plan is not None, "Spark runs at least one task for every batch"
        driver = plan.driver
        ends, until_durable = self._batch_ends(batchId)
        decision = Decision(
            batchId,
            tuple(_tasks_of(messages)),
            ends,
            next((it.query_id for it in known), None),
            DriverEpoch(driver.producer_id, driver.epoch),
        )
        protocol = self._protocol(driver.transactional_id, plan.owner)
        protocol.complete(*protocol.decide(driver, decision, until_durable))
        freeze_imports("commit a batch")

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 Spark's name
        """Also called if `commit` has raised: then the batch may have been decided."""
        plan = _plan_of(messages)
        if self._options.delivery != EXACTLY_ONCE or plan is None:
            return  # the next batch aborts what failed tasks have left open
        try:
            protocol = self._protocol(plan.driver.transactional_id, plan.owner)
            protocol.begin(after=plan.driver)
        except ApiError as error:
            if error.code not in FENCED:
                raise
            logger.warning("batch %d is another driver's now", batchId)
            # The other driver may not sweep soon. If the batch has been decided after all, it finds
            # these aborted and writes their records again.
            cluster = cluster_for(self._options, "driver")
            end_transactions(cluster, [it.transaction for it in _tasks_of(messages)], commit=False)

    # Progress, as a group's offsets

    def _batch_ends(self, batch_id: int) -> tuple[Offsets | None, Callable[[], None]]:
        """Where the batch ends in its sources, and what to call to have that be durable."""
        location = self._options.checkpoint_location
        if location is None:
            return None, lambda: None
        ends = batch_ends(location, batch_id)
        if ends is not None:
            return ends, sync_batch_meanwhile(location, batch_id)
        if self._options.delivery == EXACTLY_ONCE:
            raise ConfigError(
                f"offsets/{batch_id} of the checkpoint {location} cannot be read in Python, and "
                "without it a batch that is repeated is not recognised. Install libhdfs for "
                "hdfs://, set AWS_* for s3a://, write with a pipeline, which reads it through "
                "Spark, or set delivery=at-least-once"
            )
        logger.warning("offsets/%d cannot be read: no progress is shown", batch_id)
        return None, lambda: None

    def _commit_offsets(self, batch_id: int) -> None:
        """At least once: after the batch, and not with it."""
        cluster = cluster_for(self._options, "driver")
        ends, until_durable = self._batch_ends(batch_id)
        offsets = offsets_here(self._options, cluster, ends)
        until_durable()
        if offsets:
            from millstream.pipelines.running.progress import GroupProgress

            options = self._options
            group = group_id(options, query_transactional_id(options))
            progress = GroupProgress(options.bootstrap_servers, group, security=options.security)
            progress.report(offsets)
            progress.close()


# What tasks do


def _write_open(
    options: WriteOptions, prefix: str, timeout_ms: int, batches: Iterator[pa.RecordBatch]
) -> tuple[int, TaskTransaction | None]:
    return write_open({ONLY: options}, prefix, timeout_ms, ((ONLY, batch) for batch in batches))


def _batch_id() -> int:
    text = task_context().getLocalProperty(BATCH_ID_PROPERTY)
    if text is None:
        raise MillstreamError(f"Spark did not pass the batch id to this task ({BATCH_ID_PROPERTY})")
    return int(text)


def _query_id() -> str | None:
    found: str | None = task_context().getLocalProperty(QUERY_ID_PROPERTY)
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


def _tasks_of(messages: Sequence[WriterCommitMessage | None]) -> list[TaskTransaction]:
    return [it.task for it in messages if isinstance(it, TaskMessage) and it.task is not None]


def _plan_of(messages: Sequence[WriterCommitMessage | None]) -> BatchPlan | None:
    return next((it.plan for it in messages if isinstance(it, TaskMessage)), None)
