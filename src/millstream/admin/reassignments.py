"""Replicas that move between brokers, and elections of leaders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from millstream.admin.cluster_state import cluster_state, topic_state
from millstream.admin.placement import CannotPlace, moves, plan
from millstream.admin.throttling import Moved, remove_throttles, set_throttles
from millstream.client.cluster import check
from millstream.errors import ErrorCode, MillstreamError
from millstream.models import dataclass

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

    @property
    def before(self) -> tuple[int, ...]:
        return tuple(it for it in self.replicas if it not in self.adding)

    @property
    def after(self) -> tuple[int, ...]:
        return tuple(it for it in self.replicas if it not in self.removing)


@dataclass(frozen=True)
class Elected:
    """The outcome of an election. Partitions that need none are in neither."""

    partitions: list[Place]
    problems: dict[Place, str]


@dataclass(frozen=True, slots=True)
class Move:
    """The replicas of a partition before and after."""

    topic: str
    partition: int
    before: tuple[int, ...]
    after: tuple[int, ...]

    @property
    def adding(self) -> tuple[int, ...]:
        return tuple(it for it in self.after if it not in self.before)

    @property
    def removing(self) -> tuple[int, ...]:
        return tuple(it for it in self.before if it not in self.after)

    @property
    def throttled(self) -> Moved:
        return Moved(self.topic, self.partition, self.before, self.adding)


def plan_moves(
    cluster: Cluster,
    topics: Sequence[str],
    brokers: Sequence[int] | None = None,
    factor: int | None = None,
) -> list[Move]:
    """What has to move so that these topics have `factor` replicas (None: as many as now) on these
    brokers (None: on all). Racks are respected. A partition that moves already is planned from
    where it goes. Raises `CannotPlace` and `ApiError`."""
    state = cluster_state(cluster)
    known = {it.id: it.rack for it in state.brokers}
    unknown = sorted(set(brokers or ()) - known.keys())
    if unknown:
        named = ", ".join(map(str, sorted(known)))
        raise CannotPlace(f"there is no broker {unknown[0]}; the cluster has {named}")
    racks = {broker: rack for broker, rack in known.items() if rack}
    moving = {(it.topic, it.partition): it for it in reassignments(cluster)}
    planned = []
    for topic in topics:
        before = {it.index: it.replicas for it in topic_state(cluster, topic).partitions}
        current = dict(before)
        for index in before:
            if under_way := moving.get((topic, index)):
                before[index], current[index] = under_way.before, under_way.after
        try:
            placed = plan(current, brokers or known.keys(), factor, racks=racks)
        except CannotPlace as error:
            raise CannotPlace(f"{topic}: {error}") from None
        changed = moves(current, placed)
        planned += [Move(topic, it, before[it], after) for it, after in changed.items()]
    return planned


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


class NotReassigned(MillstreamError):
    """The cluster refused to move some partitions, or to leave them where they are."""


def start_moves(cluster: Cluster, planned: Sequence[Move], throttle: int | None = None) -> None:
    """Begin to move; `throttle`, in bytes per second and broker, is set first. Raises
    `NotReassigned`."""
    if throttle:
        set_throttles(cluster, [it.throttled for it in planned], throttle)
    _all_or_refused(cluster, {(it.topic, it.partition): it.after for it in planned})


def cancel_moves(cluster: Cluster, topics: Collection[str] | None = None) -> list[Place]:
    """Leave the partitions of these topics (None: of all) where they were, and remove their
    throttles. Returns those that moved. Raises `NotReassigned`."""
    moving = [
        (it.topic, it.partition)
        for it in reassignments(cluster)
        if topics is None or it.topic in topics
    ]
    if moving:
        _all_or_refused(cluster, dict.fromkeys(moving))
        remove_unused_throttles(cluster, [topic for topic, _ in moving])
    return moving


def remove_unused_throttles(cluster: Cluster, topics: Collection[str]) -> list[str]:
    """Of topics that do not move any more. Rates stay while others move. Returns the topics that
    had throttles."""
    return remove_throttles(cluster, topics, is_moving=bool(reassignments(cluster)))


def _all_or_refused(cluster: Cluster, replicas: Mapping[Place, Sequence[int] | None]) -> None:
    refused = reassign(cluster, replicas)
    if refused:
        named = [f"{topic}-{index}: {why}" for (topic, index), why in refused.items()]
        more = f" and {len(named) - 5} more" if len(named) > 5 else ""
        raise NotReassigned(f"reassigning failed for {'; '.join(named[:5])}{more}")


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
    """Ask any broker: one that is not the controller forwards the request."""

    def attempt() -> Any:
        answer = cluster.any_connection().call(api, fields)
        message = getattr(answer, "error_message", None) or f"{api} is refused"
        check(answer.error_code, message, api)
        return answer

    return cluster.retrying(attempt)
