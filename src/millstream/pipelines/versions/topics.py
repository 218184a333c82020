"""Topics of versions: where they end, completing a last batch, deleting what a version leaves."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from millstream.client.cluster import CoordinatorKind, check
from millstream.client.fetching import log_end_offset
from millstream.errors import ErrorCode
from millstream.pipelines.offsets import LATEST, Offsets
from millstream.pipelines.versions.catalog import Catalog
from millstream.pipelines.versions.registry import Version, Versions, private_topic
from millstream.pipelines.writing.decisions import DecisionLog, decode_decision

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

TIMEOUT_MS = 30_000


def topic_ends(cluster: Cluster, topics: Collection[str]) -> Offsets:
    """Where committed records end now."""
    from millstream.pipelines.reading.options import Position, ReadOptions, Selection
    from millstream.pipelines.reading.positions import Positions

    options = ReadOptions("", Selection(topics=tuple(sorted(topics))), Position(), Position())
    positions = Positions(options, cluster)
    return positions.lookup(dict.fromkeys(positions.partitions(), LATEST))


def output_ends(cluster: Cluster, document: Versions) -> Offsets:
    """Where all topics end that versions write, also with records of open transactions."""
    names = {
        name
        for version in document.versions.values()
        for topic in version.topics
        for name in (topic, private_topic(topic, version.version))
    }
    found = cluster.retrying(lambda: cluster.refresh(sorted(names))) if names else {}
    return {
        (name, it.number): log_end_offset(cluster, name, it.number)
        for name, topic in found.items()
        for it in topic.partitions
    }


def complete_last_batch(
    catalog: Catalog, cluster: Cluster, query: str, version: Version
) -> int | None:
    """Commit what the last batch of a version has left open, and return its number.

    A running version has done so before it halted. For one that was killed, this process takes its
    place, which fences it.
    """
    stored = catalog.read(lambda work: work.progress(query))
    if stored is None or stored.decision is None:
        return None if stored is None else stored.batch_id
    decided = decode_decision(stored.decision.encode())
    log = DecisionLog(cluster, version.transactional_id)
    state = log.committed()
    if not (state.is_completed and state.decision.batch_id >= decided.batch_id):
        _protocol(cluster, version).begin(stored=decided)
    return stored.batch_id


def forget_decisions(cluster: Cluster, version: Version) -> None:
    """A version of that name starts from the beginning; runs of the old one are fenced."""
    protocol = _protocol(cluster, version)
    protocol.reset(protocol.begin())


def _protocol(cluster: Cluster, version: Version) -> Any:
    from millstream.pipelines.writing.options import parse_write_options
    from millstream.pipelines.writing.protocol import BatchProtocol

    options = parse_write_options(
        {
            "kafka.bootstrap.servers": "127.0.0.1:1",  # the cluster is given
            "kafka.transactional.id": version.transactional_id,
            "kafka.group.id": version.group,
            "topic": version.topics[0],
            "checkpointLocation": version.checkpoint or "unknown",
        },
        streaming=True,
    )
    return BatchProtocol(options, cluster, DecisionLog(cluster, version.transactional_id))


def delete_topics(cluster: Cluster, topics: Collection[str]) -> None:
    """Topics that do not exist are passed over."""
    if not topics:
        return
    request = {
        "topics": [{"name": it, "topic_id": None} for it in topics],
        "timeout": TIMEOUT_MS,
    }
    answer = cluster.retrying(lambda: cluster.any_connection().call("delete_topics", request))
    for it in answer.responses:
        if it.error_code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
            check(it.error_code, f"cannot delete topic {it.name}", "delete_topics")


def delete_group(cluster: Cluster, group: str) -> None:
    """A group that does not exist is passed over."""
    answer = cluster.ask_coordinator(
        CoordinatorKind.GROUP,
        group,
        "delete_groups",
        {"groups_names": [group]},
        error_of=lambda answer: answer.results[0].error_code,
    )
    code = answer.results[0].error_code
    if code not in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        check(code, f"cannot delete group {group}: {code.description}", "delete_groups")
