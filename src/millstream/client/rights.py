"""The right that a request needs, so that an error can name it: see docs/guides/security.md.

A broker that refuses a request says for what kind of resource (the topic, a group, ...), not which
right the user lacks. Names are those of Kafka's ACLs.
"""

from __future__ import annotations

from millstream.errors import ErrorCode

TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
TRANSACTIONAL_ID = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED

RESOURCES = {
    TOPIC: "the topic",
    GROUP: "the group",
    TRANSACTIONAL_ID: "the transactional id",
    CLUSTER: "the cluster",
}
_NEEDED = {
    "produce": {TOPIC: "Write", TRANSACTIONAL_ID: "Write"},
    "fetch": {TOPIC: "Read"},
    "share_fetch": {TOPIC: "Read", GROUP: "Read"},
    "share_acknowledge": {TOPIC: "Read", GROUP: "Read"},
    "metadata": {TOPIC: "Describe (which Read and Write imply)"},
    "list_offsets": {TOPIC: "Describe"},
    "create_topics": {TOPIC: "Create", CLUSTER: "Create"},
    "delete_topics": {TOPIC: "Delete"},
    "delete_groups": {GROUP: "Delete"},
    "describe_configs": {TOPIC: "DescribeConfigs", GROUP: "DescribeConfigs"},
    "find_coordinator": {GROUP: "Describe", TRANSACTIONAL_ID: "Describe"},
    "offset_commit": {GROUP: "Read", TOPIC: "Read"},
    "offset_fetch": {GROUP: "Describe", TOPIC: "Describe"},
    "init_producer_id": {TRANSACTIONAL_ID: "Write", CLUSTER: "IdempotentWrite"},
    "add_partitions_to_txn": {TRANSACTIONAL_ID: "Write", TOPIC: "Write"},
    "add_offsets_to_txn": {TRANSACTIONAL_ID: "Write", GROUP: "Read"},
    "txn_offset_commit": {TRANSACTIONAL_ID: "Write", GROUP: "Read", TOPIC: "Read"},
    "end_txn": {TRANSACTIONAL_ID: "Write"},
    "list_transactions": {TRANSACTIONAL_ID: "Describe"},
    "describe_transactions": {TRANSACTIONAL_ID: "Describe"},
    "describe_producers": {TOPIC: "Read"},
    "write_txn_markers": {CLUSTER: "Alter"},
    "describe_log_dirs": {CLUSTER: "Describe"},
    "alter_partition_reassignments": {CLUSTER: "Alter"},
    "alter_replica_log_dirs": {CLUSTER: "Alter"},
    "list_partition_reassignments": {CLUSTER: "Describe"},
    "elect_leaders": {CLUSTER: "Alter"},
    "unregister_broker": {CLUSTER: "Alter"},
    "describe_user_scram_credentials": {CLUSTER: "Describe"},
    "alter_user_scram_credentials": {CLUSTER: "Alter"},
    "describe_acls": {CLUSTER: "Describe"},
    "create_acls": {CLUSTER: "Alter"},
    "delete_acls": {CLUSTER: "Alter"},
    "describe_client_quotas": {CLUSTER: "DescribeConfigs"},
    "alter_client_quotas": {CLUSTER: "AlterConfigs"},
}


def with_right(message: str, api: str, code: ErrorCode) -> str:
    """The message, and the right that the user lacks if that is what the code says."""
    if code not in RESOURCES:
        return message
    right = _NEEDED.get(api, {}).get(code)
    if right is None:
        return message
    return f"{message.rstrip('.')}; the user needs {right} on {RESOURCES[code]}"
