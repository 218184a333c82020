"""Consumer groups of any Kafka cluster: the list, members and their partitions, offsets, deletion.

A broker lists the groups that it coordinates, so the offsets of all of them are one request per
broker. Share groups are listed here too; the rest of them is in `share_groups`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from typing import Any, Protocol

from millstream.admin.errors import NotFound, OperationFailed
from millstream.client.cluster import Cluster, CoordinatorKind, check
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass
from millstream.partitions import TopicPartition

CONSUMER = "consumer"
CLASSIC = "classic"
SHARE = "share"
STREAMS = "streams"
CONSUMER_PROTOCOL = "consumer"  # the protocol type of groups of consumers; others: connect, ...
DEAD = "dead"
OFFSET_VERSIONS_MAX = 9  # the last version of OffsetFetch and OffsetCommit with topic names
GROUPS_AT_ONCE = 500
NO_MEMBER = ""
NO_GENERATION = -1

_ACTIVE = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP)
_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")


@dataclass(frozen=True)
class GroupListing:
    """A group as its coordinator lists it."""

    group: str
    type: str  # classic, consumer, share, streams; unknown of brokers before 3.8
    state: str
    protocol: str  # the protocol type: consumer, connect, share, ...
    coordinator: int


class Listed(Protocol):
    """What identifies a group and its coordinator."""

    @property
    def group(self) -> str: ...

    @property
    def type(self) -> str: ...

    @property
    def coordinator(self) -> int: ...


@dataclass(frozen=True)
class Member:
    """A member of a group and its partitions."""

    member: str
    instance: str | None
    client: str
    host: str
    partitions: tuple[TopicPartition, ...] = ()
    target: tuple[TopicPartition, ...] | None = None  # if it is about to change
    rack: str | None = None
    epoch: int | None = None


@dataclass(frozen=True)
class GroupDescription:
    """A group with its members."""

    group: str
    type: str
    state: str
    protocol: str
    assignor: str
    coordinator: int
    members: tuple[Member, ...] = field(default=())
    epoch: int | None = None

    @property
    def readers(self) -> dict[TopicPartition, Member]:
        """Members by partition."""
        return {place: member for member in self.members for place in member.partitions}


def list_groups(cluster: Cluster) -> list[GroupListing]:
    """All groups of all coordinators that the user may describe, by name."""
    rows = []
    for broker_id in cluster.broker_ids():
        answer = cluster.ask_broker(broker_id, "list_groups", {})
        check(answer.error_code, f"broker {broker_id} does not list its groups")
        rows += [
            GroupListing(
                str(it.group_id),
                getattr(it, "group_type", "unknown").lower(),
                getattr(it, "group_state", "unknown").lower(),
                str(it.protocol_type),
                broker_id,
            )
            for it in answer.groups
        ]
    return sorted(rows, key=lambda row: row.group)


def find_group(cluster: Cluster, group: str) -> GroupListing:
    """The group's line in the list; raises `OperationFailed` for an unknown one."""
    listed = list_groups(cluster)
    for row in listed:
        if row.group == group:
            return row
    raise no_such_group(group, [row.group for row in listed])


def no_such_group(group: str, known: Iterable[str]) -> NotFound:
    close = get_close_matches(group, list(known), n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return NotFound(f"there is no group {group!r}{hint}")


# Members


def describe_group(cluster: Cluster, group: str) -> GroupDescription:
    """The group with its members; raises `OperationFailed` if there is none.

    The classic request comes first, which all brokers know. They describe a group that is unknown
    or of another type as dead, or refuse it.
    """
    found = _ask_about(cluster, group, "describe_groups", {"groups": [group]})
    if found.error_code is ErrorCode.NONE and found.group_state.lower() != DEAD:
        return _described(cluster, found)
    _check_described(found, group, "describe_groups")
    try:
        fields = {"group_ids": [group]}
        found = _ask_about(cluster, group, "consumer_group_describe", fields)
    except ApiError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
    else:
        if found.error_code is ErrorCode.NONE:
            return _described_consumers(cluster, found)
        _check_described(found, group, "consumer_group_describe")
    raise no_such_group(group, [row.group for row in list_groups(cluster)])


def _ask_about(cluster: Cluster, group: str, api: str, fields: Mapping[str, Any]) -> Any:
    answer = cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        api,
        fields,
        error_of=lambda answer: answer.groups[0].error_code,
    )
    return answer.groups[0]


