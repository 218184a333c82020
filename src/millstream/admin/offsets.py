"""Offsets of many partitions: one ListOffsets request per leader, whatever their number.

`find_offsets` leaves out partitions that do not answer, with their errors, so that a page about a
thousand of them does not fail with one. The other functions raise `ApiError` instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Any

from millstream.client.cluster import Cluster, TopicInfo, check
from millstream.errors import ApiError, ErrorCode
from millstream.models import dataclass
from millstream.partitions import TopicPartition

LATEST = -1
EARLIEST = -2
READ_UNCOMMITTED = 0
READ_COMMITTED = 1
PARTITIONS_AT_ONCE = 500  # of a request: a broker does nothing else while it answers
ATTEMPTS = 3  # with refreshed metadata: leaders move


@dataclass
class Offsets:
    """What the leaders answered."""

    found: dict[TopicPartition, int] = field(default_factory=dict)
    errors: dict[TopicPartition, ErrorCode] = field(default_factory=dict)


def find_offsets(
    cluster: Cluster,
    timestamps: Mapping[TopicPartition, int],
    *,
    isolation_level: int = READ_UNCOMMITTED,
    leaders: Mapping[TopicPartition, int] | None = None,
) -> Offsets:
    """The offset for each timestamp (`LATEST`, `EARLIEST`, milliseconds since 1970).

    A caller that has just read the metadata passes the `leaders` in it, which saves asking for
    them. Raises `OSError` only if no broker answers.
    """
    answer = Offsets()
    missing = dict(timestamps)
    for attempt in range(ATTEMPTS):
        if not missing:
            break
        known = leaders if attempt == 0 else None
        by_leader, leaderless = partitions_by_leader(cluster, missing, known)
        answer.errors = dict(leaderless)
        for leader, places in by_leader.items():
            for first in range(0, len(places), PARTITIONS_AT_ONCE):
                chunk = places[first : first + PARTITIONS_AT_ONCE]
                wanted = {place: missing[place] for place in chunk}
                _ask_leader(cluster, leader, wanted, isolation_level, answer)
        missing = {place: missing[place] for place, it in answer.errors.items() if it.retriable}
    return answer


def _ask_leader(
    cluster: Cluster,
    leader: int,
    timestamps: Mapping[TopicPartition, int],
    isolation_level: int,
    answer: Offsets,
) -> None:
    topics: dict[str, list[dict[str, int]]] = {}
    for (topic, index), timestamp in timestamps.items():
        asked = {"partition_index": index, "current_leader_epoch": -1, "timestamp": timestamp}
        topics.setdefault(topic, []).append(asked)
    fields = {
        "replica_id": -1,
        "isolation_level": isolation_level,
        "topics": [{"name": name, "partitions": asked} for name, asked in topics.items()],
    }
    try:
        told = cluster.connection(leader).call("list_offsets", fields)
    except OSError:
        cluster.forget_all()
        answer.errors |= dict.fromkeys(timestamps, ErrorCode.BROKER_NOT_AVAILABLE)
        return
    for topic in told.topics:
        for partition in topic.partitions:
            place = (topic.name, int(partition.partition_index))
            if partition.error_code is ErrorCode.NONE:
                answer.found[place] = int(partition.offset)
                answer.errors.pop(place, None)
            else:
                answer.errors[place] = partition.error_code


def partitions_by_leader(
    cluster: Cluster,
    places: Iterable[TopicPartition],
    leaders: Mapping[TopicPartition, int] | None = None,
) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, ErrorCode]]:
    """The partitions that each broker leads, and the errors of those without a leader. `leaders`
    are those that the caller knows already."""
    wanted = sorted(set(places))
    if leaders is not None:
        return _by_known_leader(wanted, leaders)
    known = known_topics(cluster, {topic for topic, _ in wanted})
    by_leader: dict[int, list[TopicPartition]] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    for topic, index in wanted:
        partitions = known[topic].partitions if topic in known else ()
        if index >= len(partitions):
            errors[topic, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        elif partitions[index].leader < 0:
            errors[topic, index] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            by_leader.setdefault(partitions[index].leader, []).append((topic, index))
    return by_leader, errors


def _by_known_leader(
    wanted: Iterable[TopicPartition], leaders: Mapping[TopicPartition, int]
) -> tuple[dict[int, list[TopicPartition]], dict[TopicPartition, ErrorCode]]:
    by_leader: dict[int, list[TopicPartition]] = {}
    errors: dict[TopicPartition, ErrorCode] = {}
    for place in wanted:
        leader = leaders.get(place, -1)
        if leader < 0:
            errors[place] = ErrorCode.LEADER_NOT_AVAILABLE
        else:
            by_leader.setdefault(leader, []).append(place)
    return by_leader, errors


def known_topics(cluster: Cluster, names: Iterable[str]) -> dict[str, TopicInfo]:
    """Those of the topics that exist and that the user may see."""
    wanted = sorted(set(names))
    try:
        return cluster.retrying(lambda: cluster.refresh(wanted)) if wanted else {}
    except ApiError:  # the user may not see one of them: all that the user may see has no errors
        visible = cluster.retrying(lambda: cluster.refresh(None))
        return {name: visible[name] for name in wanted if name in visible}


def start_offsets(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The offset of the oldest record of each partition."""
    return _all_offsets(cluster, dict.fromkeys(places, EARLIEST))


def end_offsets(cluster: Cluster, places: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """The end of each partition."""
    return _all_offsets(cluster, dict.fromkeys(places, LATEST))


def offsets_at(
    cluster: Cluster, places: Iterable[TopicPartition], timestamp_ms: int
) -> dict[TopicPartition, int]:
    """The first offset at or after the timestamp; the end if there is none."""
    wanted = list(places)
    found = _all_offsets(cluster, dict.fromkeys(wanted, timestamp_ms))
    return found | end_offsets(cluster, [place for place in wanted if found[place] < 0])


def _all_offsets(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    def attempt() -> dict[TopicPartition, int]:
        answer: Any = find_offsets(cluster, timestamps)
        for (topic, index), code in answer.errors.items():
            check(code, f"where {topic}-{index} begins and ends", "list_offsets")
        return dict(answer.found)

    return cluster.retrying(attempt)
