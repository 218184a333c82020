"""Several outputs of one pipeline in one step: topics, and tables of one store.

Every task writes its rows for all topics in one transaction of its own, and leaves it open. Then
the batch is decided: with tables by the store's transaction, which holds the list of what is open,
without by a record in the topic of decisions. Then all are committed. Whoever comes after a crash
finds the decision, and completes it, or finds none, and aborts what is open: see `decisions.py`.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.client.transactions import FENCED, Transaction, begin_transaction
from millstream.errors import ApiError, ConfigError, MillstreamError
from millstream.pipelines.offsets import Offsets, to_json
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.outputs import rows_of
from millstream.pipelines.running.progress import GroupProgress
from millstream.pipelines.stores.store import drain
from millstream.pipelines.writing.batching import Batcher
from millstream.pipelines.writing.clusters import (
    cluster_for,
    decision_timeout_ms,
    make_cluster,
    transaction_timeout_ms,
)
from millstream.pipelines.writing.decisions import (
    Decision,
    DecisionLog,
    DriverEpoch,
    QueryState,
    TaskTransaction,
    decide,
    decode_decision,
    encode_decision,
)
from millstream.pipelines.writing.options import WriteOptions
from millstream.pipelines.writing.settling import Settling
from millstream.pipelines.writing.writer import query_transactional_id, task_prefix

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from millstream.pipelines.stores import Store, TableSpec

logger = logging.getLogger(__name__)


@dataclass
class _Run:
    """What one batch works with."""

    cluster: Cluster
    log: DecisionLog
    settling: Settling
    driver: Transaction
    decided: Decision


@dataclass
class FanOutSink:
    """See the module. `topics` and `tables` are by the names of the outputs."""

    query: str
    group_id: str
    topics: Mapping[str, WriteOptions]
    tables: Mapping[str, TableSpec]
    store: Store | None
    checkpoint: Checkpoint
    progress: GroupProgress
    _log: DecisionLog | None = None  # kept: what has been read of the topic is not read again
    _driver: Transaction | None = None  # the last that was begun
    _done: Decision | None = None  # the last batch, where nothing of it is left to be done
    _cluster: Cluster | None = None  # its own: Spark calls the sinks of a driver from many threads

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        end = self.checkpoint.durable_batch_end(batch_id)
        if self.tables:
            batch = batch.persist()
        try:
            self._write(batch, batch_id, end)
        except BaseException:
            self._recover_quietly()
            raise
        finally:
            if self.tables:
                batch.unpersist()
        self.progress.report(end)

    def recover(self) -> None:
        """Complete or abort what an earlier run has left."""
        self._begin()

    def _recover_quietly(self) -> None:
        """Unless another driver has taken over."""
        try:
            self._begin(after=self._driver)
        except (MillstreamError, OSError) as error:
            logger.warning("%s: the next run cleans up what is left: %s", self.query, error)

    def _write(self, batch: DataFrame, batch_id: int, end: Offsets) -> None:
        run = self._prepare()
        if batch_id <= run.decided.batch_id:
            self._skip(batch, Decision(batch_id, ends=end), run.decided)
            return
        decision = Decision(
            batch_id,
            tuple(self._write_topics(batch, run)),
            end,
            driver=DriverEpoch(run.driver.producer_id, run.driver.epoch),
        )
        if self.store is not None:
            self._write_tables(batch, decision)
        else:
            decide(run.cluster, run.log, run.driver, decision, group_id=self.group_id, offsets=end)
        self._driver = run.settling.settle(run.driver, decision)
        run.settling.sweep(self._prefix(run), keep=decision.tasks)
        self._done = decision

    def _skip(self, batch: DataFrame, found: Decision, decided: Decision) -> None:
        """A batch that is decided already, if it is the same one."""
        if (found.batch_id, found.ends) != (decided.batch_id, decided.ends):
            raise ConfigError(
                f"{self.query} wrote batch {decided.batch_id} up to {to_json(decided.ends or {})} "
                f"and comes now with batch {found.batch_id} up to {to_json(found.ends or {})}: its "
                "checkpoint has been set back. Restore it, or give the pipeline another name (and "
                "another kafka.transactional.id, if it sets one)"
            )
        if self.store is not None:
            self._write_tables(batch, found)  # unless they have it: there may have been none then
        else:
            drain(batch)

    def _prepare(self) -> _Run:
        """Leave nothing behind of earlier batches and drivers."""
        return self._go_on() or self._begin()

    def _go_on(self) -> _Run | None:
        """After a batch of ours, cleaned up behind; None where another has begun since."""
        done, self._done = self._done, None
        if done is None or self._cluster is None or self._log is None or self._driver is None:
            return None
        try:
            driver = begin_transaction(
                self._cluster,
                self._driver.transactional_id,
                decision_timeout_ms(self._options, self._cluster),
                after=self._driver,
            )
        except ApiError as error:
            if error.code in FENCED:
                return None
            raise
        self._driver = driver
        return _Run(self._cluster, self._log, self._settling(), driver, done)

    def _begin(self, after: Transaction | None = None) -> _Run:
        options = self._options
        cluster = self._cluster = self._cluster or make_cluster(options, "driver")
        transactional_id = query_transactional_id(options)
        log = self._log = self._log or DecisionLog(cluster, transactional_id)
        log.create_topic()
        driver = begin_transaction(
            cluster, transactional_id, decision_timeout_ms(options, cluster), after=after
        )
        state = self._state(log, driver)
        settling = self._settling()
        if not state.is_completed:
            driver = settling.settle(driver, state.decision)
        self._driver = driver
        run = _Run(cluster, log, settling, driver, state.decision)
        settling.sweep(self._prefix(run))
        return run

    def _settling(self) -> Settling:
        assert self._cluster is not None
        assert self._log is not None
        options = self._options
        return Settling(
            self._cluster,
            self._log,
            timeout_ms=transaction_timeout_ms(options, self._cluster),
            fail_on_loss=options.fail_on_data_loss,
        )

    @property
    def _options(self) -> WriteOptions:
        """What the outputs have in common is taken from the first."""
        return next(iter(self.topics.values()))

    def _state(self, log: DecisionLog, driver: Transaction) -> QueryState:
        """What has been decided, and completed: the store says the one, the topic the other.

        A decision in the topic that is the store's, or a later one, takes its place: records of
        transactions that timed out have been written again (`settling.py`), or the pipeline had no
        tables then.
        """
        state = log.latest(driver)
        if self.store is None:
            return state
        stored = self.store.progress(self.query)
        if stored is None or stored.decision is None:
            return state
        decision = decode_decision(stored.decision.encode())
        if state.decision.replaces(decision):
            return state
        return replace(state, decision=decision)

    @staticmethod
    def _prefix(run: _Run) -> str:
        return task_prefix(run.driver.transactional_id)

    def _write_topics(self, batch: DataFrame, run: _Run) -> list[TaskTransaction]:
        timeout_ms = transaction_timeout_ms(self._options, run.cluster)
        write = tagged_writer(dict(self.topics), self._prefix(run), timeout_ms)
        columns = [f"`{name}`" for name in self.topics]
        written = batch.select(*columns).mapInArrow(write, "task binary").collect()
        return [pickle.loads(row.task) for row in written]

    def _write_tables(self, batch: DataFrame, decision: Decision) -> None:
        assert self.store is not None
        self.store.write_many(
            [(rows_of(batch, name), table) for name, table in self.tables.items()],
            decision.batch_id,
            self.query,
            json.dumps(to_json(decision.ends or {})),
            decision=encode_decision(decision).decode(),
            begins=json.dumps(to_json(self.checkpoint.batch_start(decision.batch_id))),
        )


def tagged_writer(
    topics: Mapping[str, WriteOptions], prefix: str, timeout_ms: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """What a task does: write, leave the transaction open, and tell what it is."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        task = write_tagged(topics, prefix, timeout_ms, batches)
        if task is not None:
            yield pa.RecordBatch.from_pydict({"task": [pickle.dumps(task)]})

    return write