def _check_described(found: Any, group: str, api: str) -> None:
    if found.error_code is not ErrorCode.GROUP_ID_NOT_FOUND:
        check(found.error_code, getattr(found, "error_message", None) or f"group {group!r}", api)


def _described_consumers(cluster: Cluster, found: Any) -> GroupDescription:
    members = []
    for it in found.members:
        now, target = _places(it.assignment), _places(it.target_assignment)
        members.append(
            Member(
                it.member_id,
                it.instance_id,
                it.client_id,
                it.client_host.lstrip("/"),
                now,
                None if now == target else target,
                it.rack_id,
                int(it.member_epoch),
            )
        )
    return GroupDescription(
        str(found.group_id),
        CONSUMER,
        found.group_state.lower(),
        CONSUMER_PROTOCOL,
        found.assignor_name,
        cluster.coordinator(CoordinatorKind.GROUP, found.group_id),
        tuple(members),
        int(found.group_epoch),
    )


def _places(assignment: Any) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted((it.topic_name, int(p)) for it in assignment.topic_partitions for p in it.partitions)
    )


def _described(cluster: Cluster, found: Any) -> GroupDescription:
    is_of_consumers = found.protocol_type == CONSUMER_PROTOCOL
    members = tuple(
        Member(
            it.member_id,
            getattr(it, "group_instance_id", None),
            it.client_id,
            it.client_host.lstrip("/"),
            decode_assignment(bytes(it.member_assignment)) if is_of_consumers else (),
        )
        for it in found.members
    )
    return GroupDescription(
        str(found.group_id),
        CLASSIC,
        found.group_state.lower(),
        found.protocol_type,
        found.protocol_data,
        cluster.coordinator(CoordinatorKind.GROUP, found.group_id),
        members,
    )


def decode_assignment(content: bytes) -> tuple[TopicPartition, ...]:
    """The partitions in the assignment of a classic consumer; none if it is not to be read.

    int16 version, then an array of (string topic, array of int32 partition); user data follow.
    """
    places = []
    try:
        position = _INT16.size
        (topics,) = _INT32.unpack_from(content, position)
        position += _INT32.size
        for _ in range(topics):
            (length,) = _INT16.unpack_from(content, position)
            position += _INT16.size
            topic = content[position : position + length].decode()
            position += length
            (count,) = _INT32.unpack_from(content, position)
            position += _INT32.size
            partitions = struct.unpack_from(f">{count}i", content, position)
            position += count * _INT32.size
            places += [(topic, index) for index in partitions]
    except (struct.error, UnicodeDecodeError):
        return ()
    return tuple(sorted(places))


# Offsets


@dataclass(frozen=True)
class Committed:
    """A committed offset, and the text that was committed with it."""

    offset: int
    metadata: str = ""


def committed(
    cluster: Cluster, group: str, *, require_stable: bool = False
) -> dict[TopicPartition, Committed]:
    """What the group has committed, by partition; with `require_stable`, after the end of pending
    transactions."""

    def attempt() -> dict[TopicPartition, Committed]:
        broker_id = cluster.coordinator(CoordinatorKind.GROUP, group)
        (found,) = _ask_offsets(cluster, broker_id, [group], require_stable)
        check(found.error_code, f"the offsets of group {group!r}", "offset_fetch")
        if require_stable:
            for code in {it.error_code for topic in found.topics for it in topic.partitions}:
                check(code, f"the offsets of group {group!r}", "offset_fetch")
        return _committed_in(found)

    return cluster.retrying(attempt)


def committed_offsets(cluster: Cluster, group: str) -> dict[TopicPartition, int]:
    """The offsets that the group has committed, by partition."""
    return {place: it.offset for place, it in committed(cluster, group).items()}


