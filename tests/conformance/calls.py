"""Requests to every API, on resources that exist and that do not, and their answers in a line.

Each is made so that whoever is allowed changes nothing that the next user would notice: what it
deletes is the user's own victim, or it is validated only, or refused for another reason after the
rights were checked (an unknown member, a producer id that nobody has).
"""

from __future__ import annotations

import dataclasses
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.conformance.rights import (
    CLUSTER_NAME,
    NOT_ACQUIRED,
    UNKNOWN_ID,
    World,
    encoded_id,
    member_id,
    share_fetch,
    shared,
    victims,
)
from tests.peers.secured import SecuredWire
from tests.peers.wire import ConnectionEnded, batch

Fields: TypeAlias = dict[str, Any]
Builder: TypeAlias = Callable[[World, str], Fields]

NAMED = ("my-topic", "my-gone", "other-topic", "other-gone")
SINKS = ("my-sink", "my-gone", "other-sink", "other-gone")
GROUPS = ("my-group", "my-nogroup", "other-group", "other-nogroup")
TRANSACTIONS = ("my-txn", "my-notxn", "other-txn", "other-notxn")
NO_PRODUCER = 999_999_999
TOPIC_CONFIG, BROKER_CONFIG, CLIENT_METRICS_CONFIG, GROUP_CONFIG = 2, 4, 16, 32


@dataclass(frozen=True)
class Call:
    api: str
    version: int
    title: str
    fields: Builder

    @property
    def name(self) -> str:
        return f"{self.api} v{self.version}{' ' if self.title else ''}{self.title}"

    def answer(self, wire: SecuredWire, world: World, user: str) -> str:
        """Raises `ConnectionEnded` when the broker closes the connection."""
        fields = self.fields(world, user)
        if self.api == "produce" and fields["acks"] == 0:
            wire.start(self.api, self.version, **fields)
            wire.call("api_versions", 0)
            return "no answer"
        text = render(wire.call(self.api, self.version, **fields), world, user)
        if self.api == "share_fetch":  # a partition without records may be left out
            text = re.sub(r"id:\S+ partitions\[0 0\](; )?", "", text)
            text = text.replace("; ]", "]").replace(" responses[]", "")
        return text or "nothing"


CALLS: list[Call] = []


def _call(api: str, version: int, title: str = "") -> Callable[[Builder], Builder]:
    def add(fields: Builder) -> Builder:
        CALLS.append(Call(api, version, title, fields))
        return fields

    return add


def _fixed(api: str, version: int, title: str = "", **fields: Any) -> None:
    CALLS.append(Call(api, version, title, lambda world, user: fields))


def _ids(world: World, names: Sequence[str]) -> list[uuid.UUID]:
    """Of those that exist, and one of a topic that never did."""
    return [*(world.ids[name] for name in names if name in world.ids), UNKNOWN_ID]


def _produced(topics: Sequence[Fields], acks: int = -1, **batch_fields: Any) -> Fields:
    partitions = [{"index": 0, "records": batch([b"x"], **batch_fields)}]
    return {
        "acks": acks,
        "timeout": 10_000,
        "topic_data": [topic | {"partition_data": partitions} for topic in topics],
    }


_fixed("produce", 12, **_produced([{"name": name} for name in SINKS]))
_fixed("produce", 12, "acks=0", **_produced([{"name": "my-sink"}], acks=0))
_fixed("produce", 12, "acks=0 other", **_produced([{"name": "other-sink"}], acks=0))


@_call("produce", 13)
def _produce_ids(world: World, user: str) -> Fields:
    return _produced([{"topic_id": it} for it in _ids(world, SINKS)])


for _id in TRANSACTIONS:
    _fixed(
        *("produce", 11, _id),
        transactional_id=_id,
        **_produced(
            [{"name": "my-sink"}, {"name": "other-sink"}],
            transactional=True,
            producer_id=NO_PRODUCER,
            producer_epoch=0,
            base_sequence=0,
        ),
    )


