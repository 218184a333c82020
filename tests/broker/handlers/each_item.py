"""Administrative requests with two items each, and the errors that each item is answered with."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from millstream.security.acls import Operation, PatternType, Permission, ResourceType

TOPIC = 2  # a resource with settings
ANYTHING = 1
LATER = {"timeout": 60_000}
COMMIT = {"validate_only": False}


class Request(NamedTuple):
    key: int
    version: int
    fields: dict[str, Any]
    codes: Callable[[Any], list[int]]  # of its answer, one per item


def each_request(suffix: str, topic_ids: tuple[uuid.UUID, uuid.UUID]) -> Mapping[str, Request]:
    """The topics `a` and `b` exist; those with the ids are deleted; new names end in `suffix`."""
    names = (f"x{suffix}", f"y{suffix}")
    return {
        **_of_topics(names, topic_ids),
        **_of_partitions(),
        **_of_settings(),
        **_of_users(names),
        **_of_acls(names),
    }


def _of_topics(names: tuple[str, str], ids: tuple[uuid.UUID, uuid.UUID]) -> dict[str, Request]:
    new = {"num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    created = [{"name": it, **new} for it in names]
    more = [{"name": it, "count": 2, "assignments": None} for it in "ab"]
    deleted = [{"name": None, "topic_id": it} for it in ids]
    return {
        "CreateTopics": Request(
            *(19, 7, {"topics": created, **COMMIT, **LATER}),
            lambda answer: [it.error_code for it in answer.topics],
        ),
        "CreatePartitions": Request(
            *(37, 3, {"topics": more, **COMMIT, **LATER}),
            lambda answer: [it.error_code for it in answer.results],
        ),
        "DeleteTopics": Request(
            *(20, 6, {"topics": deleted, **LATER}),
            lambda answer: [it.error_code for it in answer.responses],
        ),
    }


def _of_partitions() -> dict[str, Request]:
    target = [{"partition_index": 0, "replicas": (1,)}]
    moved = [{"name": it, "partitions": target} for it in "ab"]
    elected = [{"topic": it, "partitions": (0,)} for it in "ab"]
    return {
        "AlterPartitionReassignments": Request(
            *(45, 1, {"topics": moved, **LATER}),
            lambda answer: [
                partition.error_code for it in answer.responses for partition in it.partitions
            ],
        ),
        "ElectLeaders": Request(
            *(43, 2, {"election_type": 0, "topic_partitions": elected, **LATER}),
            lambda answer: [
                partition.error_code
                for it in answer.replica_election_results
                for partition in it.partition_result
            ],
        ),
    }


def _of_settings() -> dict[str, Request]:
    def resources(**config: object) -> list[dict[str, Any]]:
        configs = [{"name": "retention.ms", **config}]
        return [{"resource_type": TOPIC, "resource_name": it, "configs": configs} for it in "ab"]

    def codes(answer: Any) -> list[int]:
        return [it.error_code for it in answer.responses]

    changed = resources(value="1000", config_operation=0)
    return {
        "IncrementalAlterConfigs": Request(44, 1, {"resources": changed, **COMMIT}, codes),
        "AlterConfigs": Request(33, 2, {"resources": resources(value="2000"), **COMMIT}, codes),
    }


def _of_users(names: tuple[str, str]) -> dict[str, Request]:
    credential = {"mechanism": 1, "iterations": 4096, "salt": b"s", "salted_password": b"p" * 32}
    users = [{"name": it, **credential} for it in names]
    rate = [{"key": "producer_byte_rate", "value": 1e6, "remove": False}]
    entries = [
        {"entity": [{"entity_type": "user", "entity_name": it}], "ops": rate} for it in names
    ]
    return {
        "AlterUserScramCredentials": Request(
            *(51, 0, {"deletions": (), "upsertions": users}),
            lambda answer: [it.error_code for it in answer.results],
        ),
        "AlterClientQuotas": Request(
            *(49, 1, {"entries": entries, **COMMIT}),
            lambda answer: [it.error_code for it in answer.entries],
        ),
    }


def _of_acls(names: tuple[str, str]) -> dict[str, Request]:
    created = {
        "resource_type": ResourceType.TOPIC,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": "User:ann",
        "host": "*",
        "operation": Operation.READ,
        "permission_type": Permission.ALLOW,
    }
    matched = {
        "resource_type_filter": ResourceType.TOPIC,
        "pattern_type_filter": PatternType.LITERAL,
        "principal_filter": None,
        "host_filter": None,
        "operation": ANYTHING,
        "permission_type": ANYTHING,
    }
    filters = [{"resource_name_filter": it, **matched} for it in names]
    return {
        "CreateAcls": Request(
            *(30, 3, {"creations": [{"resource_name": it, **created} for it in names]}),
            lambda answer: [it.error_code for it in answer.results],
        ),
        "DeleteAcls": Request(
            *(31, 3, {"filters": filters}),
            lambda answer: [it.error_code for it in answer.filter_results],
        ),
    }
