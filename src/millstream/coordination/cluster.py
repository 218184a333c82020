"""The cluster's metadata: an immutable image at a version, and how records change it.

An image holds what all brokers agree on: brokers, topics with their partitions, settings, feature
levels, the producer ids given away, access control, credentials and quotas, and records of Kafka's
that are carried as bytes. `apply` makes the next image from records; every store of the metadata (a
local log, a snapshot, a watch) uses it, so there is one path into each state.

An old and a new image share what did not change, so two images can be compared by identity:
`changed_topics` does, and costs a dictionary walk.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from millstream.coordination.cluster_carried import CarriedDraft, CarriedKey, CarriedRecord
from millstream.coordination.cluster_records import (
    UNCHANGED_LEADER,
    AbortTransactionRecord,
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
    UnregisterBrokerRecord,
    decode_record,
)
from millstream.coordination.cluster_security import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    QuotaEntity,
    RemoveAccessControlEntryRecord,
    RemoveUserScramCredentialRecord,
    ScramKey,
    SecurityDraft,
    SecurityImage,
    SecurityRecord,
    UserScramCredentialRecord,
)
from millstream.coordination.record_codec import CorruptRecord
from millstream.security.acls import AclEntry

if TYPE_CHECKING:
    from millstream.security.scram import ScramCredential

OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTIONS_TOPIC = "__transaction_state"
SHARE_STATE_TOPIC = "__share_group_state"
INTERNAL_TOPICS = frozenset({OFFSETS_TOPIC, TRANSACTIONS_TOPIC, SHARE_STATE_TOPIC})

RECOVERED = 0
RECOVERING = 1
"""States of a leader: one that was elected uncleanly is recovering until it changes its in-sync
set for the first time."""

_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class ResourceType(IntEnum):
    """Types of resources with settings, with their numbers in the protocol and the metadata log."""

    UNKNOWN = 0
    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Resource(NamedTuple):
    type: ResourceType
    name: str  # a broker's is its id, or empty for the default of all brokers

    @classmethod
    def of(cls, number: int, name: str) -> Resource:
        """From a request; an unknown type is UNKNOWN."""
        is_known = number in ResourceType._value2member_map_
        return cls(ResourceType(number) if is_known else ResourceType.UNKNOWN, name)


class BrokerImage(NamedTuple):
    """A broker as it registered last."""

    id: int
    epoch: int
    incarnation_id: uuid.UUID
    endpoints: tuple[BrokerEndpoint, ...]
    features: tuple[BrokerFeature, ...] = ()
    rack: str | None = None
    fenced: bool = False
    directories: tuple[uuid.UUID, ...] = ()
    in_controlled_shutdown: bool = False

    @property
    def is_active(self) -> bool:
        """Whether it can lead partitions and join in-sync sets."""
        return not self.fenced and not self.in_controlled_shutdown

    def endpoint(self, listener: str) -> BrokerEndpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.name == listener), None)


class PartitionImage(NamedTuple):
    """A partition: its replicas and its leader."""

    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    leader: int
    leader_epoch: int
    partition_epoch: int
    directories: tuple[uuid.UUID, ...] = ()
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    leader_recovery_state: int = RECOVERED


class TopicImage(NamedTuple):
    """A topic with its partitions, in order."""

    name: str
    id: uuid.UUID
    partitions: tuple[PartitionImage, ...]

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


class TopicChanges(NamedTuple):
    created: tuple[TopicImage, ...]
    changed: tuple[tuple[TopicImage, TopicImage], ...]  # before, after
    deleted: tuple[TopicImage, ...]


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """All metadata at one version. The mappings are immutable; `apply` creates new ones."""

    version: int = -1  # incremented with every commit; -1 is the empty image
    brokers: Mapping[int, BrokerImage] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[uuid.UUID, TopicImage] = field(default_factory=dict)
    configs: Mapping[Resource, Mapping[str, str]] = field(default_factory=dict)
    features: Mapping[str, int] = field(default_factory=dict)  # 0: switched off
    next_producer_id: int = 0
    acls: Mapping[uuid.UUID, AclEntry] = field(default_factory=dict)
    scram: Mapping[ScramKey, ScramCredential] = field(default_factory=dict)
    quotas: Mapping[QuotaEntity, Mapping[str, float]] = field(default_factory=dict)
    carried: Mapping[CarriedKey, bytes] = field(default_factory=dict)
    # Changes since one earlier version, so that comparing with it needs no iteration.
    since: int = field(default=-1, compare=False)
    touched_topics: frozenset[uuid.UUID] = field(default=frozenset(), compare=False)

    def apply(self, records: Iterable[MetadataRecord], version: int) -> ClusterImage:
        """The image after these records, which belong together, at `version`."""
        draft = _Draft(self)
        for record in records:
            draft.replay(record)
        return draft.finish(version)

    def config(self, type: ResourceType, name: str) -> Mapping[str, str]:
        """The settings of one resource, without inherited ones."""
        return self.configs.get(Resource(type, name), _NOTHING)

    def topic_overrides(self, topic: str) -> Mapping[str, str]:
        return self.config(ResourceType.TOPIC, topic)

    def partition_count_of(self, topic: str) -> int:
        """The number of partitions; 0 for an unknown topic."""
        image = self.topics.get(topic)
        return len(image.partitions) if image is not None else 0

    def partition(self, topic: str | uuid.UUID, index: int) -> PartitionImage | None:
        """By the topic's name or id; None if it does not exist."""
        found = self.topics.get(topic) if isinstance(topic, str) else self.topics_by_id.get(topic)
        if found is None or not 0 <= index < len(found.partitions):
            return None
        return found.partitions[index]

    @property
    def security(self) -> SecurityImage:
        return SecurityImage(self.acls, self.scram, self.quotas)

    @property
    def partition_count(self) -> int:
        return sum(len(topic.partitions) for topic in self.topics.values())

    @property
    def record_count(self) -> int:
        """Approximate number of records in a snapshot of this image."""
        settings = sum(map(len, self.configs.values())) + sum(map(len, self.quotas.values()))
        others = len(self.brokers) + len(self.topics) + len(self.carried)
        return others + self.partition_count + settings + len(self.acls) + len(self.scram)

    @property
    def broker_features(self) -> list[tuple[int, tuple[BrokerFeature, ...]]]:
        """What each broker supports, also one that is down: it may come back as it was."""
        return [(it.id, it.features) for it in self.brokers.values()]

    def changed_topics(self, previous: ClusterImage) -> TopicChanges:
        """Topics that differ from an earlier image; a recreated topic is both removed and added."""
        if self.topics is previous.topics:
            return TopicChanges((), (), ())
        created: list[TopicImage] = []
        changed: list[tuple[TopicImage, TopicImage]] = []
        deleted: list[TopicImage] = []
        for topic_id in self._ids_that_may_differ(previous):
            before = previous.topics_by_id.get(topic_id)
            after = self.topics_by_id.get(topic_id)
            if before is None and after is not None:
                created.append(after)
            elif before is not None and after is None:
                deleted.append(before)
            elif before is not None and after is not None and before is not after:
                changed.append((before, after))
        return TopicChanges(tuple(created), tuple(changed), tuple(deleted))

    def _ids_that_may_differ(self, previous: ClusterImage) -> Iterable[uuid.UUID]:
        if previous.version == self.since:
            return self.touched_topics
        return previous.topics_by_id.keys() | self.topics_by_id.keys()

    def changed_configs(self, previous: ClusterImage) -> frozenset[Resource]:
        """The resources whose own settings differ from those of an earlier image."""
        if self.configs is previous.configs:
            return frozenset()
        every = self.configs.keys() | previous.configs.keys()
        return frozenset(
            resource
            for resource in every
            if self.configs.get(resource) is not previous.configs.get(resource)
        )

    def records(self) -> Iterator[MetadataRecord]:
        """Records that create this image from the empty one: the content of a snapshot."""
        # Kafka requires the metadata version first: it defines the format of the rest.
        for name, level in sorted(
            self.features.items(), key=lambda feature: feature[0] != "metadata.version"
        ):
            yield FeatureLevelRecord(name, level)
        for broker in self.brokers.values():
            yield _register(broker)
        for topic in self.topics.values():
            yield TopicRecord(topic.name, topic.id)
            for index, partition in enumerate(topic.partitions):
                yield partition_record(topic.id, index, partition)
        for resource, settings in self.configs.items():
            for name, value in settings.items():
                yield ConfigRecord(resource.type, resource.name, name, value)
        if self.next_producer_id:
            yield ProducerIdsRecord(-1, -1, self.next_producer_id)
        yield from self.security.records()
        yield from map(decode_record, self.carried.values())


