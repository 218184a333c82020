"""All outputs of a pipeline in one step: topics, and tables of one store.

Every task writes its rows for all topics in one transaction of its own, and leaves it open. Then
the batch is decided: with tables by the store's transaction, which contains the list of what is
open, without tables by a record in the decision topic. Then all of it is committed: `protocol.py`
has the steps, and completes or aborts what a crash has left.

Without topics, the store's transaction is all there is.

A deployed version (`versions/`) always has a store, whose transaction decides, and writes to topics
by its role: to private ones unless it is in force.
"""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from millstream.client.transactions import Transaction
from millstream.errors import ConfigError, MillstreamError, RoleChanged, Superseded, WriterFenced
from millstream.pipelines.offsets import DECISIONS_TOPIC, to_json
from millstream.pipelines.query_files import sync_batch_meanwhile
from millstream.pipelines.running.checkpoint import Checkpoint
from millstream.pipelines.running.outputs import rows_of
from millstream.pipelines.running.progress import GroupProgress
from millstream.pipelines.spec import ONLY
from millstream.pipelines.stores.store import drain
from millstream.pipelines.writing.clusters import make_cluster
from millstream.pipelines.writing.decisions import (
    NO_BATCH,
    Decision,
    DecisionLog,
    TaskTransaction,
    decode_decision,
    encode_decision,
)
from millstream.pipelines.writing.options import WriteOptions
from millstream.pipelines.writing.protocol import BatchProtocol, Begun
from millstream.pipelines.writing.tasks import TaggedRows, write_open

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from millstream.pipelines.stores import Store, TableSpec
    from millstream.pipelines.stores.spec import Role
    from millstream.pipelines.versions.roles import Roles, Targets

logger = logging.getLogger(__name__)

SWITCHES_MAX = 10  # during one batch

_START_OVER = (
    "write to other outputs under another name or version; or, to write all records once more to "
    "the same outputs, delete the checkpoint and start with allow_new_checkpoint "
    "(--allow-new-checkpoint)"
)


