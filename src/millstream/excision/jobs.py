"""Runs an excision: writes the job down, tells the brokers, waits for every replica, looks again,
and writes the receipt.

Each step can be repeated: a job whose client was killed goes on by itself on the brokers, and
`finish` of another client completes it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from millstream.admin.cluster_state import cluster_state
from millstream.admin.offsets import known_topics
from millstream.admin.settings import Resource, append_to_setting, settings_of
from millstream.client.cluster import Cluster
from millstream.config.excised import EXCISED, OffsetRanges, format_excised
from millstream.config.excised import parse_ranges as parse
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.excision import history
from millstream.excision.derived import excise_derived, verify_derived
from millstream.excision.documents import (
    FIRST_IN_CHAIN,
    NOT_REACHED,
    DerivedPlan,
    Job,
    Receipt,
    Selector,
    TopicPlan,
)
from millstream.excision.history import REMOVED_KEY, REPLICA_KEY, History, Report
from millstream.excision.verification import verify_job
from millstream.models import dataclass

POLL_SECONDS = 0.5
ATTEMPTS = 20  # to append a receipt, while others append theirs


class StillWaiting(MillstreamError):
    """Replicas have not reported yet; the job goes on without this client."""


class StillThere(MillstreamError):
    """Records are still there although all replicas have reported."""


@dataclass(frozen=True)
class ReplicaState:
    """Whether a replica has removed its records."""

    topic: str
    partition: int
    broker: int
    is_done: bool


def begin(
    cluster: Cluster,
    topics: Sequence[TopicPlan],
    selector: Selector,
    *,
    requested_by: str,
    reason: str = "",
    derived: Sequence[DerivedPlan] = (),
    now_ms: int | None = None,
) -> Job:
    """Write the job down, and tell the brokers. From here on it is durable."""
    salt = secrets.token_hex(16)
    job = Job(
        id=secrets.token_hex(6),
        requested_ms=time.time_ns() // 1_000_000 if now_ms is None else now_ms,
        requested_by=requested_by,
        reason=reason,
        selector_kind=selector.kind,
        selector_digest=selector.digest(salt),
        salt=salt,
        topics=tuple(topics),
        derived=tuple(derived),
    )
    history.create(cluster)
    check_room(cluster, job)
    History(cluster).put_job(job)
    order(cluster, job)
    return job


def check_room(cluster: Cluster, job: Job) -> None:
    """Refuse a job that the brokers would refuse, before it is written down."""
    for topic in job.topics:
        append_to_setting(
            cluster, Resource.TOPIC, topic.topic, EXCISED, _items(topic), dry_run=True
        )


def order(cluster: Cluster, job: Job) -> None:
    """Tell the brokers what to remove; repeated, it changes nothing."""
    for topic in job.topics:
        if not _is_there(cluster, topic):
            continue
        items = _setting(cluster, topic.topic)
        missing = {
            it.partition: it.excised
            for it in topic.places
            if not set(it.excised.items(it.partition)) <= set(items)
        }
        if missing:
            more = format_excised(missing)
            append_to_setting(cluster, Resource.TOPIC, topic.topic, EXCISED, more)


def replica_states(
    cluster: Cluster, job: Job, reports: Mapping[str, Report] | None = None
) -> Iterator[ReplicaState]:
    """Every replica that has, or had, records of the job, by the reports of brokers (None: as they
    are now)."""
    reports = History(cluster).reports() if reports is None else reports
    topics = cluster_state(cluster).topics
    for topic in job.topics:
        if not _is_there(cluster, topic) or topic.topic not in topics:
            continue
        replicas = {it.index: it.replicas for it in topics[topic.topic].partitions}
        for place in topic.places:
            for broker in replicas.get(place.partition, ()):
                name = f"{topic.topic_id}/{place.partition}/{broker}"
                report = reports.get(f"{REPLICA_KEY}{name}")
                is_done = report is not None and _is_done(report, place.ranges)
                yield ReplicaState(topic.topic, place.partition, broker, is_done)


def finish(
    cluster: Cluster,
    job: Job,
    *,
    timeout_seconds: float,
    selector: Selector | None = None,
    bootstrap_servers: str = "",
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    show: Callable[[str], None] = lambda text: None,
) -> Receipt:
    """Wait for all replicas, then remove what sinks and pipelines have of the records, look again,
    and write the receipt. `selector` is needed if rows are deleted by their key.

    Raises `StillWaiting` with the replicas that are missing, `StillThere` if a record is found."""
    check_selector(job, selector)
    existing = _receipt_of(cluster, job)
    if existing is not None:
        return existing
    deadline = time.monotonic() + timeout_seconds
    while True:
        order(cluster, job)
        states = list(replica_states(cluster, job))
        waiting = [it for it in states if not it.is_done]
        on_progress(len(states) - len(waiting), len(states))
        if not waiting:
            break
        if time.monotonic() > deadline:
            raise StillWaiting(_waiting_for(job, waiting))
        time.sleep(POLL_SECONDS)
    derived = excise_derived(cluster, job, selector, bootstrap_servers, show=show)
    verified = verify_job(cluster, job)
    problems, _ = verify_derived(cluster, job, derived, selector, bootstrap_servers)
    if verified.problems or problems:
        raise StillThere("; ".join((*verified.problems, *problems)))
    return _write_receipt(cluster, job, verified.records_read, derived)


def check_selector(job: Job, selector: Selector | None) -> None:
    """Raises `MillstreamError` for one that the job is not about."""
    if selector is not None and selector.digest(job.salt) != job.selector_digest:
        raise MillstreamError(f"job {job.id} is of another key or predicate: its hash is another")


def _waiting_for(job: Job, waiting: Sequence[ReplicaState]) -> str:
    names = ", ".join(f"{it.topic}-{it.partition} on broker {it.broker}" for it in waiting[:5])
    more = f" and {len(waiting) - 5} more" if len(waiting) > 5 else ""
    return (
        f"these replicas have not removed their records yet: {names}{more}. The job is durable: "
        "a broker that is away removes them when it is back. For the receipt, run then: "
        f"millstream excise resume {job.id}"
    )


def _write_receipt(
    cluster: Cluster, job: Job, records_read: int, derived: Sequence[Report]
) -> Receipt:
    kept = History(cluster)
    for _ in range(ATTEMPTS):
        receipts = kept.receipts()
        for receipt in receipts:
            if receipt.job.id == job.id:
                return receipt  # another client has finished it too
        receipt = Receipt(
            number=len(receipts) + 1,
            previous=receipts[-1].digest if receipts else FIRST_IN_CHAIN,
            job=job,
            completed_ms=time.time_ns() // 1_000_000,
            replicas=tuple(_reports_of(kept, job)),
            deleted_topics=tuple(it.topic for it in job.topics if not _is_there(cluster, it)),
            verified_records=records_read,
            not_reached=(*NOT_REACHED, *(it for report in derived for it in report["left"])),
            derived=tuple(derived),
        ).sealed()
        if kept.append_receipt(receipt):
            return receipt
    raise MillstreamError("the receipt could not be written: others are written all the time")


def _reports_of(kept: History, job: Job) -> Iterator[Report]:
    """What brokers removed for the job, and their last look."""
    names = {f"{topic.topic_id}/{it.partition}/" for topic in job.topics for it in topic.places}
    for key, report in sorted(kept.reports().items()):
        kind, _, name = key.partition("/")
        if not name.startswith(tuple(names)):
            continue
        if f"{kind}/" == REMOVED_KEY and report["time"] < job.requested_ms:
            continue  # of an earlier job
        fields = {"kind": kind, **report}
        if f"{kind}/" == REPLICA_KEY:  # what was removed is in the other report
            fields = {it: fields[it] for it in fields if it not in ("removed", "segments")}
        del fields["offsets"]  # those of the job, and of others
        yield fields


def _receipt_of(cluster: Cluster, job: Job) -> Receipt | None:
    return next((it for it in History(cluster).receipts() if it.job.id == job.id), None)


def _is_there(cluster: Cluster, topic: TopicPlan) -> bool:
    """Whether it still exists, and is the same one."""
    found = known_topics(cluster, [topic.topic]).get(topic.topic)
    return found is not None and str(found.id) == topic.topic_id


def _is_done(report: Report, wanted: OffsetRanges) -> bool:
    return bool(report["isComplete"]) and _covers(parse(report["offsets"]), wanted)


def _covers(known: OffsetRanges, wanted: OffsetRanges) -> bool:
    return (known | wanted) == known


def _items(topic: TopicPlan) -> tuple[str, ...]:
    return format_excised({it.partition: it.excised for it in topic.places})


def _setting(cluster: Cluster, topic: str) -> list[str]:
    try:
        found: Any = {it.name: it.value for it in settings_of(cluster, Resource.TOPIC, topic)}
    except ApiError as error:
        if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return []
        raise
    return [item for item in (found.get(EXCISED) or "").split(",") if item]