def partition_record(topic_id: uuid.UUID, index: int, it: PartitionImage) -> PartitionRecord:
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=it.replicas,
        isr=it.isr,
        leader=it.leader,
        leader_epoch=it.leader_epoch,
        partition_epoch=it.partition_epoch,
        removing_replicas=it.removing_replicas,
        adding_replicas=it.adding_replicas,
        directories=it.directories,
        leader_recovery_state=it.leader_recovery_state,
    )


def _register(broker: BrokerImage) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=broker.id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.epoch,
        endpoints=broker.endpoints,
        features=broker.features,
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.directories,
    )


class _Draft:
    """A mutable draft of an image: copies mappings and topics on first write."""

    def __init__(self, base: ClusterImage) -> None:
        self._base = base
        self._brokers = base.brokers
        self._settings: dict[Resource, dict[str, str]] = {}
        self._features = base.features
        self._next_producer_id = base.next_producer_id
        self._touched: dict[uuid.UUID, tuple[str, dict[int, PartitionImage]]] = {}
        self._removed: set[uuid.UUID] = set()
        self._security: SecurityDraft | None = None
        self._carried: CarriedDraft | None = None

    def replay(self, record: MetadataRecord) -> None:
        match record:
            case PartitionRecord():
                self._set_partition(record)
            case PartitionChangeRecord():
                self._change_partition(record)
            case TopicRecord():
                self._touched[record.topic_id] = (record.name, {})
            case RemoveTopicRecord():
                self._remove_topic(record.topic_id)
            case ConfigRecord():
                self._set_config(record)
            case RegisterBrokerRecord():
                self._register_broker(record)
            case BrokerRegistrationChangeRecord():
                self._change_broker(record)
            case FeatureLevelRecord():
                self._set_feature(record)
            case ProducerIdsRecord():
                self._next_producer_id = max(self._next_producer_id, record.next_producer_id)
            case UnregisterBrokerRecord():
                self._unregister_broker(record)
            case CarriedRecord():
                self._carry(record)
            case (
                AccessControlEntryRecord()
                | RemoveAccessControlEntryRecord()
                | UserScramCredentialRecord()
                | RemoveUserScramCredentialRecord()
                | ClientQuotaRecord()
            ):
                self._secure(record)
            case NoOpRecord() | AbortTransactionRecord():
                pass
            case _:
                raise CorruptRecord(f"{type(record).__name__} cannot be applied alone")

    def finish(self, version: int) -> ClusterImage:
        topics, by_id = self._base.topics, self._base.topics_by_id
        if self._touched or self._removed:
            topics, by_id = dict(topics), dict(by_id)
            for topic_id in self._removed:
                gone = by_id.pop(topic_id, None)
                if gone is not None and topics[gone.name].id == topic_id:
                    del topics[gone.name]
            for topic_id, (name, partitions) in self._touched.items():
                ordered = tuple(partitions[index] for index in sorted(partitions))
                topics[name] = by_id[topic_id] = TopicImage(name, topic_id, ordered)
        base = self._base
        security = base.security if self._security is None else self._security.finish()
        return ClusterImage(
            version=version,
            brokers=self._brokers,
            topics=topics,
            topics_by_id=by_id,
            configs=self._configs(),
            features=self._features,
            next_producer_id=self._next_producer_id,
            acls=security.acls,
            scram=security.scram,
            quotas=security.quotas,
            carried=base.carried if self._carried is None else self._carried.records,
            since=base.version,
            touched_topics=frozenset(self._touched) | self._removed,
        )

    def _partitions(self, topic_id: uuid.UUID) -> dict[int, PartitionImage]:
        touched = self._touched.get(topic_id)
        if touched is None:
            topic = self._base.topics_by_id.get(topic_id)
            if topic is None:
                raise CorruptRecord(f"a partition of topic {topic_id}, which does not exist")
            touched = self._touched[topic_id] = (topic.name, dict(enumerate(topic.partitions)))
        return touched[1]

    def _set_partition(self, record: PartitionRecord) -> None:
        self._partitions(record.topic_id)[record.partition_id] = PartitionImage(
            replicas=record.replicas,
            isr=record.isr,
            leader=record.leader,
            leader_epoch=record.leader_epoch,
            partition_epoch=record.partition_epoch,
            directories=record.directories,
            adding_replicas=record.adding_replicas,
            removing_replicas=record.removing_replicas,
            leader_recovery_state=record.leader_recovery_state,
        )

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        partitions = self._partitions(record.topic_id)
        before = partitions.get(record.partition_id)
        if before is None:
            raise CorruptRecord(
                f"a change of partition {record.partition_id} of topic {record.topic_id}, which "
                "does not exist"
            )
        names_leader = record.leader != UNCHANGED_LEADER
        partitions[record.partition_id] = PartitionImage(
            replicas=_new(record.replicas, before.replicas),
            isr=_new(record.isr, before.isr),
            leader=record.leader if names_leader else before.leader,
            leader_epoch=before.leader_epoch + names_leader,
            partition_epoch=before.partition_epoch + 1,
            directories=_new(record.directories, before.directories),
            adding_replicas=_new(record.adding_replicas, before.adding_replicas),
            removing_replicas=_new(record.removing_replicas, before.removing_replicas),
            leader_recovery_state=(
                before.leader_recovery_state
                if record.leader_recovery_state < 0
                else record.leader_recovery_state
            ),
        )

    def _remove_topic(self, topic_id: uuid.UUID) -> None:
        """Also removes the topic's settings, as Kafka does without a record."""
        touched = self._touched.pop(topic_id, None)
        topic = self._base.topics_by_id.get(topic_id)
        if topic is not None:
            self._removed.add(topic_id)
        name = touched[0] if touched else topic.name if topic else None
        resource = Resource(ResourceType.TOPIC, name or "")
        if resource in self._base.configs or resource in self._settings:
            self._settings[resource] = {}

    def _set_config(self, record: ConfigRecord) -> None:
        resource = Resource.of(record.resource_type, record.resource_name)
        settings = self._settings.get(resource)
        if settings is None:
            settings = self._settings[resource] = dict(self._base.configs.get(resource, _NOTHING))
        settings.pop(record.name, None)
        if record.value is not None:
            settings[record.name] = record.value

    def _configs(self) -> Mapping[Resource, Mapping[str, str]]:
        if not self._settings:
            return self._base.configs
        merged = {**self._base.configs, **self._settings}
        return {resource: settings for resource, settings in merged.items() if settings}

    def _register_broker(self, record: RegisterBrokerRecord) -> None:
        broker = BrokerImage(
            id=record.broker_id,
            epoch=record.broker_epoch,
            incarnation_id=record.incarnation_id,
            endpoints=record.endpoints,
            features=record.features,
            rack=record.rack,
            fenced=record.fenced,
            directories=record.log_dirs,
            in_controlled_shutdown=record.in_controlled_shutdown,
        )
        self._brokers = {**self._brokers, broker.id: broker}

    def _change_broker(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self._brokers.get(record.broker_id)
        if broker is None:
            return
        fenced = broker.fenced if record.fenced == 0 else record.fenced > 0
        changed = broker._replace(
            fenced=fenced,
            directories=record.log_dirs or broker.directories,
            in_controlled_shutdown=(
                broker.in_controlled_shutdown or record.in_controlled_shutdown > 0
            ),
        )
        self._brokers = {**self._brokers, broker.id: changed}

    def _unregister_broker(self, record: UnregisterBrokerRecord) -> None:
        self._brokers = {
            broker_id: broker
            for broker_id, broker in self._brokers.items()
            if broker_id != record.broker_id
        }

    def _secure(self, record: SecurityRecord) -> None:
        if self._security is None:
            self._security = SecurityDraft(self._base.security)
        self._security.replay(record)

    def _carry(self, record: CarriedRecord) -> None:
        if self._carried is None:
            self._carried = CarriedDraft(self._base.carried)
        self._carried.apply(record)

    def _set_feature(self, record: FeatureLevelRecord) -> None:
        self._features = {**self._features, record.name: record.feature_level}


def _new(value: tuple[Any, ...] | None, before: tuple[Any, ...]) -> tuple[Any, ...]:
    return before if value is None else value
