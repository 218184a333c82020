"""Users with rights, and what there is to have rights on: the same on every broker.

Names that begin with `my-` are what users have rights on, or are denied; `other-` is everybody
else's. For each operation on each kind of resource there is a user who may do that alone
(`topic-read`), and one who may do all but that, since DENY wins over ALLOW (`no-topic-read`).
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from tests.peers.patience import wait_until
from tests.peers.secured import ADMIN, Secured
from tests.peers.wire import Wire, batch, produce_fields


class Resource(IntEnum):
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5


class Operation(IntEnum):
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    TWO_PHASE_COMMIT = 15


LITERAL, PREFIXED = 3, 4
DENY, ALLOW = 2, 3
ANY_HOST = "*"
CLUSTER_NAME = "kafka-cluster"

_OPERATIONS = {
    Resource.TOPIC: "READ WRITE CREATE DELETE ALTER DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    Resource.GROUP: "READ DELETE DESCRIBE DESCRIBE_CONFIGS ALTER_CONFIGS",
    Resource.CLUSTER: "CREATE ALTER DESCRIBE CLUSTER_ACTION DESCRIBE_CONFIGS ALTER_CONFIGS "
    "IDEMPOTENT_WRITE",
    Resource.TRANSACTIONAL_ID: "WRITE DESCRIBE TWO_PHASE_COMMIT",
}
_SHORT = {Resource.TRANSACTIONAL_ID: "txn"}


@dataclass(frozen=True)
class Acl:
    user: str
    resource: Resource
    name: str
    operation: Operation
    pattern: int = LITERAL
    permission: int = ALLOW
    host: str = ANY_HOST

    def fields(self) -> dict[str, object]:
        """Of a creation in CreateAcls."""
        return {
            "resource_type": int(self.resource),
            "resource_name": self.name,
            "resource_pattern_type": self.pattern,
            "principal": f"User:{self.user}",
            "host": self.host,
            "operation": int(self.operation),
            "permission_type": self.permission,
        }


def _mine(user: str, resource: Resource, operation: Operation, permission: int = ALLOW) -> Acl:
    if resource is Resource.CLUSTER:
        return Acl(user, resource, CLUSTER_NAME, operation, LITERAL, permission)
    return Acl(user, resource, "my-", operation, PREFIXED, permission)


def _everything(user: str) -> list[Acl]:
    return [
        Acl(user, kind, CLUSTER_NAME if kind is Resource.CLUSTER else "*", Operation.ALL)
        for kind in Resource
    ]


def _rights() -> Iterator[tuple[str, list[Acl]]]:
    yield "nobody", []
    yield "all", _everything("all")
    for resource, names in _OPERATIONS.items():
        kind = _SHORT.get(resource, resource.name.lower())
        for name in names.split():
            user = f"{kind}-{name.lower().replace('_', '-')}"
            operation = Operation[name]
            yield user, [_mine(user, resource, operation)]
            user = f"no-{user}"
            yield user, [*_everything(user), _mine(user, resource, operation, DENY)]
    for resource in Resource:
        user = f"{_SHORT.get(resource, resource.name.lower())}-all"
        yield user, [_mine(user, resource, Operation.ALL)]
        user = f"no-{user}"
        yield user, [*_everything(user), _mine(user, resource, Operation.ALL, DENY)]
    everything_of_mine = (Resource.TOPIC, Resource.GROUP, Resource.TRANSACTIONAL_ID)
    yield "carol", [_mine("carol", kind, Operation.ALL) for kind in everything_of_mine]
    yield (
        "reader",
        [
            _mine("reader", Resource.TOPIC, Operation.READ),
            _mine("reader", Resource.GROUP, Operation.READ),
        ],
    )
    yield (
        "writer",
        [
            _mine("writer", Resource.TOPIC, Operation.WRITE),
            _mine("writer", Resource.TRANSACTIONAL_ID, Operation.WRITE),
        ],
    )
    yield (
        "literal",
        [
            Acl("literal", Resource.TOPIC, "my-topic", Operation.ALL),
            Acl("literal", Resource.GROUP, "my-group", Operation.ALL),
            Acl("literal", Resource.TRANSACTIONAL_ID, "my-txn", Operation.ALL),
        ],
    )
    yield (
        "elsewhere",
        [
            Acl("elsewhere", acl.resource, acl.name, acl.operation, host="10.9.8.7")
            for acl in _everything("elsewhere")
        ],
    )
    yield (
        "banned-here",
        [
            *_everything("banned-here"),
            *(
                Acl("banned-here", kind, "my-", Operation.ALL, PREFIXED, DENY, "127.0.0.1")
                for kind in everything_of_mine
            ),
        ],
    )


RIGHTS: dict[str, list[Acl]] = dict(_rights())
USERS: tuple[str, ...] = tuple(RIGHTS)

# Members and sessions live longer than any test.
SETTINGS = {
    "auto.create.topics.enable": "false",
    "group.consumer.max.session.timeout.ms": "3600000",
    "group.consumer.session.timeout.ms": "3600000",
    "group.share.max.session.timeout.ms": "3600000",
    "group.share.session.timeout.ms": "3600000",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}
TOPICS = ("my-topic", "other-topic", "my-sink", "other-sink")
GROUPS = ("my-group", "other-group")
TRANSACTIONS = ("my-txn", "other-txn")
MEMBERS = {  # of groups of the consumer protocol, and of share groups with "-share"
    "my-readers": ["my-topic"],
    "my-mixed": ["my-topic", "other-topic"],
    "other-readers": ["other-topic"],
    "other-mixed": ["my-topic", "other-topic"],
}
NOT_ACQUIRED = {"first_offset": 100, "last_offset": 100, "acknowledge_types": [1]}
INVALID_RECORD_STATE = 121
UNKNOWN_ID = uuid.UUID("7b1c2d3e-4f50-4a6b-8c7d-9e0f1a2b3c4d")


@dataclass
class World:
    """A broker on which all of that exists."""

    broker: Secured
    ids: dict[str, uuid.UUID] = field(default_factory=dict)
    names: dict[uuid.UUID, str] = field(default_factory=dict)


def victims(user: str) -> list[str]:
    """Topics that this user may try to delete: by name, and by id."""
    return [f"{owner}-victim-{way}-{user}" for owner in ("my", "other") for way in ("name", "id")]


def create_world(broker: Secured, users: Sequence[str] = USERS) -> World:
    """As the super user, with the victims of these users."""
    world = World(broker)
    with broker.wire(ADMIN) as admin:
        create_acls(admin, [acl for acls in RIGHTS.values() for acl in acls])
        _create_topics(admin, [*TOPICS, *(name for user in users for name in victims(user))])
        answer = admin.call("metadata", 12, topics=None)
        world.ids = {topic.name: topic.topic_id for topic in answer.topics}
        world.names = {topic_id: name for name, topic_id in world.ids.items()}
        _await_coordinators(admin)
        for owner in ("my", "other"):
            _produce(admin, f"{owner}-topic", [b"a", b"b", b"c"])
            for group in (f"{owner}-group", *(f"{owner}-victim-{user}" for user in users)):
                _commit(admin, group, f"{owner}-topic")
        for transactional_id in TRANSACTIONS:
            _begin_producer(admin, transactional_id)
        for group, topics in MEMBERS.items():
            _join(admin, "consumer_group_heartbeat", group, topics)
            _join(admin, "share_group_heartbeat", f"{group}-share", topics)
        for group in ("my-empty-share", "other-empty-share"):
            _join(admin, "share_group_heartbeat", group, ["my-topic", "other-topic"])
            _leave_share_group(admin, group)
    for group in ("my-mixed-share", "other-mixed-share"):
        _await_share_partitions(world, group)
    _await_rights(broker)
    return world


def create_acls(admin: Wire, acls: Sequence[Acl]) -> None:
    answer = admin.call("create_acls", 3, creations=[acl.fields() for acl in acls])
    assert all(result.error_code == 0 for result in answer.results), answer


def _create_topics(admin: Wire, names: Sequence[str]) -> None:
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in names]
    answer = admin.call("create_topics", 7, topics=topics, timeout=60_000)
    assert all(topic.error_code == 0 for topic in answer.topics), answer

    def all_lead() -> bool:
        found = admin.call("metadata", 12, topics=[{"name": name} for name in names]).topics
        return all(it.error_code == 0 and it.partitions[0].error_code == 0 for it in found)

    wait_until(all_lead)


def _await_coordinators(admin: Wire) -> None:
    """They make their topics when they are first asked for."""

    def all_there() -> bool:
        kinds = (0, 1)
        answers = [
            admin.call("find_coordinator", 4, key_type=kind, coordinator_keys=["my-group"])
            for kind in kinds
        ]
        return all(answer.coordinators[0].error_code == 0 for answer in answers)

    wait_until(all_there)


def _produce(admin: Wire, topic: str, values: Sequence[bytes]) -> None:
    answer = admin.call("produce", 9, **produce_fields(topic, batch(values)))
    assert answer.responses[0].partition_responses[0].error_code == 0, answer


def _commit(admin: Wire, group: str, topic: str) -> None:
    partitions = [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}]

    def committed() -> bool:
        answer = admin.call(
            "offset_commit",
            8,
            group_id=group,
            generation_id_or_member_epoch=-1,
            topics=[{"name": topic, "partitions": partitions}],
        )
        return bool(answer.topics[0].partitions[0].error_code == 0)

    wait_until(committed)


def _begin_producer(admin: Wire, transactional_id: str) -> None:
    fields = {"transactional_id": transactional_id, "producer_id": -1, "producer_epoch": -1}

    def has_begun() -> bool:
        answer = admin.call("init_producer_id", 4, transaction_timeout=60_000, **fields)
        return bool(answer.error_code == 0)

    wait_until(has_begun)


def member_id(name: str) -> str:
    """A member's id is a UUID in base64, of the client's making."""
    return encoded_id(uuid.uuid5(uuid.NAMESPACE_DNS, name))


def encoded_id(topic_or_member: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_or_member.bytes).decode().rstrip("=")


def _join(admin: Wire, api: str, group: str, topics: Sequence[str]) -> None:
    """Joins, and beats until it has its partitions."""
    epoch = 0
    owned: list[dict[str, object]] = []

    def has_all() -> bool:
        nonlocal epoch, owned
        fields = {"group_id": group, "member_id": member_id(group), "member_epoch": epoch}
        if epoch == 0:
            fields["subscribed_topic_names"] = topics
        if api == "consumer_group_heartbeat":
            fields |= {"rebalance_timeout": 60_000, "topic_partitions": owned}
        answer = admin.call(api, 1, **fields)
        if answer.error_code != 0:
            return False
        epoch = answer.member_epoch
        if answer.assignment is not None:
            parts = answer.assignment.topic_partitions
            owned = [{"topic_id": it.topic_id, "partitions": it.partitions} for it in parts]
        return len(owned) == len(topics)

    wait_until(has_all)


def _leave_share_group(admin: Wire, group: str) -> None:
    answer = admin.call(
        *("share_group_heartbeat", 1), group_id=group, member_id=member_id(group), member_epoch=-1
    )
    assert answer.error_code == 0, answer


def shared(world: World, group: str, member: str, **partition: Any) -> dict[str, Any]:
    """What ShareFetch and ShareAcknowledge have in common. Apache Kafka with an authorizer fails
    at a topic id that it does not know, so there is none here."""
    topics = [
        {"topic_id": world.ids[name], "partitions": [{"partition_index": 0} | partition]}
        for name in ("my-topic", "other-topic")
    ]
    return {"group_id": group, "member_id": member_id(member), "topics": topics}


def share_fetch(world: World, group: str, member: str) -> dict[str, Any]:
    limits = {"max_wait": 0, "max_bytes": 1 << 20, "max_records": 10, "batch_size": 10}
    return shared(world, group, member) | limits


def _await_share_partitions(world: World, group: str) -> None:
    """The first fetch reads their state, and answers before it has it."""
    acknowledged = shared(world, group, "warm-up", acknowledgement_batches=[NOT_ACQUIRED])
    with world.broker.wire(ADMIN) as fetcher:

        def all_known() -> bool:
            fetcher.call("share_fetch", 1, **share_fetch(world, group, "warm-up"))
            answer = fetcher.call("share_acknowledge", 1, share_session_epoch=1, **acknowledged)
            codes = [it.partitions[0].error_code for it in answer.responses]
            return codes == [INVALID_RECORD_STATE] * 2

        wait_until(all_known)


def _await_rights(broker: Secured) -> None:
    """Apache Kafka applies new ACLs a moment after it answers, all of a request at once."""
    with broker.wire("all") as wire:

        def sees() -> bool:
            answer = wire.call("metadata", 12, topics=[{"name": "my-topic"}])
            return bool(answer.topics[0].error_code == 0)

        wait_until(sees)
