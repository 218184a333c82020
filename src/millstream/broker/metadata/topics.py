"""Topics: created, deleted and extended in the metadata; the logs follow.

`TopicManager` decides the metadata changes of a request and commits them. `Reconciler` is
notified of all commits, and opens and deletes logs accordingly: the metadata is durable before the
logs change, so a crash between the two is repaired at the next start.

Errors have Kafka's codes and messages.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

from millstream.broker.metadata.configs import ConfigManager
from millstream.broker.metadata.outcomes import failures, settled
from millstream.broker.metadata.store import METADATA_TOPIC, MetadataLog
from millstream.config.broker import BrokerConfig
from millstream.config.topic import VERSION_OF_KEY
from millstream.coordination.cluster import (
    OFFSETS_TOPIC,
    SHARE_STATE_TOPIC,
    TRANSACTIONS_TOPIC,
    ClusterImage,
    ResourceType,
    TopicImage,
)
from millstream.coordination.cluster_records import (
    DIRECTORY_UNASSIGNED,
    ConfigRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from millstream.coordination.replication import placement
from millstream.errors import ApiError, ConfigError, ErrorCode

TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_PER_REQUEST_MAX = 50_000

_CONDITIONAL_APPEND = "millstream.conditional.append"
_LEGAL_NAME = re.compile(r"[a-zA-Z0-9._-]+")

Replicas: TypeAlias = tuple[int, ...]


class _Brokers(NamedTuple):
    """The brokers that can have replicas."""

    registered: frozenset[int]
    usable: dict[int, str | None]  # the racks of those that are neither fenced nor shutting down


class NewTopic(NamedTuple):
    """A topic to create; -1: the broker's default."""

    name: str
    partition_count: int = -1
    replication_factor: int = -1
    assignments: tuple[tuple[int, Replicas], ...] = ()  # partition, its replicas
    settings: Mapping[str, str | None] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class MorePartitions:
    """A topic to extend to `count` partitions, the new ones placed as `assignments` says."""

    name: str
    count: int
    assignments: tuple[Replicas, ...] | None = None


