"""Administrative requests with two items each, and the errors that each item is answered with."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millstream.security.acls import Operation, PatternType, Permission, ResourceType

TOPIC, BROKER = 2, 4  # of resources with settings
ANYTHING = 1


class Request(NamedTuple):
    key: int
    version: int
    fields: dict[str, Any]
    codes: Callable[[Any], list[int]]  # of its answer, one per item


def each_request(suffix: str, topic_ids: tuple[uuid.UUID, uuid.UUID]) -> Mapping[str, Request]:
    """The topics `a` and `b` exist, `c` and `d` get ids; new names end in `suffix`."""
    names = (f"x{suffix}", f"y{suffix}")
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    change = {"name": "retention.ms", "value": "1000", "config_operation": 0}
    acl = {
        "resource_type": ResourceType.TOPIC,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    credential = {"mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p" * 32}
    quota = {"ops": [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]}
    moved = [{"partition_index": 0, "replicas": (1,)}]
    later = {"timeout": 60_000}
    return {
        "CreateTopics": Request(
            *(19, 7),
            {"topics": [{"name": it, **new} for it in names], "validate_only": False, **later},
            lambda answer: [it.error_code for it in answer.topics],
        ),
        "CreatePartitions": Request(
            *(37, 3),
            {
                "topics": [{"name": it, "count": 2, "assignments": None} for it in "ab"],
                "validate_only": False,
                **later,
            },
            lambda answer: [it.error_code for it in answer.results],
        ),
        "DeleteTopics": Request(
            *(20, 6),
            {"topics": [{"name": None, "topic_id": it} for it in topic_ids], **later},
            lambda answer: [it.error_code for it in answer.responses],
        ),
        "IncrementalAlterConfigs": Request(
            *(44, 1),
            {
                "resources": [
                    {"resource_type": TOPIC, "resource_name": it, "configs": [change]}
                    for it in "ab"
                ],
                "validate_only": False,
            },
            lambda answer: [it.error_code for it in answer.responses],
        ),
        "AlterConfigs": Request(
            *(33, 2),
            {
                "resources": [
                    {
                        "resource_type": TOPIC,
                        "resource_name": it,
                        "configs": [{"name": "retention.ms", "value": "2000"}],
                    }
                    for it in "ab"
                ],
                "validate_only": False,
            },
            lambda answer: [it.error_code for it in answer.responses],
        ),
        "AlterPartitionReassignments": Request(
            *(45, 1),
            {"topics": [{"name": it, "partitions": moved} for it in "ab"], **later},
            lambda answer: [
                partition.error_code for it in answer.responses for partition in it.partitions
            ],
        ),
        "ElectLeaders": Request(
            *(43, 2),
            {
                "election_type": 0,
                "topic_partitions": [{"topic": it, "partitions": (0,)} for it in "ab"],
                **later,
            },
            lambda answer: [
                partition.error_code
                for it in answer.replica_election_results
                for partition in it.partition_result
            ],
        ),
        "AlterUserScramCredentials": Request(
            *(51, 0),
            {"deletions": (), "upsertions": [{"name": it, **credential} for it in names]},
            lambda answer: [it.error_code for it in answer.results],
        ),
        "AlterClientQuotas": Request(
            *(49, 1),
            {
                "entries": [
                    {"entity": [{"entity_type": "user", "entity_name": it}], **quota}
                    for it in names
                ],
                "validate_only": False,
            },
            lambda answer: [it.error_code for it in answer.entries],
        ),
        "CreateAcls": Request(
            *(30, 3),
            {"creations": [{"resource_name": it, **acl} for it in names]},
            lambda answer: [it.error_code for it in answer.results],
        ),
        "DeleteAcls": Request(
            *(31, 3),
            {
                "filters": [
                    {
                        "resource_type_filter": ResourceType.TOPIC,
                        "resource_name_filter": it,
                        "pattern_type_filter": PatternType.LITERAL,
                        "principal_filter": None,
                        "host_filter": None,
                        "operation": ANYTHING,
                        "permission_type": ANYTHING,
                    }
                    for it in names
                ]
            },
            lambda answer: [it.error_code for it in answer.filter_results],
        ),
    }