def _fetched(topics: Sequence[Fields]) -> Fields:
    partitions = [
        {
            "partition": 0,
            "current_leader_epoch": -1,
            "fetch_offset": 0,
            "log_start_offset": -1,
            "partition_max_bytes": 1 << 20,
        }
    ]
    return {
        "max_wait": 0,
        "max_bytes": 1 << 20,
        "session_epoch": -1,
        "topics": [topic | {"partitions": partitions} for topic in topics],
    }


_fixed("fetch", 12, replica_id=-1, **_fetched([{"topic": name} for name in NAMED]))
_fixed("fetch", 12, "follower", replica_id=77, **_fetched([{"topic": name} for name in NAMED]))


@_call("fetch", 17)
def _fetch_ids(world: World, user: str) -> Fields:
    return _fetched([{"topic_id": it} for it in _ids(world, NAMED)])


@_call("fetch", 17, "with a session")
def _fetch_session(world: World, user: str) -> Fields:
    return _fetch_ids(world, user) | {"session_epoch": 0}


_OFFSETS = [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]
_fixed(
    *("list_offsets", 8),
    replica_id=-1,
    topics=[{"name": name, "partitions": _OFFSETS} for name in NAMED],
)

_METADATA = {"allow_auto_topic_creation": False}
_OPERATIONS = _METADATA | {
    "include_topic_authorized_operations": True,
    "include_cluster_authorized_operations": True,
}
_fixed("metadata", 0, topics=[{"name": name} for name in NAMED])
_fixed("metadata", 1, "all", topics=None)
_fixed("metadata", 10, "operations", topics=[{"name": name} for name in NAMED], **_OPERATIONS)
_fixed("metadata", 10, "all, operations", topics=None, **_OPERATIONS)
_fixed("metadata", 12, topics=[{"name": name} for name in NAMED], **_METADATA)
_fixed("metadata", 13, "all", topics=None, **_METADATA)


@_call("metadata", 12, "by id")
def _metadata_ids(world: World, user: str) -> Fields:
    topics = [{"topic_id": it, "name": None} for it in _ids(world, NAMED)]
    return {"topics": topics, "include_topic_authorized_operations": True, **_METADATA}