@dataclass
class FanOutSink:
    """See the module. `topics` and `tables` are by the names of the outputs."""

    query: str
    topics: Mapping[str, WriteOptions]
    tables: Mapping[str, TableSpec]
    store: Store | None
    checkpoint: Checkpoint
    progress: GroupProgress
    roles: Roles | None = None  # of a deployed version
    _protocol: BatchProtocol | None = None
    _driver: Transaction | None = None  # the last that was begun
    _done: Decision | None = None  # the last batch, if it is completed

    def __call__(self, batch: DataFrame, batch_id: int) -> None:
        ends = self.checkpoint.planned_end(batch_id)
        until_durable = sync_batch_meanwhile(self.checkpoint.location, batch_id)
        is_shared = bool(self.tables) and len(self.tables) + len(self.topics) > 1
        if is_shared:
            batch = batch.persist()
        try:
            if self.topics:
                self._write(batch, Decision(batch_id, ends=ends), until_durable)
            else:
                until_durable()
                self._write_tables(batch, Decision(batch_id, ends=ends))
                self.progress.report(ends)
        except Superseded as reason:  # as planned: the query ends without an error
            logger.info("%s ends: %s", self.query, reason)
            self.checkpoint.stop_query()
        except BaseException:
            self._recover_quietly()
            raise
        finally:
            if is_shared:
                batch.unpersist()

    def check_checkpoint(self, *, allow_new_checkpoint: bool = False) -> None:
        """Raises `ConfigError` if the checkpoint is not the one that the last batch was written
        from, unless it is new and may start from the beginning. Nobody is fenced by this."""
        if self.topics:
            self._check(self._connected().decided(), allow_new_checkpoint)
        written = self._in_store()
        if self._is_of_another_checkpoint(written) and not allow_new_checkpoint:
            raise self._new_checkpoint(written)

    def recover(self, *, allow_new_checkpoint: bool = False) -> None:
        """Take over from an earlier run, before the query starts: fence it, and complete or abort
        what it has left."""
        if self.store is not None:
            is_new = self._is_of_another_checkpoint(self._in_store())
            was_taken_over = (
                self.checkpoint.was_taken_over and self.store.last_batch(self.query) is None
            )
            if was_taken_over or (is_new and allow_new_checkpoint):
                self.store.forget(self.query)
            self.store.claim(self.query)
        if not self.topics:
            return
        begun = self._begin()
        self._check(begun.decided, allow_new_checkpoint)
        if self._is_of_another_checkpoint(begun.decided):
            begun = self._connected().reset(begun)
            self._driver = begun.driver
        self._done = begun.decided
        self._store_decided(begun.decided)

    def _store_decided(self, decided: Decision) -> None:
        """Bring the progress of a version into the store that ran before it was deployed."""
        if self.roles is None or self.tables or self.store is None:
            return
        if decided.batch_id != NO_BATCH and self.store.last_batch(self.query) is None:
            ends = json.dumps(to_json(decided.ends or {}))
            content = encode_decision(decided).decode()
            self.store.write_many([], decided.batch_id, self.query, ends, decision=content)

    def _check(self, decided: Decision, allow_new_checkpoint: bool) -> None:
        if decided.batch_id == NO_BATCH:
            self._check_nothing_was_decided()
        elif self._is_of_another_checkpoint(decided):
            if not allow_new_checkpoint:
                raise self._new_checkpoint(decided)
        elif self.checkpoint.batch_end(decided.batch_id) != decided.ends:
            raise ConfigError(
                f"{self.query} wrote batch {decided.batch_id} up to {to_json(decided.ends or {})}, "
                f"which its checkpoint {self.checkpoint.location} does not contain: it is older "
                f"than what was written. Restore the newer one, or {_START_OVER}"
            )

    def _is_of_another_checkpoint(self, written: Decision) -> bool:
        if written.batch_id == NO_BATCH or written.query_id is None:
            return False  # nothing is written, or it is unknown from where
        return written.query_id != self.checkpoint.query_id()

    def _new_checkpoint(self, written: Decision) -> ConfigError:
        return ConfigError(
            f"{self.query} wrote up to batch {written.batch_id} from another checkpoint than "
            f"{self.checkpoint.location} (query id {written.query_id}, now "
            f"{self.checkpoint.query_id() or 'a new one'}), and would write all records again. "
            f"Restore that checkpoint, or {_START_OVER}"
        )

    def _check_nothing_was_decided(self) -> None:
        """The decision topic has nothing of this query: it is new, or the topic was deleted."""
        batch_id = self.checkpoint.incomplete_batch()
        if batch_id is None or batch_id <= self.checkpoint.first_batch():
            return  # it has no batch before it that would be in the topic
        if self.store is not None and self.store.last_batch(self.query) is not None:
            return  # topics are new outputs
        raise ConfigError(
            f"{DECISIONS_TOPIC} contains nothing of {self.query}, which has completed batches in "
            f"{self.checkpoint.location}: the topic was deleted, or all outputs were replaced. It "
            f"is unknown whether batch {batch_id} was written. Run it with the outputs it had, or "
            f"{_START_OVER}"
        )

    def _recover_quietly(self) -> None:
        """Unless another driver has taken over."""
        if self._driver is None:
            return
        try:
            self._begin(after=self._driver)
        except (MillstreamError, OSError) as error:
            logger.warning("%s: the next run cleans up what is left: %s", self.query, error)

    def _write(
        self, batch: DataFrame, planned: Decision, until_durable: Callable[[], None]
    ) -> None:
        begun = self._resume() or self._begin()
        if planned.batch_id <= begun.decided.batch_id:
            until_durable()
            self._skip(batch, planned, begun.decided)
            self._done = begun.decided
            return
        begun, decision = self._write_by_role(batch, planned, begun, until_durable)
        protocol = self._connected()
        driver, self._done = protocol.decide(begun.driver, decision, until_durable)
        self._driver = protocol.complete(driver, self._done)

    def _write_by_role(
        self, batch: DataFrame, planned: Decision, begun: Begun, until_durable: Callable[[], None]
    ) -> tuple[Begun, Decision]:
        """Write to topics and tables; again if the versions were switched meanwhile."""
        for _ in range(SWITCHES_MAX):
            targets = self._targets()
            topics = self.topics if targets is None else targets.topics
            decision = Decision(
                planned.batch_id,
                tuple(self._write_topics(batch, topics)),
                planned.ends,
                self.checkpoint.query_id(),
                begun.epoch,
            )
            if self.store is None:
                return begun, decision
            until_durable()
            try:
                self._write_tables(batch, decision, None if targets is None else targets.role)
                return begun, decision
            except RoleChanged as change:
                logger.info("%s, batch %d: %s", self.query, planned.batch_id, change)
                begun = self._begin(after=begun.driver)
        raise ConfigError(f"{self.query} was switched {SWITCHES_MAX} times during one batch")

    def _targets(self) -> Targets | None:
        if self.roles is None:
            return None
        return self.roles.targets(self.topics, self._connected().cluster)

    def _skip(self, batch: DataFrame, found: Decision, decided: Decision) -> None:
        """A batch that is already decided, if it is the same one."""
        if (found.batch_id, found.ends) != (decided.batch_id, decided.ends):
            raise ConfigError(
                f"{self.query} wrote batch {decided.batch_id} up to {to_json(decided.ends or {})} "
                f"and now runs batch {found.batch_id} up to {to_json(found.ends or {})}: its "
                f"checkpoint {self.checkpoint.location} is older than what was written. "
                f"Restore the newer checkpoint, or {_START_OVER}"
            )
        if self.store is not None:
            self._write_tables(batch, decided)  # unless they have it: they may be new outputs
        if not self.tables:
            drain(batch)

    def _resume(self) -> Begun | None:
        """After a batch of this sink that is completed."""
        done, self._done = self._done, None
        if done is None or self._driver is None:
            return None
        begun = self._connected().resume(self._driver, done)
        if begun is None:
            raise WriterFenced(
                f"{self.query} was taken over by another run: stop one of the two. Nothing of this "
                "batch is written"
            )
        self._driver = begun.driver
        return begun

    def _begin(self, after: Transaction | None = None) -> Begun:
        begun = self._connected().begin(after=after, stored=self._stored_decision())
        self._driver = begun.driver
        return begun

    def _connected(self) -> BatchProtocol:
        """On connections of its own: Spark calls the sinks of a driver in many threads."""
        if self._protocol is None:
            options = next(iter(self.topics.values()))  # for what the outputs have in common
            cluster = make_cluster(options, "driver")
            assert options.transactional_id is not None
            log = DecisionLog(cluster, options.transactional_id)
            self._protocol = BatchProtocol(options, cluster, log)
        return self._protocol

    def _stored_decision(self) -> Decision | None:
        stored = None if self.store is None else self.store.progress(self.query)
        if stored is None or stored.decision is None:
            return None
        return decode_decision(stored.decision.encode())

    def _in_store(self) -> Decision:
        """The last batch in the store, and the checkpoint that it was written from."""
        stored = None if self.store is None else self.store.progress(self.query)
        if stored is None or stored.batch_id is None:
            return Decision(NO_BATCH)
        decision = self._stored_decision()
        query_id = None if decision is None else decision.query_id
        return Decision(stored.batch_id, query_id=query_id or stored.checkpoint)

    def _write_topics(
        self, batch: DataFrame, topics: Mapping[str, WriteOptions]
    ) -> list[TaskTransaction]:
        protocol = self._connected()
        write = task_writer(dict(topics), protocol.task_prefix, protocol.task_timeout_ms)
        if list(self.topics) != [ONLY]:
            batch = batch.select(*(f"`{name}`" for name in self.topics))
        written = batch.mapInArrow(write, "task binary").collect()
        return [pickle.loads(row.task) for row in written]

    def _write_tables(self, batch: DataFrame, decision: Decision, role: Role | None = None) -> None:
        assert self.store is not None
        self.store.write_many(
            [
                (batch if name == ONLY else rows_of(batch, name), table)
                for name, table in self.tables.items()
            ],
            decision.batch_id,
            self.query,
            json.dumps(to_json(decision.ends or {})),
            decision=encode_decision(decision).decode() if self.topics else None,
            begins=json.dumps(to_json(self.checkpoint.batch_start(decision.batch_id))),
            topic_ids=json.dumps(self.checkpoint.topic_ids(decision.batch_id)),
            role=role,
        )


def task_writer(
    topics: Mapping[str, WriteOptions], prefix: str, timeout_ms: int
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a task: write, leave the transaction open, and return its description."""

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        _, task = write_open(topics, prefix, timeout_ms, rows_by_output(topics, batches))
        if task is not None:
            yield pa.RecordBatch.from_pydict({"task": [pickle.dumps(task)]})

    return write


def rows_by_output(
    topics: Mapping[str, Any], batches: Iterator[pa.RecordBatch]
) -> Iterator[TaggedRows]:
    """The rows of each output that has any: the rows themselves, or a struct column for each."""
    import pyarrow as pa

    for batch in batches:
        if list(topics) == [ONLY]:
            yield ONLY, batch
            continue
        for name in batch.schema.names:
            column = batch.column(name)
            there = column.filter(column.is_valid())
            if len(there):
                yield name, pa.RecordBatch.from_struct_array(there)
