"""Looks again, as a consumer does: none of the records of a job may be there.

With the selector in hand, the whole range that was searched is searched again. Without it, the
offsets are read. Replicas other than the leaders, and files, are looked at by their brokers, which
report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field

from millstream.admin.offsets import known_topics, start_offsets
from millstream.client.cluster import Cluster
from millstream.excision.derived import verify_derived
from millstream.excision.documents import Job, PlacePlan, Receipt, Selector, check_chain
from millstream.excision.history import History
from millstream.excision.selection import DEAD_LETTERS, Access, find_topic, read_all
from millstream.models import dataclass

SHOWN_MAX = 5


@dataclass
class Verification:
    """What a second look found."""

    records_read: int = 0
    problems: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)  # places that cannot be reached from here


def verify_job(cluster: Cluster, job: Job) -> Verification:
    """Read around all offsets of a job. Deleted topics have none of them."""
    outcome = Verification()
    for topic in job.topics:
        found = known_topics(cluster, [topic.topic]).get(topic.topic)
        if found is None or str(found.id) != topic.topic_id:
            continue
        for place in topic.places:
            left = []
            for offset in _offsets_read(cluster, topic.topic, place):
                outcome.records_read += 1
                if offset in place.ranges:
                    left.append(offset)
            if left:
                shown = ", ".join(map(str, left[:SHOWN_MAX]))
                outcome.problems.append(
                    f"{topic.topic}-{place.partition} still has {len(left)} of {place.records} "
                    f"records, at {shown}{' ...' if len(left) > SHOWN_MAX else ''}"
                )
    return outcome


def _offsets_read(cluster: Cluster, topic: str, place: PlacePlan) -> Iterator[int]:
    at = (topic, place.partition)
    start = max(place.searched_from, start_offsets(cluster, [at])[at])
    for record, _ in read_all(cluster, topic, place.partition, start, place.ranges.last + 1):
        if record is not None:
            yield record.offset


def verify_receipt(
    cluster: Cluster,
    receipt: Receipt,
    *,
    selector: Selector | None = None,
    access: Access | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Verification:
    """Check the chain, the receipt and the topics."""
    kept = History(cluster).receipts()
    outcome = Verification(problems=check_chain(kept))
    if receipt not in kept:
        outcome.problems.append(f"receipt {receipt.number} is not among those of the cluster")
    if receipt.digest != receipt.expected_digest():
        outcome.problems.append("the receipt was changed: its hash does not match")
    looked = verify_job(cluster, receipt.job)
    outcome.records_read += looked.records_read
    outcome.problems += looked.problems
    if receipt.derived and access is not None:
        problems, outcome.unseen = verify_derived(
            cluster, receipt.job, receipt.derived, selector, access.bootstrap_servers, kept
        )
        outcome.problems += problems
    if selector is not None and access is not None:
        _search_again(cluster, receipt, selector, access, outcome, on_progress)
    return outcome


def _search_again(
    cluster: Cluster,
    receipt: Receipt,
    selector: Selector,
    access: Access,
    outcome: Verification,
    on_progress: Callable[[int, int], None],
) -> None:
    job = receipt.job
    if selector.digest(job.salt) != job.selector_digest:
        outcome.problems.append("this receipt is not of this selector: its hash does not match")
        return
    for plan in job.topics:
        if plan.role == DEAD_LETTERS or not known_topics(cluster, [plan.topic]):
            continue
        found = find_topic(cluster, plan.topic, selector, access=access, on_progress=on_progress)
        if found.topic_id != plan.topic_id:
            continue
        searched = {it.partition: it.searched_to for it in plan.partitions}
        for place in found.places:
            old = [it for it in place.ranges if it < searched.get(place.partition, 0)]
            if old:
                outcome.problems.append(
                    f"{plan.topic}-{place.partition} has {len(old)} matching records that were "
                    "there when the excision was asked for"
                )