def committed_by_group(
    cluster: Cluster, listed: Iterable[GroupListing]
) -> dict[str, dict[TopicPartition, int]]:
    """What each of the groups has committed; groups whose coordinator has changed since they were
    listed, and groups that the user may not describe, are left out."""
    by_broker: dict[int, list[str]] = {}
    for row in listed:
        by_broker.setdefault(row.coordinator, []).append(row.group)
    found = {}
    for broker_id, groups in by_broker.items():
        for first in range(0, len(groups), GROUPS_AT_ONCE):
            for it in _ask_offsets(cluster, broker_id, groups[first : first + GROUPS_AT_ONCE]):
                if it.error_code is ErrorCode.NONE:
                    found[str(it.group_id)] = {
                        place: one.offset for place, one in _committed_in(it).items()
                    }
    return found


def _ask_offsets(
    cluster: Cluster, broker_id: int, groups: Sequence[str], require_stable: bool = False
) -> Any:
    connection = cluster.connection(broker_id)
    version = connection.version_for("offset_fetch", newest=OFFSET_VERSIONS_MAX)
    asked = [{"group_id": group, "topics": None} for group in groups]
    answer = connection.call(
        "offset_fetch", {"groups": asked, "require_stable": require_stable}, version=version
    )
    return answer.groups


def _committed_in(found: Any) -> dict[TopicPartition, Committed]:
    return {
        (str(topic.name), int(it.partition_index)): Committed(
            int(it.committed_offset), it.metadata or ""
        )
        for topic in found.topics
        for it in topic.partitions
        if it.error_code is ErrorCode.NONE and it.committed_offset >= 0
    }


def commit_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Commit new offsets; the group must have no members."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), offset in offsets.items():
        asked = {"partition_index": index, "committed_offset": offset, "committed_metadata": ""}
        topics.setdefault(topic, []).append(asked)
    fields = {
        "group_id": group,
        "generation_id_or_member_epoch": NO_GENERATION,
        "member_id": NO_MEMBER,
        "topics": [{"name": name, "partitions": asked} for name, asked in topics.items()],
    }
    broker_id = cluster.retrying(lambda: cluster.coordinator(CoordinatorKind.GROUP, group))
    version = cluster.connection(broker_id).version_for("offset_commit", newest=OFFSET_VERSIONS_MAX)
    answer = cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "offset_commit",
        fields,
        version=version,
        error_of=_first_error,
    )
    for topic in answer.topics:
        for it in topic.partitions:
            _check_inactive(it.error_code, group)
            check(it.error_code, f"{topic.name}[{it.partition_index}]", "offset_commit")


def _first_error(answer: Any) -> ErrorCode:
    codes = [it.error_code for topic in answer.topics for it in topic.partitions]
    return next((code for code in codes if code is not ErrorCode.NONE), ErrorCode.NONE)


def _check_inactive(code: ErrorCode, group: str) -> None:
    if code in _ACTIVE:
        raise OperationFailed(f"group {group!r} has members; stop its consumers first")


def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group of any type without members, with its offsets and state."""
    answer = cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "delete_groups",
        {"groups_names": [group]},
        error_of=lambda answer: answer.results[0].error_code,
    )
    code = answer.results[0].error_code
    if code is ErrorCode.GROUP_ID_NOT_FOUND:
        raise no_such_group(group, [row.group for row in list_groups(cluster)])
    _check_inactive(code, group)
    check(code, f"group {group!r} cannot be deleted", "delete_groups")


def member_counts(cluster: Cluster, listed: Iterable[Listed]) -> dict[str, int]:
    """How many members each group has; groups that cannot be described are left out."""
    asked: dict[tuple[int, bool], list[str]] = {}
    for row in listed:
        asked.setdefault((row.coordinator, row.type == CONSUMER), []).append(row.group)
    found = {}
    for (broker_id, is_new), groups in asked.items():
        api = "consumer_group_describe" if is_new else "describe_groups"
        fields = {"group_ids": groups} if is_new else {"groups": groups}
        for it in cluster.ask_broker(broker_id, api, fields).groups:
            if it.error_code is ErrorCode.NONE:
                found[str(it.group_id)] = len(it.members)
    return found
