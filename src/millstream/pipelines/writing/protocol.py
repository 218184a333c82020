"""The exactly-once protocol for the batches of a query, shared by all writers.

    begin      take over: begin the query's next transaction, which fences an older driver, and
               become its owner; complete the batch that was decided last, and abort everything that
               no decision names
    resume     only begin the next transaction: after a batch that was completed by this process,
               if no other driver has taken over since
    decide     commit the decision, with the offsets of the query's group, in that transaction
    complete   commit the transactions that the decision names, and abort all others
    reset      forget the last decision

Between `begin` and `decide`, tasks write rows in transactions of their own (`tasks.py`). A batch
that was decided must not be written again: `Begun.decided` is the last one.

A driver is fenced by another one, but also if its transaction times out, or if a repeated
InitProducerId of its own arrives late. The decision topic therefore names the query's owner, the
driver that took over last. A fenced driver continues if it is still the owner.

If a store is among the outputs, its transaction decides, and the decision is in its progress. It is
copied to the decision topic before any of the tasks' transactions is committed: so the topic always
contains the last batch that consumers can see, also if the store is no longer an output.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import uuid4

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

CLAIM_ATTEMPTS = 5  # of drivers that start at the same time and fence each other


@dataclass(frozen=True)
class Begun:
    """The driver's transaction, and the batch that was decided last."""

    driver: Transaction
    decided: Decision

    @property
    def epoch(self) -> DriverEpoch:
        return DriverEpoch(self.driver.producer_id, self.driver.epoch)


class Decided(NamedTuple):
    """The driver's transaction, and the decision as it was made: in a later transaction than that
    of the batch if the driver was fenced and continued."""

    driver: Transaction
    decision: Decision


class BatchProtocol:
    """See the module; one thread at a time. `owner` is given if another process of this driver has
    taken over for it."""

    def __init__(
        self, options: WriteOptions, cluster: Cluster, log: DecisionLog, owner: str | None = None
    ) -> None:
        self.owner = owner or uuid4().hex
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
        """Take over. With `after`, a transaction of this driver, only if it is still the owner:
        else raises PRODUCER_FENCED.

        `stored` is the last decision of a store.
        """
        self._log.create_topic()
        driver = self._take_over() if after is None else self._begin_next(after)
        state = self._log.latest(driver)
        if stored is not None and not state.decision.replaces(stored):
            driver, stored = self.decide(driver, stored)
            driver = self._begin_next(driver)  # its sequence numbers start over
            state = replace(state, decision=stored)
        if not state.is_completed:
            driver = self._complete(driver, state.decision)
        self._completer.sweep(self.task_prefix)
        return Begun(driver, state.decision)

    def resume(self, driver: Transaction, decided: Decision) -> Begun | None:
        """None if another driver has taken over since."""
        try:
            return Begun(self._begin_next(driver), decided)
        except ApiError as error:
            if error.code in FENCED:
                return None
            raise

    def decide(
        self,
        driver: Transaction,
        decision: Decision,
        until_durable: Callable[[], None] = lambda: None,
    ) -> Decided:
        """Raises PRODUCER_FENCED if another driver has taken over; see `decisions.decide`.

        Returns what to complete.
        """
        try:
            self._decide(driver, decision, until_durable)
        except ApiError as error:
            driver = self._continue_after(error)
            if self._log.latest(driver).decision != decision:
                decision = replace(decision, driver=DriverEpoch(driver.producer_id, driver.epoch))
                self._decide(driver, decision, until_durable)
        return Decided(driver, decision)

    def _decide(
        self, driver: Transaction, decision: Decision, until_durable: Callable[[], None]
    ) -> None:
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
        driver = self._complete(driver, decision)
        self._completer.sweep(self.task_prefix, keep=decision.tasks)
        return driver

    def _complete(self, driver: Transaction, decision: Decision) -> Transaction:
        try:
            return self._completer.complete(driver, decision)
        except ApiError as error:
            driver = self._continue_after(error)
            # Without the transactions whose records have been written again.
            return self._completer.complete(driver, self._log.latest(driver).decision)

    def reset(self, begun: Begun) -> Begun:
        """Forget the last decision: the query starts over, with a new checkpoint."""
        driver, nothing = self.decide(begun.driver, Decision(NO_BATCH, driver=begun.epoch))
        self._log.write_completed(nothing)
        return Begun(self._begin_next(driver), nothing)

    # Fencing

    def _take_over(self) -> Transaction:
        """Fence the driver before this one, and become the owner."""
        for attempt in range(1, CLAIM_ATTEMPTS + 1):
            try:
                driver = self._begin_transaction()
                self._log.write_owner(driver, self.owner)
                return self._begin_next(driver)  # when all can read who the owner is
            except ApiError as error:
                if error.code not in FENCED or attempt == CLAIM_ATTEMPTS:
                    raise
        raise AssertionError("unreachable")

    def _begin_next(self, driver: Transaction) -> Transaction:
        try:
            return self._begin_transaction(after=driver)
        except ApiError as error:
            return self._continue_after(error)

    def _continue_after(self, error: ApiError) -> Transaction:
        """Begin again if the error is that this driver was fenced and it is still the owner; else
        raise the error."""
        if error.code not in FENCED or self._log.committed().owner != self.owner:
            raise error
        driver = self._begin_transaction()
        # A driver that took over in between is fenced now; it will continue.
        if self._log.latest(driver).owner != self.owner:
            raise error
        return driver

    def _begin_transaction(self, after: Transaction | None = None) -> Transaction:
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
