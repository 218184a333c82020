"""A broker with one thing deliberately broken: proof that the checker notices.

    python -m tests.faults.broken_broker <flaw> serve --listen ... --data ...

The flaws that live in the broker's code replace a method of it; `tail-lost` is done to its files
while it is down.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from millstream.broker.metadata import reconciler
from millstream.broker.metadata.reconciler import Reconciler
from millstream.broker.replicas.partition import Partition
from millstream.broker.replicas.pending import PendingAppend
from millstream.cli.entry import main
from millstream.coordination.cluster import TopicImage
from millstream.coordination.groups.offsets import OffsetStore
from millstream.coordination.share_state import DeliveryState
from millstream.coordination.sharing.limits import Limits
from millstream.coordination.sharing.runs import Run
from millstream.coordination.sharing.window import ShareWindow
from millstream.errors import ApiError, ErrorCode
from millstream.storage._core import VersionTable
from millstream.storage.log import Log
from millstream.testing.histories.faults import BrokerProcess

DICE = random.Random(1)


def write_abort_markers_as_commits() -> None:
    honest = Partition.append_marker

    def append_marker(self: Partition, *, committed: bool, **marker: Any) -> PendingAppend:
        return honest(self, committed=True, **marker)

    Partition.append_marker = append_marker  # type: ignore[method-assign]


def write_commit_markers_as_aborts_in_one_partition() -> None:
    honest = Partition.append_marker

    def append_marker(self: Partition, *, committed: bool, **marker: Any) -> PendingAppend:
        is_hidden = not self.is_internal and self.index == 0 and DICE.random() < 0.3
        return honest(self, committed=committed and not is_hidden, **marker)

    Partition.append_marker = append_marker  # type: ignore[method-assign]


def drop_a_marker() -> None:
    honest = Partition.append_marker

    def append_marker(self: Partition, **marker: Any) -> PendingAppend:
        if self.is_internal or self.index != 0 or self.high_watermark < 10:
            return honest(self, **marker)
        pending = PendingAppend(self.high_watermark, self.high_watermark)
        pending.finish()
        return pending

    Partition.append_marker = append_marker  # type: ignore[method-assign]


def append_batches_twice() -> None:
    honest = Log.append

    def append(self: Log, records: Any, headers: Any, **details: Any) -> Any:
        appended = honest(self, records, headers, **details)
        is_control = headers[0].attributes & 0x20
        if not self.topic.startswith("__") and not is_control and DICE.random() < 0.1:
            honest(self, records, headers, **details)
        return appended

    Log.append = append  # type: ignore[method-assign]


def serve_uncommitted_records() -> None:
    honest = Partition.read_to_send

    def read_committed(self: Partition, offset: int, **limits: Any) -> Any:
        return self.read(offset, **limits), []

    def read_to_send(self: Partition, offset: int, *, max_bytes: int, committed: bool) -> Any:
        return honest(self, offset, max_bytes=max_bytes, committed=False)

    Partition.read_committed = read_committed  # type: ignore[method-assign]
    Partition.read_to_send = read_to_send  # type: ignore[method-assign]


def forget_offsets_of_transactions() -> None:
    honest = OffsetStore.replay_end_transaction

    def replay_end_transaction(self: OffsetStore, producer_id: int, committed: bool) -> None:
        honest(self, producer_id, committed and DICE.random() < 0.5)

    OffsetStore.replay_end_transaction = replay_end_transaction  # type: ignore[method-assign]


def keep_logs_of_deleted_topics() -> None:
    honest = Reconciler._take_role

    def delete_topics(self: Reconciler, topics: Iterable[TopicImage]) -> None:
        for topic in topics:
            for index in range(len(topic.partitions)):
                partition = self._partitions.remove(topic.name, index)
                if partition is not None:
                    partition.go_offline(ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))

    def take_role(self: Reconciler, topic: TopicImage, index: int, log: Log) -> Partition:
        log.set_topic_id(topic.id)
        return honest(self, topic, index, log)

    Reconciler._delete_topics = delete_topics  # type: ignore[method-assign]
    Reconciler._take_role = take_role  # type: ignore[method-assign]


def ignore_versions() -> None:
    Log.match_versions = lambda self: None  # type: ignore[method-assign]
    Log.needs_versions = False  # type: ignore[method-assign,assignment]
    Partition._check_condition = lambda self, *batch: None  # type: ignore[method-assign]


def ignore_versions_in_transactions() -> None:
    honest = Partition._check_condition

    def check(self: Partition, produced: Any, header: Any, acks: int) -> Any:
        return None if header.is_transactional else honest(self, produced, header, acks)

    Partition._check_condition = check  # type: ignore[method-assign]


def forget_versions_at_the_start() -> None:
    def build(log: Log) -> Iterator[Any]:
        if log.needs_versions:
            log.versions = VersionTable()
        yield from ()

    reconciler.build_versions = build  # type: ignore[assignment]


def forget_acceptances() -> None:
    honest = ShareWindow._outcome

    def outcome(self: ShareWindow, run: Run, kind: int) -> DeliveryState:
        is_forgotten = DICE.random() < 0.05
        return DeliveryState.AVAILABLE if is_forgotten else honest(self, run, kind)

    ShareWindow._outcome = outcome  # type: ignore[method-assign]


def retry_at_once() -> None:
    Limits.backoff_after = lambda self, delivery_count: 0  # type: ignore[method-assign]


FLAWS: dict[str, Callable[[], None]] = {
    "abort-as-commit": write_abort_markers_as_commits,
    "commit-as-abort": write_commit_markers_as_aborts_in_one_partition,
    "marker-dropped": drop_a_marker,
    "batch-doubled": append_batches_twice,
    "uncommitted-served": serve_uncommitted_records,
    "offsets-forgotten": forget_offsets_of_transactions,
    "deleted-logs-kept": keep_logs_of_deleted_topics,
    "versions-ignored": ignore_versions,
    "versions-ignored-in-transactions": ignore_versions_in_transactions,
    "versions-forgotten": forget_versions_at_the_start,
    "acceptances-forgotten": forget_acceptances,
    "retried-at-once": retry_at_once,
}


def broken_broker(directory: Path, flaw: str) -> BrokerProcess:
    """A broker that has this flaw and no other."""
    broker = BrokerProcess.millstream(directory)
    serve = broker.command[broker.command.index("serve") :]
    broker.command = [sys.executable, "-m", "tests.faults.broken_broker", flaw, *serve]
    return broker


class ForgetfulBroker(BrokerProcess):
    """One whose flushes are lies: when it is killed, the ends of its logs are lost."""

    def kill(self) -> None:
        super().kill()
        data = self.log.parent / "data"
        for journal in data.glob("millstream-journal-*"):
            journal.unlink()
        for segment in data.glob("check-*/*.log"):
            size = segment.stat().st_size
            with segment.open("r+b") as file:
                file.truncate(max(0, size - 2000))


if __name__ == "__main__":
    FLAWS[sys.argv[1]]()
    main(sys.argv[2:])
