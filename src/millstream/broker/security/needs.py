"""What each API needs of the client, where an authorizer is configured.

This is the list to look at, and to extend with a new API: a test refuses one that is not here, and
another sends each API without these rights. How a refusal is answered is in the handlers.

    Need(operation, resource type)     of the resource that the request names
    several in a row                   all of them, each for its own part of the request
    OneOf(...)                         one of them is enough
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

from millstream.security.acls import Operation, ResourceType


class Need(NamedTuple):
    operation: Operation
    resource_type: ResourceType
    note: str = ""


class OneOf(NamedTuple):
    needs: tuple[Need, ...]
    note: str = ""


Needs: TypeAlias = tuple[Need | OneOf, ...]

NOTHING: Needs = ()
"""Open to every client that is authenticated, as far as its listener asks for that."""


def _topic(operation: Operation, note: str = "") -> Need:
    return Need(operation, ResourceType.TOPIC, note)


def _group(operation: Operation, note: str = "") -> Need:
    return Need(operation, ResourceType.GROUP, note)


def _cluster(operation: Operation, note: str = "") -> Need:
    return Need(operation, ResourceType.CLUSTER, note)


def _transaction(operation: Operation, note: str = "") -> Need:
    return Need(operation, ResourceType.TRANSACTIONAL_ID, note)


_READ_GROUP = (_group(Operation.READ),)
_DESCRIBE_GROUP = (_group(Operation.DESCRIBE),)
_BROKERS_ONLY = (_cluster(Operation.CLUSTER_ACTION),)
_DESCRIBE_CLUSTER = (_cluster(Operation.DESCRIBE),)
_ALTER_CLUSTER = (_cluster(Operation.ALTER),)


def _configs(operation: Operation) -> Needs:
    return (_topic(operation), _group(operation), _cluster(operation, "brokers, client metrics"))


NEEDS: Mapping[str, Needs] = {
    "produce": (
        _topic(Operation.WRITE),
        _transaction(Operation.WRITE, "for transactional records"),
    ),
    "fetch": (
        _topic(Operation.READ),
        _cluster(Operation.CLUSTER_ACTION, "instead, for followers"),
    ),
    "list_offsets": (_topic(Operation.DESCRIBE),),
    "metadata": (
        _topic(Operation.DESCRIBE, "others are left out if all are asked for"),
        OneOf((_cluster(Operation.CREATE), _topic(Operation.CREATE)), "to create a missing topic"),
    ),
    "offset_commit": (*_READ_GROUP, _topic(Operation.READ)),
    "offset_fetch": (*_DESCRIBE_GROUP, _topic(Operation.DESCRIBE)),
    "find_coordinator": (
        *_DESCRIBE_GROUP,
        _transaction(Operation.DESCRIBE),
        _cluster(Operation.CLUSTER_ACTION, "of share partitions"),
    ),
    "join_group": _READ_GROUP,
    "heartbeat": _READ_GROUP,
    "leave_group": _READ_GROUP,
    "sync_group": _READ_GROUP,
    "describe_groups": _DESCRIBE_GROUP,
    "list_groups": (
        OneOf((_cluster(Operation.DESCRIBE), *_DESCRIBE_GROUP), "other groups are left out"),
    ),
    "api_versions": NOTHING,
    "create_topics": (
        OneOf((_cluster(Operation.CREATE), _topic(Operation.CREATE))),
        _topic(Operation.DESCRIBE_CONFIGS, "to see what was created"),
    ),
    "delete_topics": (OneOf((_cluster(Operation.DELETE), _topic(Operation.DELETE))),),
    "delete_records": (_topic(Operation.DELETE),),
    "init_producer_id": (
        _transaction(Operation.WRITE),
        OneOf(
            (_cluster(Operation.IDEMPOTENT_WRITE), _topic(Operation.WRITE, "of any topic")),
            "without a transactional id",
        ),
    ),
    "offset_for_leader_epoch": (
        OneOf((_topic(Operation.DESCRIBE), _cluster(Operation.CLUSTER_ACTION))),
    ),
    "add_partitions_to_txn": (
        _transaction(Operation.WRITE, "up to v3"),
        _topic(Operation.WRITE, "up to v3"),
        _cluster(Operation.CLUSTER_ACTION, "from v4 on"),
    ),
    "add_offsets_to_txn": (_transaction(Operation.WRITE), *_READ_GROUP),
    "end_txn": (_transaction(Operation.WRITE),),
    "write_txn_markers": (OneOf((_cluster(Operation.ALTER), _cluster(Operation.CLUSTER_ACTION))),),
    "txn_offset_commit": (_transaction(Operation.WRITE), *_READ_GROUP, _topic(Operation.READ)),
    "describe_acls": _DESCRIBE_CLUSTER,
    "create_acls": _ALTER_CLUSTER,
    "delete_acls": _ALTER_CLUSTER,
    "describe_configs": _configs(Operation.DESCRIBE_CONFIGS),
    "alter_configs": _configs(Operation.ALTER_CONFIGS),
    "describe_log_dirs": _DESCRIBE_CLUSTER,
    "create_partitions": (_topic(Operation.ALTER),),
    "delete_groups": (_group(Operation.DELETE),),
    "alter_replica_log_dirs": _ALTER_CLUSTER,
    "elect_leaders": _ALTER_CLUSTER,
    "incremental_alter_configs": _configs(Operation.ALTER_CONFIGS),
    "alter_partition_reassignments": _ALTER_CLUSTER,
    "list_partition_reassignments": _DESCRIBE_CLUSTER,
    "offset_delete": (_group(Operation.DELETE), _topic(Operation.READ)),
    "describe_quorum": _DESCRIBE_CLUSTER,
    "update_features": _ALTER_CLUSTER,
    "unregister_broker": _ALTER_CLUSTER,
    "describe_cluster": NOTHING,
    "describe_producers": (_topic(Operation.READ),),
    "describe_transactions": (
        _transaction(Operation.DESCRIBE),
        _topic(Operation.DESCRIBE, "others are left out"),
    ),
    "list_transactions": (_transaction(Operation.DESCRIBE, "others are left out"),),
    "consumer_group_heartbeat": (
        *_READ_GROUP,
        _topic(Operation.DESCRIBE, "an expression matches no others"),
    ),
    "consumer_group_describe": (*_DESCRIBE_GROUP, _topic(Operation.DESCRIBE, "of members")),
    "list_config_resources": (_cluster(Operation.DESCRIBE_CONFIGS),),
    "describe_topic_partitions": (
        _topic(Operation.DESCRIBE, "others are left out if all are asked for"),
    ),
    "share_group_heartbeat": (*_READ_GROUP, _topic(Operation.DESCRIBE)),
    "share_group_describe": (*_DESCRIBE_GROUP, _topic(Operation.DESCRIBE, "of members")),
    "share_fetch": (*_READ_GROUP, _topic(Operation.READ)),
    "share_acknowledge": (*_READ_GROUP, _topic(Operation.READ)),
    "initialize_share_group_state": _BROKERS_ONLY,
    "read_share_group_state": _BROKERS_ONLY,
    "write_share_group_state": _BROKERS_ONLY,
    "delete_share_group_state": _BROKERS_ONLY,
    "read_share_group_state_summary": _BROKERS_ONLY,
    "describe_share_group_offsets": (*_DESCRIBE_GROUP, _topic(Operation.DESCRIBE)),
    "describe_share_partitions": (*_DESCRIBE_GROUP, _topic(Operation.DESCRIBE)),
    "describe_archive": (_topic(Operation.DESCRIBE, "others are left out"),),
    "alter_share_group_offsets": (*_READ_GROUP, _topic(Operation.READ)),
    "delete_share_group_offsets": (_group(Operation.DELETE), _topic(Operation.READ)),
    # Sent before a client is authenticated, or by it about itself.
    "sasl_handshake": NOTHING,
    "sasl_authenticate": NOTHING,
    "get_telemetry_subscriptions": NOTHING,
    "push_telemetry": NOTHING,
    # Quotas and credentials.
    "describe_client_quotas": (_cluster(Operation.DESCRIBE_CONFIGS),),
    "alter_client_quotas": (_cluster(Operation.ALTER_CONFIGS),),
    "describe_user_scram_credentials": _DESCRIBE_CLUSTER,
    "alter_user_scram_credentials": _ALTER_CLUSTER,
}
