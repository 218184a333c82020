"""Verification of transactions with a coordinator on another broker.

A coordinator on this broker is asked in the turn of the append, and nothing comes between. The
answer of another broker takes a while, in which the transaction may end and its marker be written:
a batch appended after that would open a transaction that no marker ends. So each partition takes a
guard before the question is sent, any marker of the producer invalidates it, and the append needs a
valid one (KIP-890, KAFKA-14402).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from millstream.broker.coordinators.key_hash import partition_for
from millstream.broker.peers.leaders import leader_of
from millstream.coordination.cluster import TRANSACTIONS_TOPIC
from millstream.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from millstream.broker.metadata.configs import ConfigManager
    from millstream.broker.metadata.store import MetadataStore
    from millstream.broker.peers.verification import RemoteTransactions
    from millstream.broker.replicas.guards import VerificationGuard
    from millstream.broker.replicas.partition import Partition
    from millstream.coordination.transactions.shard import AddRequest
    from millstream.partitions import TopicPartition

RETRIES = 3

_UNREACHABLE = (
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
)


class Verdict:
    """What the coordinator said about some partitions. `check` it in the turn of the append, and
    `close` it after that."""

    def __init__(self, refused: ApiError | None = None, *, is_remote: bool = False) -> None:
        self.is_remote = is_remote  # else the coordinator is still to be asked, in the same turn
        self.refused = refused  # of all partitions
        self.errors: dict[tuple[str, int], ApiError] = {}
        self._guards: dict[Partition, VerificationGuard] = {}

    def guard(self, partitions: Iterable[Partition], producer_id: int) -> None:
        """Take new guards: call it before the coordinator is asked."""
        self.close()
        for partition in partitions:
            self._guards[partition] = partition.take_guard(producer_id)

    @property
    def is_valid(self) -> bool:
        return all(partition.is_valid(guard) for partition, guard in self._guards.items())

    def check(self, partition: Partition) -> None:
        """Raise `ApiError` unless the partition's transaction may be opened now."""
        if self.refused is not None:
            raise self.refused
        if not self.is_remote:
            return
        error = self.errors.get((partition.topic, partition.index))
        if error is not None:
            raise error
        guard = self._guards.get(partition)
        if guard is None:  # its transaction was open when the others were asked about
            raise ApiError(
                ErrorCode.CONCURRENT_TRANSACTIONS,
                f"a transaction ended in {partition.topic}-{partition.index}: retry",
            )
        if not partition.is_valid(guard):
            raise ApiError(
                ErrorCode.INVALID_TXN_STATE,
                f"the transaction ended in {partition.topic}-{partition.index} while it was "
                "verified",
            )

    def close(self) -> None:
        for partition, guard in self._guards.items():
            partition.guards.drop(guard)
        self._guards.clear()


class TransactionVerifier:
    """Asks the coordinators of other brokers about transactions in partitions of this one."""

    def __init__(
        self, metadata: MetadataStore, configs: ConfigManager, remote: RemoteTransactions
    ) -> None:
        self._metadata = metadata
        self._configs = configs
        self._remote = remote

    def is_elsewhere(self, transactional_id: str) -> bool:
        """Whether the coordinator of this id is another broker."""
        image = self._metadata.image
        count = image.partition_count_of(TRANSACTIONS_TOPIC)
        if not count:
            return False
        index = partition_for(transactional_id, count)
        return image.topics[TRANSACTIONS_TOPIC].partitions[index].leader != self._configs.broker_id

    async def ask(
        self, request: AddRequest, partitions: Iterable[Partition], *, adds: bool
    ) -> Verdict:
        """Let the coordinator verify the partitions, or add them to the transaction."""
        verdict = Verdict(is_remote=True)
        partitions = list(partitions)
        try:
            verdict.guard(partitions, request.producer.id)
            if adds or self._configs.current.transaction_partition_verification_enable:
                verdict.errors = await self._ask(request, adds=adds)
            for _ in range(RETRIES if adds else 0):
                if verdict.is_valid:
                    break
                # The coordinator adds partitions after the marker of the previous transaction,
                # which has the same epoch: it was probably that one. What it refused to add while
                # that transaction ended stays refused so: the client tries again.
                verdict.guard(partitions, request.producer.id)
                verdict.errors = await self._ask(request, adds=False) | verdict.errors
        except ApiError as error:
            code = error.code
            if code in _UNREACHABLE:
                code = ErrorCode.COORDINATOR_NOT_AVAILABLE
            verdict.refused = ApiError(code, error.message)
        except BaseException:
            verdict.close()
            raise
        return verdict

    async def _ask(self, request: AddRequest, *, adds: bool) -> dict[TopicPartition, ApiError]:
        image = self._metadata.image
        count = image.partition_count_of(TRANSACTIONS_TOPIC)
        index = partition_for(request.transactional_id, max(count, 1))
        return await self._remote.ask(
            leader_of(image, TRANSACTIONS_TOPIC, index),
            request.transactional_id,
            *request.producer,
            request.partitions,
            adds=adds,
        )