_COMMITS = [{"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1}]
for _group in GROUPS:
    _fixed(
        *("offset_commit", 9, _group),
        group_id=_group,
        generation_id_or_member_epoch=9,
        member_id="unknown",
        topics=[{"name": name, "partitions": _COMMITS} for name in NAMED],
    )


@_call("offset_commit", 10)
def _offset_commit_ids(world: World, user: str) -> Fields:
    return {
        "group_id": "my-group",
        "generation_id_or_member_epoch": 9,
        "member_id": "unknown",
        "topics": [{"topic_id": it, "partitions": _COMMITS} for it in _ids(world, NAMED)],
    }


for _group in GROUPS:
    _fixed(
        *("offset_fetch", 7, _group),
        group_id=_group,
        topics=[{"name": name, "partition_indexes": [0]} for name in NAMED],
    )
_fixed(
    *("offset_fetch", 9),
    groups=[
        {
            "group_id": group,
            "member_epoch": -1,
            "topics": [{"name": name, "partition_indexes": [0]} for name in NAMED],
        }
        for group in GROUPS
    ],
)
_fixed(
    *("offset_fetch", 9, "all"),
    groups=[{"group_id": group, "member_epoch": -1, "topics": None} for group in GROUPS],
)


@_call("offset_fetch", 10)
def _offset_fetch_ids(world: World, user: str) -> Fields:
    topics = [{"topic_id": it, "partition_indexes": [0]} for it in _ids(world, NAMED)]
    return {"groups": [{"group_id": "my-group", "member_epoch": -1, "topics": topics}]}


for _group in GROUPS:
    _fixed("find_coordinator", 3, _group, key=_group, key_type=0)
_fixed("find_coordinator", 4, key_type=0, coordinator_keys=GROUPS)
_fixed("find_coordinator", 4, "of transactions", key_type=1, coordinator_keys=TRANSACTIONS)


@_call("find_coordinator", 6, "of share groups")
def _find_share_coordinator(world: World, user: str) -> Fields:
    return {"key_type": 2, "coordinator_keys": [f"my-share:{encoded_id(UNKNOWN_ID)}:0"]}


for _group in GROUPS:
    _fixed(
        *("join_group", 9, _group),
        group_id=_group.replace("-nogroup", "-victim-of-joining"),  # it exists from then on
        session_timeout=6000,
        rebalance_timeout=6000,
        protocol_type="consumer",
        protocols=[{"name": "range", "metadata": b""}],
    )
    _MEMBER = {"group_id": _group, "generation_id": 1, "member_id": "unknown"}
    _fixed(*("sync_group", 5, _group), protocol_type="consumer", protocol_name="range", **_MEMBER)
    _fixed("heartbeat", 4, _group, **_MEMBER)
    _fixed("leave_group", 2, _group, group_id=_group, member_id="unknown")
    _fixed("leave_group", 5, _group, group_id=_group, members=[{"member_id": "unknown"}])
    _fixed(
        *("offset_delete", 0, _group),
        group_id=_group,
        topics=[
            {"name": name, "partitions": [{"partition_index": 7}]} for name in NAMED
        ],  # nothing is committed there
    )
_fixed("describe_groups", 6, groups=GROUPS, include_authorized_operations=True)
_fixed("list_groups", 5)
_fixed("api_versions", 3, client_software_name="wire", client_software_version="1")


@_call("delete_groups", 2)
def _delete_groups(world: World, user: str) -> Fields:
    names = [f"{owner}-{it}" for owner in ("my", "other") for it in (f"victim-{user}", "nogroup")]
    return {"groups_names": names}


_fixed(
    *("create_topics", 7),
    timeout=60_000,
    validate_only=True,
    topics=[{"name": name, "num_partitions": 1, "replication_factor": 1} for name in NAMED],
)


@_call("delete_topics", 5)
def _delete_topics(world: World, user: str) -> Fields:
    names = [victims(user)[0], victims(user)[2], "my-gone", "other-gone"]
    return {"topic_names": names, "timeout": 60_000}


@_call("delete_topics", 6)
def _delete_topics_by_id(world: World, user: str) -> Fields:
    ids = [world.ids[victims(user)[1]], world.ids[victims(user)[3]], UNKNOWN_ID]
    return {"topics": [{"name": None, "topic_id": it} for it in ids], "timeout": 60_000}


_fixed(
    *("delete_records", 2),
    timeout=60_000,
    topics=[{"name": name, "partitions": [{"partition_index": 0, "offset": 0}]} for name in NAMED],
)
_fixed(
    *("create_partitions", 3),
    timeout=60_000,
    validate_only=True,
    topics=[{"name": name, "count": 2, "assignments": None} for name in NAMED],
)

_PRODUCER = {"producer_id": NO_PRODUCER, "producer_epoch": 0}
_fixed(
    *("init_producer_id", 4),
    transactional_id=None,
    transaction_timeout=60_000,
    producer_id=-1,
    producer_epoch=-1,
)
for _id in TRANSACTIONS:
    _OF = _PRODUCER | {"transactional_id": _id}
    _fixed(
        *("init_producer_id", 4, _id),
        transaction_timeout=60_000,
        transactional_id=_id.replace("-notxn", "-victim-of-init"),  # it exists from then on
        producer_id=-1 if _id.endswith("-notxn") else NO_PRODUCER,
        producer_epoch=-1 if _id.endswith("-notxn") else 0,
    )
    _fixed(
        *("add_partitions_to_txn", 3, _id),
        v3_and_below_transactional_id=_id,
        v3_and_below_producer_id=NO_PRODUCER,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[{"name": name, "partitions": [0]} for name in NAMED],
    )
    _fixed(
        *("add_partitions_to_txn", 3, f"{_id}, my topic"),
        v3_and_below_transactional_id=_id,
        v3_and_below_producer_id=NO_PRODUCER,
        v3_and_below_producer_epoch=0,
        v3_and_below_topics=[{"name": "my-topic", "partitions": [0]}],
    )
    for _group in ("my-group", "other-group"):
        _fixed("add_offsets_to_txn", 3, f"{_id}, {_group}", group_id=_group, **_OF)
        _fixed(
            *("txn_offset_commit", 3, f"{_id}, {_group}"),
            group_id=_group,
            generation_id=9,
            member_id="unknown",
            topics=[{"name": name, "partitions": _COMMITS} for name in NAMED],
            **_OF,
        )
    _fixed("end_txn", 3, _id, committed=True, **_OF)
_fixed(
    *("add_partitions_to_txn", 5),
    transactions=[
        {
            "transactional_id": "my-txn",
            "verify_only": True,
            "topics": [{"name": "my-topic", "partitions": [0]}],
            **_PRODUCER,
        }
    ],
)
_fixed(
    *("write_txn_markers", 1),
    markers=[
        {
            "transaction_result": False,
            "coordinator_epoch": 0,
            "topics": [{"name": "my-gone", "partition_indexes": [0]}],
            **_PRODUCER,
        }
    ],
)
_fixed("describe_transactions", 0, transactional_ids=TRANSACTIONS)
_fixed("list_transactions", 1, duration_filter=-1)
_fixed(
    *("describe_producers", 0),
    topics=[{"name": name, "partition_indexes": [0]} for name in NAMED],
)
_EPOCHS = [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]
for _replica in (-1, 77):
    _fixed(
        *("offset_for_leader_epoch", 4, f"replica {_replica}"),
        replica_id=_replica,
        topics=[{"topic": name, "partitions": _EPOCHS} for name in NAMED],
    )

_CONFIGS = [
    *((TOPIC_CONFIG, name) for name in NAMED),
    *((GROUP_CONFIG, name) for name in GROUPS),
    (BROKER_CONFIG, "1"),
]
_SETTINGS = {
    TOPIC_CONFIG: ("retention.ms", "1000000"),
    GROUP_CONFIG: ("consumer.heartbeat.interval.ms", "5000"),
    BROKER_CONFIG: ("log.cleaner.threads", "1"),
}
_fixed(
    *("describe_configs", 4),
    resources=[
        {"resource_type": kind, "resource_name": name, "configuration_keys": None}
        for kind, name in _CONFIGS
    ],
)
_fixed(
    *("alter_configs", 2),
    validate_only=True,
    resources=[
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": _SETTINGS[kind][0], "value": _SETTINGS[kind][1]}],
        }
        for kind, name in _CONFIGS
        if kind != GROUP_CONFIG
    ],
)
_fixed(
    *("incremental_alter_configs", 1),
    validate_only=True,
    resources=[
        {
            "resource_type": kind,
            "resource_name": name,
            "configs": [{"name": _SETTINGS[kind][0], "value": _SETTINGS[kind][1]}],
        }
        for kind, name in _CONFIGS
    ],
)
_fixed("list_config_resources", 1, "topics", resource_types=[TOPIC_CONFIG])
_fixed("list_config_resources", 1, "groups", resource_types=[GROUP_CONFIG])
_fixed("list_config_resources", 0)
_fixed("describe_log_dirs", 4, topics=[{"topic": name, "partitions": [0]} for name in NAMED])
_fixed(
    *("alter_replica_log_dirs", 2),
    dirs=[
        {
            "path": "/no/such/directory",
            "topics": [{"name": name, "partitions": [0]} for name in NAMED],
        }
    ],
)
_fixed(
    *("elect_leaders", 2),
    timeout=60_000,
    topic_partitions=[{"topic": name, "partitions": [0]} for name in NAMED],
)
_fixed(
    *("alter_partition_reassignments", 0),
    timeout=60_000,
    topics=[
        {"name": name, "partitions": [{"partition_index": 0, "replicas": None}]} for name in NAMED
    ],
)
_fixed("list_partition_reassignments", 0, timeout=60_000, topics=None)
_fixed(
    *("describe_quorum", 1),
    topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}],
)
_fixed(
    *("update_features", 1),
    timeout=60_000,
    validate_only=True,
    feature_updates=[{"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}],
)
_fixed("unregister_broker", 0, broker_id=999_999)
_fixed("describe_cluster", 0)
_fixed("describe_cluster", 0, "operations", include_cluster_authorized_operations=True)
_fixed(
    *("describe_topic_partitions", 0),
    topics=[{"name": name} for name in NAMED],
    response_partition_limit=100,
)
_fixed("describe_topic_partitions", 0, "all", topics=[], response_partition_limit=2000)

for _api in ("consumer_group_heartbeat", "share_group_heartbeat"):
    _ending = "-share" if _api.startswith("share") else ""
    for _group in ("my-readers", "my-nogroup", "other-readers"):
        for _topics in (["my-topic"], ["my-gone"], ["my-topic", "other-topic"], []):
            _fixed(
                *(_api, 1, f"{_group} {'+'.join(_topics) or '-'}"),
                group_id=_group + _ending,
                member_id=member_id("unknown"),
                member_epoch=5,
                subscribed_topic_names=_topics or None,
            )
for _api, _ending in (("consumer_group_describe", ""), ("share_group_describe", "-share")):
    _fixed(
        *(_api, 1),
        group_ids=[
            f"{it}{_ending}" for it in ("my-readers", "my-mixed", "other-readers", "my-no", "no")
        ],
        include_authorized_operations=True,
    )


def _share_calls(group: str) -> None:
    def acknowledge(world: World, user: str) -> Fields:
        fields = shared(world, group, user, acknowledgement_batches=[NOT_ACQUIRED])
        return fields | {"share_session_epoch": 1}

    fetch = Call("share_fetch", 1, group, lambda world, user: share_fetch(world, group, user))
    CALLS.append(fetch)
    CALLS.append(Call("share_acknowledge", 1, group, acknowledge))


for _group in ("my-mixed-share", "other-mixed-share"):
    _share_calls(_group)
for _group in ("my-empty-share", "my-no-share", "other-empty-share"):
    _fixed(
        *("alter_share_group_offsets", 0, _group),
        group_id=_group,
        topics=[
            {"topic_name": name, "partitions": [{"partition_index": 0, "start_offset": 0}]}
            for name in NAMED
        ],
    )
    _fixed(
        *("delete_share_group_offsets", 0, _group),
        group_id=_group,
        topics=[{"topic_name": name} for name in NAMED],
    )
_fixed(
    *("describe_share_group_offsets", 0),
    groups=[
        {"group_id": group, "topics": [{"topic_name": it, "partitions": [0]} for it in NAMED]}
        for group in ("my-readers-share", "my-empty-share", "my-no-share", "other-readers-share")
    ],
)
_fixed(
    *("describe_share_group_offsets", 0, "all"),
    groups=[{"group_id": it, "topics": None} for it in ("my-mixed-share", "other-readers-share")],
)
for _api, _part in {
    "initialize_share_group_state": {"state_epoch": 0, "start_offset": 0},
    "read_share_group_state": {"leader_epoch": 0},
    "write_share_group_state": {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0},
    "delete_share_group_state": {},
    "read_share_group_state_summary": {"leader_epoch": 0},
}.items():
    _fixed(
        *(_api, 0),
        group_id="my-nogroup",
        topics=[{"topic_id": UNKNOWN_ID, "partitions": [{"partition": 0} | _part]}],
    )

_ANY = {"pattern_type_filter": 1, "operation": 1, "permission_type": 1}
_fixed("describe_acls", 3, resource_type_filter=1, principal_filter="User:nobody", **_ANY)
_fixed(
    *("create_acls", 3),
    creations=[
        {
            "resource_type": 4,
            "resource_name": CLUSTER_NAME,
            "resource_pattern_type": 3,
            "principal": "User:all",
            "host": "*",
            "operation": 2,
            "permission_type": 3,
        }
    ],
)
_fixed(
    *("delete_acls", 3),
    filters=[{"resource_type_filter": 1, "principal_filter": "User:nobody", **_ANY}],
)
_fixed("describe_client_quotas", 1, components=[], strict=False)
_fixed(
    *("alter_client_quotas", 1),
    validate_only=True,
    entries=[
        {
            "entity": [{"entity_type": "user", "entity_name": "nobody"}],
            "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}],
        }
    ],
)
_fixed("describe_user_scram_credentials", 0, users=[])  # None: Apache Kafka never answers
_fixed("describe_user_scram_credentials", 0, "one", users=[{"name": "nobody"}])
_fixed(
    *("alter_user_scram_credentials", 0),
    deletions=[{"name": "nobody", "mechanism": 1}],
    upsertions=[],
)

# Fields of responses that matter here. The others differ from run to run, or tell nothing more.
_NAMES = {
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "group_id",
    "transactional_id",
    "key",
    "resource_name",
    "group_state",
    "transaction_state",
    "mechanisms",
}
_NUMBERS = {
    "authorized_operations",
    "topic_authorized_operations",
    "cluster_authorized_operations",
    "committed_offset",
    "high_watermark",
    "last_stable_offset",
    "log_start_offset",
    "end_offset",
    "low_watermark",
    "offset",
    "resource_type",
}
_COUNTED = {"configs", "members", "current_voters", "active_producers", "entries"}
_IGNORED = {
    "api_keys",
    "brokers",
    "supported_features",
    "finalized_features",
    "node_endpoints",
    "nodes",
    "record_errors",
    "acquired_records",
    "observers",
    "current_leader",
    "aborted_transactions",
    "diverging_epoch",
    "snapshot_id",
}


def render(entity: Any, world: World, user: str) -> str:
    """An answer in a line: error codes by where they are, names, and what is told of each."""
    parts: list[str] = []
    for item in dataclasses.fields(entity):
        value = getattr(entity, item.name)
        if item.name in _IGNORED or value is None:
            continue
        if item.name.endswith("error_code"):
            parts.append(str(int(value)))
        elif item.name in _NAMES:
            parts.append(_name(value, world, user))
        elif item.name in _NUMBERS and not hasattr(entity, "current_voters"):
            parts.append(f"{item.name}={value}")
        elif item.name in _COUNTED:
            parts.append(f"{item.name}={'some' if value else 'none'}")
        elif isinstance(value, tuple) and value and dataclasses.is_dataclass(value[0]):
            lines = (render(it, world, user) for it in value if not _is_of_others(it, world, user))
            parts.append(f"{item.name}[{'; '.join(sorted(lines))}]")
    return " ".join(parts)


def _name(value: Any, world: World, user: str) -> str:
    if isinstance(value, uuid.UUID):
        value = "-" if value.int == 0 else f"id:{world.names.get(value, 'unknown')}"
    text = str(value) or "''"
    return re.sub(rf"-{user}$", "-USER", text) if "victim" in text else text


# Lists in which Apache Kafka shows, for a moment, topics that have been deleted.
_SHOW_DELETED = {"ConfigResource", "DescribeTopicPartitionsResponseTopic"}


def _is_of_others(entity: Any, world: World, user: str) -> bool:
    """Victims of other users, in lists of all there is; and Kafka's own topics."""
    name = getattr(entity, "name", None) or getattr(entity, "group_id", None)
    name = name or getattr(entity, "topic_name", None) or getattr(entity, "resource_name", None)
    name = name or getattr(entity, "transactional_id", None)
    if name is None and getattr(entity, "topic_id", None) is not None:
        name = world.names.get(entity.topic_id)
    if not isinstance(name, str):
        return False
    if name.startswith("__") and name != "__cluster_metadata":
        return True
    if "victim" in name and type(entity).__name__ in _SHOW_DELETED:
        return True
    return "victim" in name and not name.endswith(
        (f"-victim-{user}", f"-name-{user}", f"-id-{user}")
    )


def answers_of(world: World, user: str) -> dict[str, str]:
    """What the user gets for each of the calls; `closed` when the broker hangs up, `silence`
    when it neither does nor answers."""
    answers: dict[str, str] = {}
    wire = world.broker.wire(user)
    try:
        for call in CALLS:
            try:
                answers[call.name] = call.answer(wire, world, user)
            except (ConnectionEnded, TimeoutError) as error:
                ended = isinstance(error, ConnectionEnded)
                answers[call.name] = "closed" if ended else "silence"
                wire.socket.close()
                wire = world.broker.wire(user)
    finally:
        wire.socket.close()
    return answers