class TopicManager:
    def __init__(
        self, store: MetadataLog, configs: ConfigManager, random: Random | None = None
    ) -> None:
        """`random` decides where the replicas of new partitions go."""
        self._store = store
        self._random = random or Random()
        self._configs = configs
        # Topics whose names differ only in '.' and '_' would share the names of their metrics.
        self._by_unified_name: dict[str, str] = {}
        self._learn_names(ClusterImage(), store.image)
        store.subscribe(self._learn_names)

    def _learn_names(self, before: ClusterImage, now: ClusterImage) -> None:
        changes = now.changed_topics(before)
        for topic in changes.deleted:
            self._by_unified_name.pop(_unify(topic.name), None)
        for topic in changes.created:
            self._by_unified_name[_unify(topic.name)] = topic.name

    # Creating

    async def create(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, TopicImage | ApiError]:
        """Create topics with different names in one commit. Each succeeds or fails individually."""
        refused: dict[str, ApiError] = {}

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            refused.clear()
            records: list[MetadataRecord] = []
            new_names: dict[str, str] = {}
            brokers = self._brokers(image)
            for topic in topics:
                unified = _unify(topic.name)
                try:
                    _check_collision(topic.name, new_names.get(unified))
                    made = self._new_topic_records(image, brokers, topic)
                    if len(records) + len(made) > PARTITIONS_PER_REQUEST_MAX:
                        raise _too_many_partitions()
                except ApiError as error:
                    refused[topic.name] = error
                    continue
                records += made
                new_names[unified] = topic.name
            return records

        created: Mapping[str, TopicImage] = {}

        async def run() -> None:
            nonlocal created
            created = (await self._run(decide, validate_only)).topics

        failed = await failures([topic.name for topic in topics], run())
        if failed:
            return {**failed, **refused}
        return {topic.name: refused.get(topic.name) or created[topic.name] for topic in topics}

    async def auto_create(self, names: Iterable[str]) -> dict[str, TopicImage | ApiError]:
        """The topics; those that do not exist are created with the broker's defaults."""
        wanted = dict.fromkeys(names)
        missing = [name for name in wanted if name not in self._store.image.topics]
        created = await self.create([self.default_topic(name) for name in missing])
        # Another request may have created one of them first.
        return {name: self._store.image.topics.get(name) or created[name] for name in wanted}

    def default_topic(self, name: str) -> NewTopic:
        """The settings of an automatically created topic; internal topics have their own."""
        config = self._configs.current
        internal = _INTERNAL_SHAPES.get(name)
        return NewTopic(name) if internal is None else internal(config)

    def _new_topic_records(
        self, image: ClusterImage, brokers: _Brokers, topic: NewTopic
    ) -> list[MetadataRecord]:
        self._check_name(image, topic.name)
        settings = self._checked_settings(topic.settings)
        replicas = self._place_new(brokers, topic)
        topic_id = _new_topic_id(image)
        records: list[MetadataRecord] = [TopicRecord(topic.name, topic_id)]
        records += [
            ConfigRecord(ResourceType.TOPIC, topic.name, name, value)
            for name, value in settings.items()
        ]
        records += _new_partitions(image, brokers, topic_id, 0, replicas)
        return records

    def _check_name(self, image: ClusterImage, name: str) -> None:
        if name == METADATA_TOPIC:
            raise ApiError(
                ErrorCode.INVALID_REQUEST, f"Creation of internal topic {name} is prohibited."
            )
        validate_topic_name(name)
        if name in image.topics:
            raise ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        existing = self._by_unified_name.get(_unify(name))
        _check_collision(name, existing if existing in image.topics else None)

    def _checked_settings(self, settings: Mapping[str, str | None]) -> dict[str, str]:
        given = {name: value for name, value in settings.items() if value is not None}
        if len(given) < len(settings):
            nulls = sorted(settings.keys() - given.keys())
            raise ApiError(
                ErrorCode.INVALID_CONFIG,
                f"Null value not supported for topic configs: {','.join(nulls)}",
            )
        try:
            self._configs.check_topic_settings(given)
        except ConfigError as error:
            raise ApiError(ErrorCode.INVALID_CONFIG, str(error)) from error
        return given

    # Placing

    def _place_new(self, brokers: _Brokers, topic: NewTopic) -> list[Replicas]:
        if topic.assignments:
            return self._place_as_assigned(brokers, topic)
        config = self._configs.current
        factor, count = topic.replication_factor, topic.partition_count
        if factor < -1 or factor == 0:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                "Replication factor must be larger than 0, or -1 to use the default value.",
            )
        if count < -1 or count == 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                "Number of partitions was set to an invalid non-positive value.",
            )
        if count > PARTITIONS_PER_REQUEST_MAX:
            raise _too_many_partitions()
        if factor == -1:
            factor = config.default_replication_factor
        return self._place(brokers, config.num_partitions if count == -1 else count, factor)

    def _place(self, brokers: _Brokers, count: int, factor: int) -> list[Replicas]:
        try:
            return placement.place(brokers.usable, count, factor, self._random)
        except placement.TooFewBrokers as error:
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Unable to replicate the partition {factor} time(s): The target replication "
                f"factor of {factor} cannot be reached because only {error.usable} broker(s) "
                f"are {'registered' if error.usable == len(brokers.registered) else 'active'}.",
            ) from None

    def _place_as_assigned(self, brokers: _Brokers, topic: NewTopic) -> list[Replicas]:
        for given, what in (
            (topic.replication_factor, "replication factor"),
            (topic.partition_count, "numPartitions"),
        ):
            if given != -1:
                raise ApiError(
                    ErrorCode.INVALID_REQUEST,
                    f"A manual partition assignment was specified, but {what} was not set to -1.",
                )
        placed: dict[int, Replicas] = {}
        for index, replicas in topic.assignments:
            if index in placed:
                raise ApiError(
                    ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                    f"Found multiple manual partition assignments for partition {index}",
                )
            factor = len(next(iter(placed.values()))) if placed else len(replicas)
            self._check_replicas(brokers, index, replicas, factor)
            placed[index] = replicas
        if sorted(placed) != list(range(len(placed))):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "partitions should be a consecutive 0-based integer sequence",
            )
        return [placed[index] for index in range(len(placed))]

    def _check_replicas(
        self, brokers: _Brokers, index: int, replicas: Replicas, factor: int
    ) -> None:
        problem = None
        unknown = [broker for broker in sorted(replicas) if broker not in brokers.registered]
        if not replicas:
            problem = "an empty replica list."
        elif unknown:
            problem = f"broker {unknown[0]}, but no such broker is registered."
        elif len(set(replicas)) < len(replicas):
            twice = next(replica for replica in sorted(replicas) if replicas.count(replica) > 1)
            problem = f"the broker {twice} more than once."
        elif len(replicas) != factor:
            problem = (
                f"a partition with {len(replicas)} replica(s), but this is not consistent with "
                f"previous partitions, which have {factor} replica(s)."
            )
        if problem is not None:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"The manual partition assignment includes {problem}",
            )
        if not any(replica in brokers.usable for replica in replicas):
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                "All brokers specified in the manual partition assignment for partition "
                f"{index} are fenced or in controlled shutdown.",
            )

    def _brokers(self, image: ClusterImage) -> _Brokers:
        """Brokers for replicas. A lone broker is one of them before it is registered."""
        me = self._configs.broker_id
        usable = placement.usable_brokers(image.brokers.values()) or {me: None}
        return _Brokers(frozenset(image.brokers) | usable.keys(), usable)

    # Extending

    async def create_partitions(
        self, topics: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> dict[str, ApiError | None]:
        """Extend topics with different names. Each succeeds (None) or fails individually."""
        outcome: dict[str, ApiError | None] = {}

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            outcome.clear()
            records: list[MetadataRecord] = []
            for topic in topics:
                try:
                    records += self._more_partitions_records(image, topic)
                    outcome[topic.name] = None
                except ApiError as error:
                    outcome[topic.name] = error
            return records

        failed = await failures([topic.name for topic in topics], self._run(decide, validate_only))
        return settled(outcome, failed)

    def _more_partitions_records(
        self, image: ClusterImage, more: MorePartitions
    ) -> list[MetadataRecord]:
        topic = image.topics.get(more.name)
        if topic is None:
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        current = len(topic.partitions)
        added = more.count - current
        if added == 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS, f"Topic already has {current} partition(s)."
            )
        if added < 0:
            raise ApiError(
                ErrorCode.INVALID_PARTITIONS,
                f"The topic {more.name} currently has {current} partition(s); {more.count} would "
                "not be an increase.",
            )
        if added > PARTITIONS_PER_REQUEST_MAX:
            raise _too_many_partitions()
        _check_keys_may_move(image, more.name)
        factor = len(topic.partitions[0].replicas)
        brokers = self._brokers(image)
        replicas = self._place_more(brokers, more.assignments, current, added, factor)
        return _new_partitions(image, brokers, topic.id, current, replicas)

    def _place_more(
        self,
        brokers: _Brokers,
        given: tuple[Replicas, ...] | None,
        first: int,
        added: int,
        factor: int,
    ) -> Sequence[Replicas]:
        if given is None:
            return self._place(brokers, added, factor)
        if len(given) != added:
            raise ApiError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"Attempted to add {added} additional partition(s), but only {len(given)} "
                "assignment(s) were specified.",
            )
        for index, replicas in enumerate(given, first):
            self._check_replicas(brokers, index, replicas, factor)
        return given

    # Deleting and electing

    async def delete(self, topic_ids: Iterable[uuid.UUID]) -> None:
        """Delete the existing ones of these topics."""
        wanted = tuple(topic_ids)

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            return [
                RemoveTopicRecord(topic_id) for topic_id in wanted if topic_id in image.topics_by_id
            ]

        await self._store.change(decide)

    async def claim_leadership(self, bump_epoch: Iterable[tuple[str, int]] = ()) -> None:
        """At the start: lead all partitions that have a replica here and no leader.

        Those in `bump_epoch` get a new leader epoch in any case: after an unclean stop offsets may
        be used again, and a new epoch lets clients notice.
        """
        unclean = frozenset(bump_epoch)
        me = self._configs.broker_id

        def decide(image: ClusterImage) -> list[MetadataRecord]:
            return [
                PartitionChangeRecord(index, topic.id, leader=me, isr=(me,))
                for topic in image.topics.values()
                for index, partition in enumerate(topic.partitions)
                if me in partition.replicas
                and (partition.leader < 0 or (topic.name, index) in unclean)
            ]

        await self._store.change(decide)

    async def _run(
        self, decide: Callable[[ClusterImage], list[MetadataRecord]], validate_only: bool
    ) -> ClusterImage:
        """The image after the decision; with `validate_only` nothing is committed."""
        if validate_only:
            image = self._store.image
            return image.apply(decide(image), image.version)
        return await self._store.change(decide)