def write_tagged(
    topics: Mapping[str, WriteOptions],
    prefix: str,
    timeout_ms: int,
    batches: Iterator[pa.RecordBatch],
) -> TaskTransaction | None:
    """Write each struct column's rows to its topic; None if there are none."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    producer = RawProducer(cluster_for(next(iter(topics.values())), "task"))
    batchers: dict[str, Batcher] = {}
    try:
        for batch in batches:
            for name, rows in rows_by_output(batch):
                if producer.transaction is None:
                    attempt = f"{prefix}{context.partitionId()}-{context.attemptNumber()}"
                    producer.begin(attempt, timeout_ms)
                if name not in batchers:
                    options = topics[name]
                    batchers[name] = Batcher(options, cluster_for(options, "task"), producer)
                batchers[name].write([rows])
        if producer.transaction is None:
            return None
        return TaskTransaction(producer.transaction, tuple(producer.flush()))
    except BaseException:
        if producer.transaction is not None:
            producer.end(commit=False)
        raise


def rows_by_output(batch: pa.RecordBatch) -> Iterator[tuple[str, Any]]:
    """The rows of each output that has any."""
    import pyarrow as pa

    for name in batch.schema.names:
        column = batch.column(name)
        there = column.filter(column.is_valid())
        if len(there):
            yield name, pa.RecordBatch.from_struct_array(there)
