"""Changes of the cluster, as intents: create this topic, shrink that in-sync set.

`ClusterActions` is what handlers, coordinators and replicas call. `LoggedActions` carries it out
over any home that commits records (`MetadataLog`): it decides on the newest image and commits. A
home with controllers of its own would send requests to them instead.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from millstream.broker.metadata.configs import Change, ConfigManager
from millstream.broker.metadata.outcomes import failures, settled
from millstream.broker.metadata.store import MetadataLog
from millstream.broker.metadata.topics import MorePartitions, NewTopic, TopicManager
from millstream.coordination.cluster import ClusterImage, PartitionImage, Resource, TopicImage
from millstream.coordination.cluster_features import FeatureUpdate, decide_updates, missing_features
from millstream.coordination.cluster_records import (
    MetadataRecord,
    ProducerIdsRecord,
)
from millstream.coordination.cluster_security import (
    QuotaEntity,
    ScramKey,
    decide_new_acls,
    decide_quotas,
    decide_removed_acls,
    decide_scram,
)
from millstream.coordination.replication import controller
from millstream.coordination.replication.controller import Proposal
from millstream.coordination.replication.reassignment import Target, reassign
from millstream.errors import ApiError, ErrorCode
from millstream.partitions import TopicPartition
from millstream.security.acls import AclEntry, AclFilter

if TYPE_CHECKING:
    from millstream.security.scram import ScramCredential

PRODUCER_ID_BLOCK = 1_000


class ClusterActions(Protocol):
    async def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicImage | ApiError]:
        """Create topics with different names at once. Each succeeds or fails individually."""
        ...

    async def create_partitions(
        self, topics: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> dict[str, ApiError | None]:
        """Extend topics with different names. Each succeeds (None) or fails individually."""
        ...

    async def delete_topics(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Delete the existing ones of these topics."""
        ...

    async def alter_configs(
        self, wanted: Mapping[Resource, Sequence[Change]], *, validate_only: bool
    ) -> dict[Resource, ApiError | None]:
        """Change some settings of resources; each as a whole (None) or not at all."""
        ...

    async def replace_configs(
        self, wanted: Mapping[Resource, Mapping[str, str]], *, validate_only: bool
    ) -> dict[Resource, ApiError | None]:
        """Make these settings all that the resources have set."""
        ...

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        """All of them or none. Raises `ApiError`."""
        ...

    async def allocate_producer_ids(self) -> range:
        """A block of unused producer ids."""
        ...

    async def create_acls(self, entries: Sequence[AclEntry]) -> None:
        """Create those that do not exist yet, all at once."""
        ...

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[AclEntry]]:
        """Delete what any of the filters matches, all at once; returns what each has matched."""
        ...

    async def alter_scram(
        self, changes: Mapping[ScramKey, ScramCredential | None]
    ) -> dict[str, ApiError | None]:
        """Set credentials, or remove them (None). Each user's succeed (None) or fail together."""
        ...

    async def create_first_users(self, users: Mapping[ScramKey, ScramCredential]) -> None:
        """Create these users of SCRAM, if there are none at all."""
        ...

    async def alter_quotas(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> None:
        """Set quotas, or remove them (None), all at once. Raises `ApiError` if that fails."""
        ...

    async def claim_leadership(self, bump_epoch: Iterable[tuple[str, int]] = ()) -> None:
        """See `TopicManager.claim_leadership`."""
        ...

    async def alter_partitions(
        self, proposals: Sequence[Proposal]
    ) -> list[PartitionImage | ApiError]:
        """Change in-sync sets, for the leader of these partitions. One outcome per proposal."""
        ...

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, ErrorCode]:
        """Elect the preferred replicas or, with `unclean`, any replica where there is no leader.
        If all partitions are meant (None), those that need no election are left out."""
        ...

    async def reassign_partitions(
        self, targets: Sequence[Target], *, may_change_factor: bool = True
    ) -> dict[TopicPartition, ApiError | None]:
        """Begin or cancel reassignments. Each is accepted (None) or refused."""
        ...

    async def withdraw(self, partitions: Sequence[tuple[uuid.UUID, int]]) -> None:
        """This broker cannot write these partitions: let others lead them, if they can, and leave
        their in-sync sets. Returns when it is committed."""
        ...

    async def unregister_broker(self, broker_id: int) -> None:
        """Forget a broker that does not run. Raises `ApiError`."""
        ...

    async def shut_down(self) -> None:
        """Hand over the leadership of all partitions that have another in-sync replica. Returns
        when it is committed."""
        ...


