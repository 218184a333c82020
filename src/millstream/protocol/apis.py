"""The APIs that the broker supports, with their versions.

This is the only list of them: ApiVersions returns it, and `broker.handlers` finds the module and
function of an API by its name, at its first request.

`raw` handlers (Produce, Fetch, Metadata, ApiVersions) get the undecoded body and return the encoded
response body; they are the hot paths and the first answers.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple


class CoordinatorKind(IntEnum):
    """What FindCoordinator can ask for, with the wire's numbers."""

    GROUP = 0
    TRANSACTION = 1
    SHARE = 2


class Api(NamedTuple):
    key: int
    name: str  # kio's name of the schema, e.g. "offset_commit"; also its handler's
    min_version: int
    max_version: int
    first_flexible: int  # the first version with request header 2; past max_version when none
    raw: bool = False  # takes the undecoded body, returns the encoded response
    exact: bool = False  # takes the request as its own version's class, not the newest one's
    advertised_min: int | None = None  # advertised in ApiVersions, if it differs from min_version


_APIS = (
    Api(0, "produce", 3, 13, first_flexible=9, raw=True, advertised_min=0),
    Api(1, "fetch", 4, 18, first_flexible=12, raw=True),
    Api(2, "list_offsets", 1, 11, first_flexible=6),
    Api(3, "metadata", 0, 13, first_flexible=9, raw=True),
    Api(8, "offset_commit", 2, 10, first_flexible=8, exact=True),
    Api(9, "offset_fetch", 1, 10, first_flexible=6, exact=True),
    Api(10, "find_coordinator", 0, 6, first_flexible=3, exact=True),
    Api(11, "join_group", 0, 9, first_flexible=6),
    Api(12, "heartbeat", 0, 4, first_flexible=4),
    Api(13, "leave_group", 0, 5, first_flexible=4, exact=True),
    Api(14, "sync_group", 0, 5, first_flexible=4),
    Api(15, "describe_groups", 0, 6, first_flexible=5),
    Api(16, "list_groups", 0, 5, first_flexible=3),
    Api(17, "sasl_handshake", 0, 1, first_flexible=2),
    Api(18, "api_versions", 0, 4, first_flexible=3, raw=True),
    Api(19, "create_topics", 2, 7, first_flexible=5),
    Api(20, "delete_topics", 1, 6, first_flexible=4, exact=True),
    Api(21, "delete_records", 0, 2, first_flexible=2),
    Api(22, "init_producer_id", 0, 5, first_flexible=2),
    Api(23, "offset_for_leader_epoch", 2, 4, first_flexible=4),
    Api(24, "add_partitions_to_txn", 0, 5, first_flexible=3, exact=True),
    Api(25, "add_offsets_to_txn", 0, 4, first_flexible=3),
    Api(26, "end_txn", 0, 5, first_flexible=3),
    Api(27, "write_txn_markers", 1, 2, first_flexible=1),
    Api(28, "txn_offset_commit", 0, 5, first_flexible=3),
    Api(29, "describe_acls", 1, 3, first_flexible=2),
    Api(30, "create_acls", 1, 3, first_flexible=2),
    Api(31, "delete_acls", 1, 3, first_flexible=2),
    Api(32, "describe_configs", 1, 4, first_flexible=4),
    Api(33, "alter_configs", 0, 2, first_flexible=2),
    Api(34, "alter_replica_log_dirs", 1, 2, first_flexible=2),
    Api(35, "describe_log_dirs", 1, 5, first_flexible=2),
    Api(36, "sasl_authenticate", 0, 2, first_flexible=2),
    Api(37, "create_partitions", 0, 3, first_flexible=2),
    Api(42, "delete_groups", 0, 2, first_flexible=2),
    Api(43, "elect_leaders", 0, 2, first_flexible=2),
    Api(44, "incremental_alter_configs", 0, 1, first_flexible=1),
    Api(45, "alter_partition_reassignments", 0, 1, first_flexible=0),
    Api(46, "list_partition_reassignments", 0, 0, first_flexible=0),
    Api(47, "offset_delete", 0, 0, first_flexible=1),
    Api(48, "describe_client_quotas", 0, 1, first_flexible=1),
    Api(49, "alter_client_quotas", 0, 1, first_flexible=1),
    Api(50, "describe_user_scram_credentials", 0, 0, first_flexible=0),
    Api(51, "alter_user_scram_credentials", 0, 0, first_flexible=0),
    Api(55, "describe_quorum", 0, 2, first_flexible=0),
    Api(57, "update_features", 0, 2, first_flexible=0),
    Api(60, "describe_cluster", 0, 2, first_flexible=0),
    Api(61, "describe_producers", 0, 0, first_flexible=0),
    Api(64, "unregister_broker", 0, 0, first_flexible=0),
    Api(65, "describe_transactions", 0, 0, first_flexible=0),
    Api(66, "list_transactions", 0, 2, first_flexible=0),
    Api(68, "consumer_group_heartbeat", 0, 1, first_flexible=0),
    Api(69, "consumer_group_describe", 0, 1, first_flexible=0),
    Api(71, "get_telemetry_subscriptions", 0, 0, first_flexible=0),
    Api(72, "push_telemetry", 0, 0, first_flexible=0),
    Api(74, "list_config_resources", 0, 1, first_flexible=0),
    Api(75, "describe_topic_partitions", 0, 0, first_flexible=0),
    Api(76, "share_group_heartbeat", 1, 1, first_flexible=0),
    Api(77, "share_group_describe", 1, 1, first_flexible=0),
    Api(78, "share_fetch", 1, 2, first_flexible=0, raw=True),
    Api(79, "share_acknowledge", 1, 2, first_flexible=0, raw=True),
    Api(83, "initialize_share_group_state", 0, 0, first_flexible=0),
    Api(84, "read_share_group_state", 0, 0, first_flexible=0),
    Api(85, "write_share_group_state", 0, 1, first_flexible=0),
    Api(86, "delete_share_group_state", 0, 0, first_flexible=0),
    Api(87, "read_share_group_state_summary", 0, 1, first_flexible=0),
    Api(90, "describe_share_group_offsets", 0, 1, first_flexible=0),
    Api(91, "alter_share_group_offsets", 0, 0, first_flexible=0),
    Api(92, "delete_share_group_offsets", 0, 0, first_flexible=0),
    Api(20000, "describe_share_partitions", 0, 0, first_flexible=0),
    Api(20001, "describe_archive", 0, 0, first_flexible=0),
)
APIS: dict[int, Api] = {api.key: api for api in _APIS}
OWN_API_KEY_MIN = 20000
"""APIs from here on are Millstream's own: see `protocol.own`."""
TELEMETRY_APIS = frozenset({71, 72})
"""Offered only by a broker that collects the metrics of clients: they would push for nothing."""
