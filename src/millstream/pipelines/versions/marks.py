"""What the decision topic contains of a pipeline's versions: who has written, and the last switch.

    switch:<pipeline>    {"version": 1, "number": 3, "in_force": "2", "cut": {...}}

A switch is decided by the store's transaction. The record is a copy, written before the version
that is then in force writes its first batch to a public topic. A store that was restored from an
older copy has a lower number than the record, and versions refuse to run on it: they would write
once more what another version has written.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from millstream.client.cluster import Cluster
from millstream.client.fetching import fetch_batches, log_end_offset, log_start_offset
from millstream.client.producing import RawProducer
from millstream.errors import ConfigError
from millstream.pipelines.offsets import DECISIONS_TOPIC
from millstream.pipelines.running import topics
from millstream.pipelines.versions.registry import Versions, identity_of
from millstream.pipelines.writing.decisions import FORMAT_VERSION, PARTITION
from millstream.records.batch import iterate_headers
from millstream.records.record import Record, decode_batch, encode_batch

if TYPE_CHECKING:
    from millstream.pipelines.running.settings import Settings

DECISION_PREFIX = "decision:millstream-"
SWITCH_PREFIX = "switch:"


@dataclass
class Marks:
    """`writers` are queries, such as `revenue@2`, that have decided a batch."""

    writers: set[str] = field(default_factory=set)
    number: int = 0


@contextmanager
def open_cluster(settings: Settings) -> Iterator[Cluster]:
    """Raises `BrokerUnreachable` if no broker answers."""
    address = settings.required_broker()
    with Cluster(address, security=settings.kafka, timeout_seconds=topics.CONNECT_SECONDS) as probe:
        try:
            probe.retrying(lambda: probe.refresh([]))
        except OSError as error:
            raise topics.BrokerUnreachable(f"no broker answers at {address}: {error}") from error
    with Cluster(address, client_id="millstream-versions", security=settings.kafka) as cluster:
        yield cluster


def read_marks(cluster: Cluster, pipeline: str) -> Marks:
    """What the decision topic contains of the pipeline; nothing if there is no such topic."""
    marks = Marks()
    known = cluster.retrying(lambda: cluster.refresh([DECISIONS_TOPIC]))
    if DECISIONS_TOPIC not in known:
        return marks
    position = log_start_offset(cluster, DECISIONS_TOPIC, PARTITION)
    end = log_end_offset(cluster, DECISIONS_TOPIC, PARTITION)
    while position < end:
        fetched = fetch_batches(cluster, DECISIONS_TOPIC, PARTITION, position)
        if not fetched.records:
            break  # compaction has left nothing of the rest
        for at, header in iterate_headers(fetched.records):
            position = header.next_offset
            if not header.is_control:
                for record in decode_batch(fetched.records, at):
                    _take(marks, pipeline, record)
    return marks


def _take(marks: Marks, pipeline: str, record: Record) -> None:
    key = (record.key or b"").decode(errors="replace")
    if record.value is None:
        return
    if key == f"{SWITCH_PREFIX}{pipeline}":
        marks.number = max(marks.number, int(json.loads(record.value)["number"]))
    elif key.startswith(DECISION_PREFIX):
        query = key.removeprefix(DECISION_PREFIX)
        if query.partition("@")[0] == pipeline and json.loads(record.value)["batch"] >= 0:
            marks.writers.add(query)


def note_switch(cluster: Cluster, document: Versions) -> None:
    """Write the copy of the last switch; to do so twice does no harm."""
    content: Mapping[str, object] = {
        "version": FORMAT_VERSION,
        "number": document.number,
        "in_force": document.in_force,
        "cut": document.cut,
    }
    key = f"{SWITCH_PREFIX}{document.pipeline}".encode()
    value = json.dumps(content, separators=(",", ":")).encode()
    batch = encode_batch([Record(0, time.time_ns() // 1_000_000, key, value)])
    producer = RawProducer(cluster)
    producer.send(DECISIONS_TOPIC, PARTITION, batch, 1)
    producer.flush()


def check_store_is_new_enough(cluster: Cluster, document: Versions) -> None:
    """Raises `ConfigError` if the topics have seen a switch that the store has not."""
    noted = read_marks(cluster, document.pipeline).number
    if noted > document.number:
        raise ConfigError(
            f"the store has seen {document.number} switches of {document.pipeline}, and its topics "
            f"{noted}: the store was restored from an older copy, and versions would write again "
            "what others have written. Restore the newer store, or deploy under another name "
            f"({identity_of(document.pipeline, document.in_force or '')} is in force here)"
        )
