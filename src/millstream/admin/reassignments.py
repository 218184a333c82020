"""Replicas that move between brokers, and elections of leaders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import check
from millstream.errors import ErrorCode

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

TIMEOUT = timedelta(seconds=30)
PREFERRED, UNCLEAN = 0, 1  # kinds of elections

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Reassignment:
    """A partition whose replicas move now."""

    topic: str
    partition: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]


@dataclass(frozen=True)
class Elected:
    """The outcome of an election. Partitions that need none are in neither."""

    partitions: list[Place]
    problems: dict[Place, str]


def reassignments(cluster: Cluster) -> list[Reassignment]:
    """What moves now, by topic and partition."""
    answer = _ask(cluster, "list_partition_reassignments", {"timeout": TIMEOUT, "topics": None})
    found = [
        Reassignment(
            str(topic.name),
            int(it.partition_index),
            tuple(map(int, it.replicas)),
            tuple(map(int, it.adding_replicas)),
            tuple(map(int, it.removing_replicas)),
        )
        for topic in answer.topics
        for it in topic.partitions
    ]
    return sorted(found, key=lambda it: (it.topic, it.partition))


def reassign(cluster: Cluster, replicas: Mapping[Place, Sequence[int] | None]) -> dict[Place, str]:
    """Ask for these replicas; None cancels. Returns the partitions that were refused, and why."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (topic, index), placed in replicas.items():
        topics.setdefault(topic, []).append({"partition_index": index, "replicas": placed})
    asked = [{"name": name, "partitions": them} for name, them in topics.items()]
    answer = _ask(cluster, "alter_partition_reassignments", {"timeout": TIMEOUT, "topics": asked})
    return {
        (str(topic.name), int(it.partition_index)): it.error_message or it.error_code.name
        for topic in answer.responses
        for it in topic.partitions
        if it.error_code is not ErrorCode.NONE
    }


def elect_leaders(
    cluster: Cluster, partitions: Mapping[str, Sequence[int]] | None, *, unclean: bool = False
) -> Elected:
    """Make the first replica of these partitions (None: of all) their leader.

    `unclean`: a replica that is not in sync, where no other is live. Loses records.
    """
    places = None
    if partitions is not None:
        places = [{"topic": name, "partitions": list(them)} for name, them in partitions.items()]
    answer = _ask(
        cluster,
        "elect_leaders",
        {
            "election_type": UNCLEAN if unclean else PREFERRED,
            "topic_partitions": places,
            "timeout": TIMEOUT,
        },
    )
    elected = Elected([], {})
    for topic in answer.replica_election_results:
        for it in topic.partition_result:
            place = (str(topic.topic), int(it.partition_id))
            if it.error_code is ErrorCode.NONE:
                elected.partitions.append(place)
            elif it.error_code is not ErrorCode.ELECTION_NOT_NEEDED:
                elected.problems[place] = it.error_message or it.error_code.name
    return elected


def _ask(cluster: Cluster, api: str, fields: dict[str, Any]) -> Any:
    """Ask a broker. One that is not the controller forwards the request."""
    answer = cluster.ask_broker(cluster.broker_ids()[0], api, fields)
    check(answer.error_code, getattr(answer, "error_message", None) or f"{api} is refused", api)
    return answer