def validate_topic_name(name: str) -> None:
    """Kafka's rules. Raises `ApiError`."""
    problem = None
    if not name:
        problem = "the empty string is not allowed"
    elif name in (".", ".."):
        problem = f"'{name}' is not allowed"
    elif len(name) > TOPIC_NAME_LENGTH_MAX:
        problem = (
            f"the length of '{name}' is longer than the max allowed length {TOPIC_NAME_LENGTH_MAX}"
        )
    elif not _LEGAL_NAME.fullmatch(name):
        problem = (
            f"'{name}' contains one or more characters other than ASCII alphanumerics, '.', '_' "
            "and '-'"
        )
    if problem is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"Topic name is invalid: {problem}")


def _check_collision(name: str, existing: str | None) -> None:
    if existing is not None and existing != name:
        raise ApiError(
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            f"Topic '{name}' collides with existing topic: {existing}",
        )


def _check_keys_may_move(image: ClusterImage, name: str) -> None:
    """Refuse where each partition has the versions of its keys: in another partition, a key would
    start again at version 0, and what its first record has claimed could be claimed again."""
    if image.topic_overrides(name).get(_CONDITIONAL_APPEND) == VERSION_OF_KEY:
        raise ApiError(
            ErrorCode.INVALID_PARTITIONS,
            f"Topic '{name}' has {_CONDITIONAL_APPEND}={VERSION_OF_KEY}, and more partitions would "
            "move its keys to partitions that do not have their versions. Create another topic "
            "with more partitions, and copy the records of each key to it in order.",
        )


