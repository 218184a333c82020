"""Where the audit is written: a file that is rotated, or a topic."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from millstream.broker.metadata.topics import NewTopic
from millstream.broker.peers.leaders import leader_of
from millstream.broker.peers.partitions import RemotePartitions
from millstream.broker.replicas.pending import ACKS_ALL
from millstream.config.authorization import AUDIT_FILE, AUDIT_TOPIC
from millstream.errors import ApiError, ErrorCode
from millstream.records.record import Record, encode_batch

if TYPE_CHECKING:
    from millstream.broker.metadata.actions import ClusterActions
    from millstream.broker.metadata.store import MetadataLog
    from millstream.broker.peers.peers import Peers
    from millstream.broker.replicas.table import PartitionTable
    from millstream.broker.security.audit import Audit
    from millstream.broker.tasks import Tasks
    from millstream.clock import Clock

FILE_BYTES_MAX = 64 * 1024 * 1024
FILES_KEPT = 10  # older ones, beside the current one


class Broker(Protocol):
    """What the audit needs of the broker."""

    @property
    def broker_id(self) -> int: ...
    @property
    def tasks(self) -> Tasks: ...
    @property
    def clock(self) -> Clock: ...
    @property
    def metadata(self) -> MetadataLog: ...
    @property
    def actions(self) -> ClusterActions: ...
    @property
    def partitions(self) -> PartitionTable: ...
    @property
    def peers(self) -> Peers: ...


def open_audit(audit: Audit, place: str, broker: Broker) -> None:
    """Write the audit to the place that `millstream.audit.log` names."""
    if place.startswith(AUDIT_FILE):
        audit.write_to(AuditFile(Path(place.removeprefix(AUDIT_FILE)), broker.tasks).write)
    else:
        audit.own_topic = place.removeprefix(AUDIT_TOPIC)
        audit.write_to(AuditTopic(audit.own_topic, broker).write)


class AuditFile:
    """Lines in a file, which only its owner can read. At `FILE_BYTES_MAX` it becomes PATH.1, and
    what was PATH.1 becomes PATH.2, and so on. Several processes may write to the same one."""

    def __init__(self, path: Path, tasks: Tasks, *, bytes_max: int = FILE_BYTES_MAX) -> None:
        self._path = path
        self._tasks = tasks
        self._bytes_max = bytes_max

    async def write(self, lines: list[bytes]) -> None:
        await self._tasks.run_blocking(self._write, b"".join(line + b"\n" for line in lines))

    def _write(self, content: bytes) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        # Opened each time: another process may have rotated it, or an administrator moved it.
        fd = os.open(self._path, flags, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            while content:
                content = content[os.write(fd, content) :]
            if os.fstat(fd).st_size >= self._bytes_max:
                self._rotate(fd)
        finally:
            os.close(fd)

    def _rotate(self, fd: int) -> None:
        """Under the lock of this file."""
        with contextlib.suppress(FileNotFoundError):
            if self._path.stat().st_ino != os.fstat(fd).st_ino:
                return  # another process has done it
        for number in range(FILES_KEPT - 1, 0, -1):
            with contextlib.suppress(FileNotFoundError):
                self._older(number).replace(self._older(number + 1))
        with contextlib.suppress(FileNotFoundError):
            self._path.replace(self._older(1))

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


class AuditTopic:
    """Lines as records of a topic, which is created with one partition if it does not exist. Its
    retention is that of any topic, and so are the rights to read it."""

    def __init__(self, topic: str, broker: Broker) -> None:
        self._topic = topic
        self._broker = broker
        self._remote = RemotePartitions(broker.peers)

    async def write(self, lines: list[bytes]) -> None:
        broker = self._broker
        if self._topic not in broker.metadata.image.topics:
            new = NewTopic(self._topic, partition_count=1)
            outcome = (await broker.actions.create_topics([new]))[self._topic]
            if isinstance(outcome, ApiError) and outcome.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise outcome
        await self._append(lines)

    async def _append(self, lines: list[bytes]) -> None:
        broker = self._broker
        now_ms = broker.clock.now_ms()
        records = [Record(offset, now_ms, None, line) for offset, line in enumerate(lines)]
        batch = encode_batch(records)
        leader = leader_of(broker.metadata.image, self._topic, 0)
        if leader != broker.broker_id:
            await self._remote.append(leader, self._topic, 0, batch)
        else:
            await broker.partitions.find(self._topic, 0).append(batch, acks=ACKS_ALL)
