"""Where the audit is written: a file that is rotated, or a topic."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING

from millstream.broker.peers.topic_writer import TopicWriter
from millstream.config.authorization import AUDIT_FILE, AUDIT_TOPIC

if TYPE_CHECKING:
    from millstream.broker.peers.topic_writer import Broker
    from millstream.broker.security.audit import Audit
    from millstream.broker.tasks import Tasks

FILE_BYTES_MAX = 64 * 1024 * 1024
FILES_KEPT = 10  # older ones, beside the current one


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
    """Lines as records of a topic. Its retention is that of any topic."""

    def __init__(self, topic: str, broker: Broker) -> None:
        self._writer = TopicWriter(topic, broker)

    async def write(self, lines: list[bytes]) -> None:
        await self._writer.write([(None, line) for line in lines])