class LoggedActions:
    """The actions of one broker, over a home that commits records."""

    def __init__(self, log: MetadataLog, configs: ConfigManager, topics: TopicManager) -> None:
        self._log = log
        self._broker_id = configs.broker_id
        self.create_topics = topics.create
        self.create_partitions = topics.create_partitions
        self.delete_topics = topics.delete
        self.claim_leadership = topics.claim_leadership
        self.alter_configs = configs.alter
        self.replace_configs = configs.replace

    async def update_features(
        self, updates: Sequence[FeatureUpdate], *, validate_only: bool = False
    ) -> None:
        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            records = decide_updates(
                image.features,
                updates,
                controller_id=self._broker_id,
                brokers=image.broker_features,
            )
            return () if validate_only else records

        await self._log.change(decide)

    async def allocate_producer_ids(self) -> range:
        block = range(0)

        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            # The image after the commit may contain later blocks, of other brokers.
            nonlocal block
            block = range(image.next_producer_id, image.next_producer_id + PRODUCER_ID_BLOCK)
            return [ProducerIdsRecord(self._broker_id, self._broker_epoch(image), block.stop)]

        await self._log.change(decide)
        return block

    async def create_acls(self, entries: Sequence[AclEntry]) -> None:
        await self._log.change(lambda image: decide_new_acls(image.acls, entries))

    async def delete_acls(self, filters: Sequence[AclFilter]) -> list[list[AclEntry]]:
        matches: list[list[AclEntry]] = []

        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            nonlocal matches
            records, matches = decide_removed_acls(image.acls, filters)
            return records

        await self._log.change(decide)
        return matches

    async def alter_scram(
        self, changes: Mapping[ScramKey, ScramCredential | None]
    ) -> dict[str, ApiError | None]:
        outcome: dict[str, ApiError | None] = {}

        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            nonlocal outcome
            records, outcome = decide_scram(image.scram, changes)
            return records

        failed = await failures({user for user, _ in changes}, self._log.change(decide))
        return settled(outcome, failed)

    async def create_first_users(self, users: Mapping[ScramKey, ScramCredential]) -> None:
        def decide(image: ClusterImage) -> Sequence[MetadataRecord]:
            return () if image.scram else decide_scram({}, users)[0]

        await self._log.change(decide)

    async def alter_quotas(self, changes: Mapping[QuotaEntity, Mapping[str, float | None]]) -> None:
        await self._log.change(lambda image: decide_quotas(image.quotas, changes))

    def _broker_epoch(self, image: ClusterImage) -> int:
        broker = image.brokers.get(self._broker_id)
        return -1 if broker is None else broker.epoch

    async def alter_partitions(
        self, proposals: Sequence[Proposal]
    ) -> list[PartitionImage | ApiError]:
        errors: list[ApiError | None] = []

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            nonlocal errors
            epoch = self._broker_epoch(image)
            records, errors = controller.alter_partitions(image, self._broker_id, epoch, proposals)
            return records

        image = await self._log.change(decide)
        return [
            error or _partition_now(image, proposal)
            for error, proposal in zip(errors, proposals, strict=True)
        ]

    async def elect_leaders(
        self, partitions: Sequence[TopicPartition] | None, *, unclean: bool
    ) -> dict[TopicPartition, ErrorCode]:
        outcome: dict[TopicPartition, ErrorCode] = {}

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            nonlocal outcome
            wanted = _all_partitions(image) if partitions is None else partitions
            records, outcome = controller.elect(image, wanted, unclean=unclean)
            return records

        await self._log.change(decide)
        if partitions is not None:
            return outcome
        needless = ErrorCode.ELECTION_NOT_NEEDED
        return {key: error for key, error in outcome.items() if error is not needless}

    async def reassign_partitions(
        self, targets: Sequence[Target], *, may_change_factor: bool = True
    ) -> dict[TopicPartition, ApiError | None]:
        outcome: dict[TopicPartition, ApiError | None] = {}

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            nonlocal outcome
            refused: dict[TopicPartition, ApiError | None] = {}
            for target in targets:
                error = self._why_not_move(image, target, may_change_factor)
                if error is not None:
                    refused[target.topic, target.partition_id] = error
            accepted = [it for it in targets if (it.topic, it.partition_id) not in refused]
            records, outcome = reassign(image, accepted)
            outcome |= refused
            return records

        partitions = [(target.topic, target.partition_id) for target in targets]
        failed = await failures(partitions, self._log.change(decide))
        return settled(outcome, failed)

    def _why_not_move(
        self, image: ClusterImage, target: Target, may_change_factor: bool
    ) -> ApiError | None:
        topic = image.topics.get(target.topic)
        if target.replicas is None or topic is None:
            return None
        if not 0 <= target.partition_id < len(topic.partitions):
            return None
        partition = topic.partitions[target.partition_id]
        count = len(partition.replicas) - len(partition.adding_replicas)
        if not may_change_factor and len(target.replicas) != count:
            return ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"The replication factor is changed from {count} to {len(target.replicas)}",
            )
        if target.replicas != partition.replicas and not self._log.has_controller:
            return ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "This cluster does not replicate: partitions are moved to other workers when their "
                "number changes, while all are stopped.",
            )
        return None

    async def withdraw(self, partitions: Sequence[tuple[uuid.UUID, int]]) -> None:
        def decide(image: ClusterImage) -> list[MetadataRecord]:
            epoch = self._broker_epoch(image)
            return controller.withdraw(image, self._broker_id, epoch, partitions)

        if self._log.has_controller:
            await self._log.change(decide)

    async def unregister_broker(self, broker_id: int) -> None:
        def decide(image: ClusterImage) -> list[MetadataRecord]:
            records = controller.unregister(image, broker_id)
            if not self._log.has_controller:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "Workers are registered by `serve --workers`, which restarts those that end.",
                )
            # What only that broker did not support becomes active.
            others = [it for it in image.broker_features if it[0] != broker_id]
            return [*records, *missing_features(image.features, others)]

        await self._log.change(decide)

    async def shut_down(self) -> None:
        def decide(image: ClusterImage) -> list[MetadataRecord]:
            epoch = self._broker_epoch(image)
            return controller.shut_down(image, self._broker_id, epoch)

        if self._log.has_controller:
            await self._log.change(decide)


def _all_partitions(image: ClusterImage) -> list[TopicPartition]:
    return [
        (topic.name, index)
        for topic in image.topics.values()
        for index in range(len(topic.partitions))
    ]


def _partition_now(image: ClusterImage, proposal: Proposal) -> PartitionImage | ApiError:
    """The image may also contain later commits of other brokers: the topic may be deleted."""
    topic = image.topics_by_id.get(proposal.topic_id)
    return (
        topic.partitions[proposal.partition_id] if topic else ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    )
