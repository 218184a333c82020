"""What brokers have archived of their topics, how far that is behind, and why it is not going on.

Only the leader of a partition knows: Millstream's brokers answer it (DescribeArchive, an API of
their own). A broker that does not answer is named; the others are still shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millstream.admin.settings import Resource, settings_of
from millstream.client.cluster import check
from millstream.errors import ApiError, ErrorCode, MillstreamError
from millstream.models import dataclass

if TYPE_CHECKING:
    from millstream.client.cluster import Cluster

PATH_SETTING = "millstream.archive.path"
ENABLE_SETTING = "remote.storage.enable"


@dataclass(frozen=True, slots=True)
class ArchivedPartition:
    """The offsets [start, end) are archived. Sizes and times are None if they are not known."""

    topic: str
    partition: int
    broker: int
    start: int
    end: int
    local_start: int  # where the broker's own log begins
    log_end: int
    files: int | None
    records: int | None
    size_bytes: int | None
    segment_bytes: int | None  # of the segments that the files replace
    lag_bytes: int  # of closed segments that are not archived yet
    newest_ms: int | None
    archived_ms: int | None  # when the last file was written
    problem: str | None

    @property
    def lag_records(self) -> int:
        """Offsets that only the log has; those of the open segment among them."""
        return max(0, self.log_end - max(self.end, self.local_start))

    @property
    def state(self) -> str:
        if self.problem is not None:
            return "failing"
        if self.files is None:
            return "loading"
        return "behind" if self.lag_bytes else "up to date"


@dataclass(frozen=True)
class ArchiveState:
    """`is_known` is False if the brokers of the cluster have no archive that they tell of."""

    partitions: list[ArchivedPartition]
    is_known: bool
    problems: list[str]


def archive_state(cluster: Cluster, topics: Sequence[str] | None = None) -> ArchiveState:
    """What all brokers have archived of these topics (None: of all)."""
    fields = {"topics": None if topics is None else list(topics)}
    found: list[ArchivedPartition] = []
    problems: list[str] = []
    for broker in cluster.broker_ids(seconds_old_max=1.0):
        try:
            answer = cluster.ask_broker(broker, "describe_archive", fields)
            check(answer.error_code, answer.error_message or f"broker {broker}", "describe_archive")
        except ApiError as error:
            if error.code is ErrorCode.UNSUPPORTED_VERSION:
                return ArchiveState([], False, [])
            problems.append(str(error))
        except OSError as error:
            problems.append(f"broker {broker} does not answer: {error}")
        else:
            found += [
                _partition(str(topic.topic_name), broker, it)
                for topic in answer.topics
                for it in topic.partitions
            ]
    found.sort(key=lambda it: (it.topic, it.partition))
    return ArchiveState(found, True, problems)


def archive_path(cluster: Cluster) -> str | None:
    """Where the brokers archive; None if nowhere, or if the user may not know."""
    try:
        broker = cluster.broker_ids(seconds_old_max=1.0)[0]
        settings = settings_of(cluster, Resource.BROKER, str(broker))
    except (MillstreamError, OSError, IndexError):
        return None
    return next((it.value for it in settings if it.name == PATH_SETTING), None) or None


def _partition(topic: str, broker: int, told: Any) -> ArchivedPartition:
    def known(amount: Any) -> int | None:
        return int(amount) if amount >= 0 else None

    return ArchivedPartition(
        topic,
        int(told.partition_index),
        broker,
        int(told.start_offset),
        int(told.end_offset),
        int(told.local_start_offset),
        int(told.log_end_offset),
        known(told.files),
        known(told.records),
        known(told.size_bytes),
        known(told.segment_bytes),
        int(told.lag_bytes),
        known(told.newest_ms),
        known(told.archived_ms),
        told.problem,
    )