def _unify(name: str) -> str:
    return name.replace(".", "_")


def _new_topic_id(image: ClusterImage) -> uuid.UUID:
    """A random id. Kafka's tools cannot name one whose text begins with a dash."""
    while True:
        topic_id = uuid.uuid4()
        if topic_id.bytes[0] >> 2 != _DASH and topic_id not in image.topics_by_id:
            return topic_id


_DASH = 62  # the value of '-' in the base 64 that Kafka writes ids in


def _new_partitions(
    image: ClusterImage,
    brokers: _Brokers,
    topic_id: uuid.UUID,
    first: int,
    placed: Iterable[Replicas],
) -> list[MetadataRecord]:
    """Partitions from the index `first` on, in sync on all their usable replicas."""
    usable = brokers.usable
    only_directory: dict[int, uuid.UUID] = {}
    records: list[MetadataRecord] = []
    for index, replicas in enumerate(placed, first):
        for broker_id in replicas:
            if broker_id not in only_directory:
                only_directory[broker_id] = _only_directory(image, broker_id)
        isr = tuple([broker_id for broker_id in replicas if broker_id in usable])
        records.append(
            PartitionRecord(
                partition_id=index,
                topic_id=topic_id,
                replicas=replicas,
                isr=isr,
                leader=isr[0],
                directories=tuple([only_directory[broker_id] for broker_id in replicas]),
            )
        )
    return records


def _only_directory(image: ClusterImage, broker_id: int) -> uuid.UUID:
    """The log directory, if the broker has only one."""
    broker = image.brokers.get(broker_id)
    if broker is None or len(broker.directories) != 1:
        return DIRECTORY_UNASSIGNED
    return broker.directories[0]


def _too_many_partitions() -> ApiError:
    return ApiError(
        ErrorCode.POLICY_VIOLATION,
        "Excessively large number of partitions per request: at most "
        f"{PARTITIONS_PER_REQUEST_MAX} can be created at once.",
    )


def _offsets_topic(config: BrokerConfig) -> NewTopic:
    return NewTopic(
        OFFSETS_TOPIC,
        config.offsets_topic_num_partitions,
        config.offsets_topic_replication_factor,
        settings={
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        },
    )


def _transactions_topic(config: BrokerConfig) -> NewTopic:
    return NewTopic(
        TRANSACTIONS_TOPIC,
        config.transaction_state_log_num_partitions,
        config.transaction_state_log_replication_factor,
        settings={
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        },
    )


def _share_state_topic(config: BrokerConfig) -> NewTopic:
    return NewTopic(
        SHARE_STATE_TOPIC,
        config.share_coordinator_state_topic_num_partitions,
        config.share_coordinator_state_topic_replication_factor,
        settings={
            "cleanup.policy": "delete",
            "compression.type": "producer",
            "min.insync.replicas": str(config.share_coordinator_state_topic_min_isr),
            "retention.ms": "-1",
            "segment.bytes": str(config.share_coordinator_state_topic_segment_bytes),
        },
    )


_INTERNAL_SHAPES: Mapping[str, Callable[[BrokerConfig], NewTopic]] = {
    OFFSETS_TOPIC: _offsets_topic,
    TRANSACTIONS_TOPIC: _transactions_topic,
    SHARE_STATE_TOPIC: _share_state_topic,
}
