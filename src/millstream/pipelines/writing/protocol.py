"""The exactly-once protocol for the batches of a query, shared by all writers.

    begin      begin the query's next transaction, which fences an older driver; complete the batch
               that was decided last, and abort everything that no decision names
    resume     only begin the next transaction: after a batch that was completed by this process,
               if no other driver has begun one since
    decide     commit the decision, with the offsets of the query's group, in that transaction
    complete   commit the transactions that the decision names, and abort all others
    reset      forget the last decision

Between `begin` and `decide`, tasks write rows in transactions of their own (`tasks.py`). A batch
that was decided must not be written again: `Begun.decided` is the last one.

If a store is among the outputs, its transaction decides, and the decision is in its progress. It is
copied to the decision topic before any of the tasks' transactions is committed: so the topic always
contains the last batch that consumers can see, also if the store is no longer an output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from millstream.client.cluster import Cluster
from millstream.client.transactions import FENCED, Transaction, begin_transaction
from millstream.errors import ApiError
from millstream.pipelines.offsets import Offsets
from millstream.pipelines.writing.clusters import (
    decision_timeout_ms,
    partition_count,
    transaction_timeout_ms,
)
from millstream.pipelines.writing.completing import Completer
from millstream.pipelines.writing.decisions import (
    NO_BATCH,
    Decision,
    DecisionLog,
    DriverEpoch,
    decide,
)
from millstream.pipelines.writing.options import WriteOptions
from millstream.pipelines.writing.tasks import task_prefix


@dataclass(frozen=True)
class Begun:
    """The driver's transaction, and the batch that was decided last."""

    driver: Transaction
    decided: Decision

    @property
    def epoch(self) -> DriverEpoch:
        return DriverEpoch(self.driver.producer_id, self.driver.epoch)


class BatchProtocol:
    """See the module; one thread at a time."""

    def __init__(self, options: WriteOptions, cluster: Cluster, log: DecisionLog) -> None:
        self._options = options
        self.cluster = cluster
        self._log = log
        self.task_timeout_ms = transaction_timeout_ms(options, cluster)
        self._completer = Completer(
            cluster,
            log,
            timeout_ms=self.task_timeout_ms,
            fail_on_loss=options.fail_on_data_loss,
        )

    @property
    def task_prefix(self) -> str:
        return task_prefix(self._log.transactional_id)

    def decided(self) -> Decision:
        """The last decision that is visible: another driver may be about to make the next."""
        self._log.create_topic()
        return self._log.committed().decision

    def begin(self, *, after: Transaction | None = None, stored: Decision | None = None) -> Begun:
        """With `after`, only if no other driver has begun since: else raises PRODUCER_FENCED.

        `stored` is the last decision of a store.
        """
        self._log.create_topic()
        driver = self._begin_transaction(after)
        state = self._log.latest(driver)
        if stored is not None and not state.decision.replaces(stored):
            self.decide(driver, stored)
            driver = self._begin_transaction(driver)  # its sequence numbers start over
            state = replace(state, decision=stored)
        if not state.is_completed:
            driver = self._completer.complete(driver, state.decision)
        self._completer.sweep(self.task_prefix)
        return Begun(driver, state.decision)

    def resume(self, driver: Transaction, decided: Decision) -> Begun | None:
        """None if another driver has begun a transaction since."""
        try:
            return Begun(self._begin_transaction(driver), decided)
        except ApiError as error:
            if error.code in FENCED:
                return None
            raise

    def decide(
        self,
        driver: Transaction,
        decision: Decision,
        until_durable: Callable[[], None] = lambda: None,
    ) -> None:
        """Raises PRODUCER_FENCED if another driver has begun; see `decisions.decide`."""
        decide(
            self.cluster,
            self._log,
            driver,
            decision,
            group_id=group_id(self._options, self._log.transactional_id),
            offsets=offsets_here(self._options, self.cluster, decision.ends),
            until_durable=until_durable,
        )

    def complete(self, driver: Transaction, decision: Decision) -> Transaction:
        """Return the driver's transaction, a new one if records had to be written again."""
        driver = self._completer.complete(driver, decision)
        self._completer.sweep(self.task_prefix, keep=decision.tasks)
        return driver

    def reset(self, begun: Begun) -> Begun:
        """Forget the last decision: the query starts over, with a new checkpoint."""
        nothing = Decision(NO_BATCH, driver=begun.epoch)
        self.decide(begun.driver, nothing)
        self._log.write_completed(nothing)
        return Begun(self._begin_transaction(begun.driver), nothing)

    def _begin_transaction(self, after: Transaction | None) -> Transaction:
        timeout_ms = decision_timeout_ms(self._options, self.cluster)
        return begin_transaction(self.cluster, self._log.transactional_id, timeout_ms, after=after)


def group_id(options: WriteOptions, transactional_id: str) -> str:
    """The group whose offsets show the query's progress."""
    named = f"millstream-{options.query_name}" if options.query_name else transactional_id
    return options.group_id or named


def offsets_here(options: WriteOptions, cluster: Cluster, ends: Offsets | None) -> Offsets:
    """The offsets to commit for the group: of topics in this cluster."""
    if ends is None or not options.commits_offsets:
        return {}
    needed: dict[str, int] = {}
    for topic, partition in sorted(ends):
        needed[topic] = partition + 1
    counts = {topic: partition_count(cluster, topic, it) for topic, it in needed.items()}
    return {it: offset for it, offset in ends.items() if it[1] < counts[it[0]]}
