"""The topics in which excisions are kept.

__excisions            jobs (key `job/<id>`), the reports of brokers (`replica/...`,
                       `removed/...`), and what was done to sinks and pipelines
                       (`derived/<job>/<number>`); compacted, so that a report of each log stays
__excision_receipts    one record per receipt, kept forever. A receipt is appended only at the
                       offset where it belongs (`millstream.conditional.append`), so that two
                       that are made at once do not break the chain.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from millstream.admin.offsets import end_offsets, known_topics, start_offsets
from millstream.client.cluster import Cluster
from millstream.client.producing import RawProducer
from millstream.client.topics import NewTopic, create_topics
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.excision.documents import BadDocument, Job, Receipt, canonical
from millstream.excision.selection import read_all
from millstream.records.record import Record, encode_batch

EXCISIONS = "__excisions"
RECEIPTS = "__excision_receipts"
JOB_KEY, REPLICA_KEY, REMOVED_KEY = "job/", "replica/", "removed/"
DERIVED_KEY = "derived/"
OFFSET_HEADER = "millstream-offset"

MESSAGE_BYTES_MAX = "16777216"  # jobs and receipts list offsets
REPLICAS = 3  # or as many as there are brokers

_SETTINGS = {
    EXCISIONS: {"cleanup.policy": "compact", "max.message.bytes": MESSAGE_BYTES_MAX},
    RECEIPTS: {
        "retention.ms": "-1",
        "retention.bytes": "-1",
        "millstream.conditional.append": "offset",
        "max.message.bytes": MESSAGE_BYTES_MAX,
    },
}

Report = Mapping[str, Any]


class NotSupported(MillstreamError):
    """The cluster does not excise."""


def create(cluster: Cluster) -> None:
    """Create both topics, unless they exist."""
    replicas = min(REPLICAS, len(cluster.broker_ids()))
    topics = [NewTopic(name, 1, settings, replicas) for name, settings in _SETTINGS.items()]
    try:
        create_topics(cluster, topics)
    except ApiError as error:
        if error.code is ErrorCode.INVALID_CONFIG:
            raise NotSupported(
                "this cluster is not Millstream, and its brokers do not excise records: use "
                "crypto-shredding, or retention"
            ) from error
        raise


class History:
    """Reads and writes both topics."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def put_job(self, job: Job) -> None:
        self._send(EXCISIONS, Record(0, _now_ms(), f"{JOB_KEY}{job.id}".encode(), job.to_json()))

    def jobs(self) -> dict[str, Job]:
        """All jobs by their id, the oldest first."""
        return {
            key.removeprefix(JOB_KEY): Job.from_json(value)
            for key, value in self._latest().items()
            if key.startswith(JOB_KEY)
        }

    def reports(self) -> dict[str, Report]:
        """The reports of brokers, by their key."""
        found: dict[str, Report] = {}
        for key, value in self._latest().items():
            if key.startswith((REPLICA_KEY, REMOVED_KEY)):
                try:
                    found[key] = json.loads(value)
                except ValueError as error:
                    raise BadDocument(f"the report {key} of {EXCISIONS} is damaged") from error
        return found

    def put_derived(self, job: Job, number: int, report: Report) -> None:
        """How far the sink or pipeline with this number is."""
        key = f"{DERIVED_KEY}{job.id}/{number}".encode()
        self._send(EXCISIONS, Record(0, _now_ms(), key, canonical(report)))

    def derived(self, job: Job) -> dict[int, Report]:
        """The reports on sinks and pipelines, by their number in the job."""
        prefix = f"{DERIVED_KEY}{job.id}/"
        return {
            int(key.removeprefix(prefix)): json.loads(value)
            for key, value in self._latest().items()
            if key.startswith(prefix)
        }

    def receipts(self) -> list[Receipt]:
        return [
            Receipt.from_json(record.value or b"")
            for record in self._records(RECEIPTS)
            if record.value is not None
        ]

    def append_receipt(self, receipt: Receipt) -> bool:
        """False if another one has taken its place meanwhile."""
        headers = ((OFFSET_HEADER, str(receipt.number - 1).encode()),)
        record = Record(0, _now_ms(), str(receipt.number).encode(), receipt.to_json(), headers)
        try:
            self._send(RECEIPTS, record)
        except ApiError as error:
            if error.code is ErrorCode.POLICY_VIOLATION:
                return False
            raise
        return True

    def _send(self, topic: str, record: Record) -> None:
        producer = RawProducer(self._cluster)
        producer.begin()
        identity = producer.identity(topic, 0)
        batch = encode_batch(
            [record],
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            base_sequence=identity.base_sequence,
        )
        producer.send(topic, 0, batch, 1)
        producer.flush()

    def _latest(self) -> dict[str, bytes]:
        """The last value of each key."""
        found: dict[str, bytes] = {}
        for record in self._records(EXCISIONS):
            key = (record.key or b"").decode(errors="replace")
            if record.value is None:
                found.pop(key, None)
            else:
                found[key] = record.value
        return found

    def _records(self, topic: str) -> list[Record]:
        """Retries while a leader is away."""
        return self._cluster.retrying(lambda: self._read(topic))

    def _read(self, topic: str) -> list[Record]:
        if not known_topics(self._cluster, [topic]):
            return []
        place = (topic, 0)
        start = start_offsets(self._cluster, [place])[place]
        end = end_offsets(self._cluster, [place])[place]
        read = read_all(self._cluster, topic, 0, start, end)
        return [record for record, _ in read if record is not None]


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
