"""All excisions of a cluster: jobs with their progress, and receipts with their chain.

A ledger reads on from where it was: to look again costs only what is new. Records that cannot be
read are named, and the others are still shown: anybody who may write to the topics can write
anything.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import field

from millstream.admin.following import TopicFollower, TopicRecord
from millstream.client.cluster import Cluster
from millstream.config.excised import parse_ranges
from millstream.errors import MillstreamError
from millstream.excision.documents import BadDocument, Job, Receipt, check_chain
from millstream.excision.history import (
    EXCISIONS,
    JOB_KEY,
    RECEIPTS,
    REMOVED_KEY,
    REPLICA_KEY,
    Report,
)
from millstream.excision.jobs import ReplicaState, replica_states
from millstream.models import dataclass

PROBLEMS_MAX = 20


@dataclass(frozen=True)
class Excision:
    """A job, and its receipt once it is complete. `replicas` are those of a job without one."""

    job: Job
    receipt: Receipt | None
    replicas: tuple[ReplicaState, ...] = ()

    @property
    def done(self) -> int:
        return sum(it.is_done for it in self.replicas)

    @property
    def is_complete(self) -> bool:
        return self.receipt is not None

    @property
    def state(self) -> str:
        if self.is_complete:
            return "complete"
        if self.replicas and self.done == len(self.replicas):
            return "removed, without a receipt"
        return f"{self.done} of {len(self.replicas)} replicas"


@dataclass(frozen=True)
class Excisions:
    """`problems` are those of the chain, and of records that cannot be read."""

    excisions: list[Excision] = field(default_factory=list)
    receipts: list[Receipt] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Kept:
    """What was read of one topic since it was created."""

    def __init__(self, topic: str) -> None:
        self.follower = TopicFollower(topic)
        self.starts = 0

    def read(self, cluster: Cluster) -> Iterator[tuple[bool, TopicRecord | None]]:
        """New records, and whether to forget those of before."""
        for record in self.follower.read(cluster):
            yield self._is_new_topic(), record
        if self._is_new_topic() or not self.follower.exists:
            yield True, None

    def _is_new_topic(self) -> bool:
        is_new = self.follower.starts != self.starts
        self.starts = self.follower.starts
        return is_new


class Ledger:
    """See the module. Any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked, self._written = _Kept(EXCISIONS), _Kept(RECEIPTS)
        self._jobs: dict[str, Job] = {}
        self._reports: dict[str, Report] = {}
        self._receipts: list[Receipt] = []
        self._damaged: dict[str, str] = {}
        self._read_at = 0.0

    def read(self, cluster: Cluster, *, seconds_old_max: float = 0.0) -> Excisions:
        """Read on, unless that was done a moment ago. Raises `ApiError` without the right to."""
        with self._lock:
            if not self._read_at or time.monotonic() - self._read_at > seconds_old_max:
                self._read_on(cluster)
                self._read_at = time.monotonic()
            return self._shown(cluster)

    def _read_on(self, cluster: Cluster) -> None:
        for is_new_topic, record in self._asked.read(cluster):
            if is_new_topic:
                self._jobs.clear()
                self._reports.clear()
                self._forget_damaged(EXCISIONS)
            if record is not None:
                self._take(record)
        for is_new_topic, record in self._written.read(cluster):
            if is_new_topic:
                self._receipts.clear()
                self._forget_damaged(RECEIPTS)
            if record is not None and record.value is not None:
                self._take_receipt(record.value)

    def _take(self, record: TopicRecord) -> None:
        key = (record.key or b"").decode(errors="replace")
        name = f"the record {key} of {EXCISIONS}"
        self._damaged.pop(name, None)
        try:
            if key.startswith(JOB_KEY):
                self._jobs.pop(key, None)
                if record.value is not None:
                    self._jobs[key] = _checked(Job.from_json(record.value))
            elif key.startswith((REPLICA_KEY, REMOVED_KEY)):
                self._reports.pop(key, None)
                if record.value is not None:
                    self._reports[key] = _report(record.value)
        except (MillstreamError, ValueError) as error:
            self._damaged[name] = f"{name} cannot be read: {error}"

    def _take_receipt(self, value: bytes) -> None:
        try:
            receipt = Receipt.from_json(value)
            _checked(receipt.job)
            if not _are(int, receipt.number, receipt.completed_ms, receipt.verified_records):
                raise BadDocument("it has fields of another type")
            if not _are(str, receipt.previous, receipt.digest, *receipt.deleted_topics):
                raise BadDocument("it has fields of another type")
            if not _are(dict, *receipt.replicas):
                raise BadDocument("it has fields of another type")
            self._receipts.append(receipt)
        except (MillstreamError, ValueError) as error:
            name = f"a record of {RECEIPTS} after receipt {len(self._receipts)}"
            self._damaged[name] = f"{name} cannot be read: {error}"

    def _forget_damaged(self, topic: str) -> None:
        self._damaged = {it: why for it, why in self._damaged.items() if topic not in it}

    def _shown(self, cluster: Cluster) -> Excisions:
        receipts = {it.job.id: it for it in self._receipts}
        found = []
        for job in self._jobs.values():
            receipt = receipts.get(job.id)
            states = () if receipt else tuple(replica_states(cluster, job, self._reports))
            found.append(Excision(job, receipt, states))
        problems = [*check_chain(self._receipts), *self._damaged.values()]
        return Excisions(found, list(self._receipts), problems[:PROBLEMS_MAX])


def _checked(job: Job) -> Job:
    """What is shown of it has the type that it should have."""
    texts = (job.id, job.requested_by, job.reason, job.selector_kind, job.selector_digest)
    topics = [text for it in job.topics for text in (it.topic, it.topic_id, it.role)]
    counts = [it.records for topic in job.topics for it in topic.partitions]
    if not (_are(str, *texts, *topics) and _are(int, job.requested_ms, *counts)) or not topics:
        raise BadDocument("it has no topic, or fields of another type")
    return job


def _are(kind: type, *values: object) -> bool:
    return all(isinstance(it, kind) for it in values)


def _report(value: bytes) -> Report:
    report = json.loads(value)
    if not isinstance(report, dict):
        raise BadDocument("it is not a report")
    report = {"isComplete": False, "offsets": "", **report}
    parse_ranges(str(report["offsets"]))
    return report
