"""The replication connection: commands, and a thread that receives the stream.

psycopg has no replication API, but its binding of libpq (`psycopg.pq`) has everything needed, with
TLS, authentication and several hosts as usual.

The thread receives continuously, up to a limit of bytes that are not taken yet, and sends status
updates on a timer: also while the consumer is blocked, or the server would end the connection after
`wal_sender_timeout`.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from millstream.connect.capture.pgoutput import (
    KEEPALIVE,
    format_lsn,
    parse_keepalive,
    parse_lsn,
    status_update,
)
from millstream.connect.capture.tables import SESSION_OPTIONS, CaptureError

STATUS_SECONDS = 5.0  # well below any wal_sender_timeout (60 s by default)
CONFIRM_SECONDS = 0.2  # so soon a new position is confirmed, at the earliest
RECEIVED_BYTES_MAX = 16 * 1024 * 1024
HANDED_OVER_BYTES = 256 * 1024  # handed to the consumer at the latest then
STOP_SECONDS = 5.0
RELEASE_SECONDS = 1.0  # for the server to release the slot; in a large transaction it does not
OBJECT_IN_USE = "55006"


class ReplicationLost(OSError):
    """The replication connection ended; connect again."""


class CommandFailed(CaptureError):
    """The server refused a replication command."""

    def __init__(self, message: str, sqlstate: str) -> None:
        super().__init__(message)
        self.sqlstate = sqlstate


class System(NamedTuple):
    """The database cluster, as IDENTIFY_SYSTEM describes it."""

    id: str
    timeline: int
    lsn: int
    database: str


class TimelineEnd(NamedTuple):
    """A timeline that the current one descends from, and where it ended."""

    timeline: int
    end_lsn: int


class CreatedSlot(NamedTuple):
    consistent_lsn: int
    snapshot: str  # for SET TRANSACTION SNAPSHOT, until the next command


def connection_string(database: str, **more: str) -> str:
    """A connection string with the session options of capture."""
    given = conninfo_to_dict(database)
    options = f"{given.get('options') or ''} {SESSION_OPTIONS}".strip()
    defaults = {"connect_timeout": "10", "application_name": "millstream capture"}
    chosen = {name: it for name, it in defaults.items() if name not in given}
    return make_conninfo(database, **chosen, **more, options=options)


def parse_timeline_history(content: str) -> list[TimelineEnd]:
    """A history file: one ancestor per line, with comments."""
    lines = [line.split() for line in content.splitlines()]
    return [
        TimelineEnd(int(words[0]), parse_lsn(words[1]))
        for words in lines
        if len(words) >= 2 and not words[0].startswith("#")
    ]


class ReplicationConnection:
    """See the module. After `start` it belongs to a `Receiver`."""

    def __init__(self, database: str) -> None:
        conninfo = connection_string(database, replication="database")
        self._connection = pq.PGconn.connect(conninfo.encode())
        if self._connection.status != pq.ConnStatus.OK:
            message = self._connection.get_error_message().strip()
            raise ReplicationLost(f"cannot connect for replication: {message}")

    def close(self) -> None:
        self._connection.finish()

    @property
    def raw(self) -> pq.abc.PGconn:
        return self._connection

    def identify(self) -> System:
        result = self._execute("IDENTIFY_SYSTEM")
        values = [(result.get_value(0, column) or b"").decode() for column in range(4)]
        return System(values[0], int(values[1]), parse_lsn(values[2]), values[3])

    def timeline_history(self, timeline: int) -> list[TimelineEnd]:
        """The ancestors of a timeline. A failover or a point-in-time recovery begins a new one."""
        if timeline == 1:
            return []
        content = self._execute(f"TIMELINE_HISTORY {timeline}").get_value(0, 1) or b""
        return parse_timeline_history(content.decode())

    def create_slot(
        self, slot: str, wait: Callable[[], None], *, failover: bool = False
    ) -> CreatedSlot:
        """Create a slot and export its snapshot. `wait` is called every 0.2 s while the server
        waits for open transactions, and can raise. `failover`: standbys copy it."""
        options = "(SNAPSHOT 'export', FAILOVER true)" if failover else "EXPORT_SNAPSHOT"
        self._connection.send_query(
            f"CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput {options}".encode()
        )
        self._connection.flush()
        try:
            while True:
                readable, _, _ = select.select([self._connection.socket], [], [], 0.2)
                if readable:
                    self._connection.consume_input()
                if not self._connection.is_busy():
                    break
                wait()
        except BaseException:
            with contextlib.suppress(Exception):
                self._connection.get_cancel().cancel()
            raise
        result = self._connection.get_result()
        assert result is not None
        self._check(result, f"creating slot {slot}")
        while self._connection.get_result() is not None:
            pass
        lsn, name = result.get_value(0, 1), result.get_value(0, 2)
        return CreatedSlot(parse_lsn((lsn or b"").decode()), (name or b"").decode())

    def start(self, slot: str, publication: str, lsn: int) -> None:
        """Start streaming all transactions that end after `lsn`."""
        quoted = publication.replace('"', '""').replace("'", "''")
        options = f"proto_version '1', publication_names '\"{quoted}\"', messages 'true'"
        command = f"START_REPLICATION SLOT {slot} LOGICAL {format_lsn(lsn)} ({options})"
        result = self._connection.exec_(command.encode())
        if result.status != pq.ExecStatus.COPY_BOTH:
            self._check(result, f"starting slot {slot}")

    def _execute(self, command: str) -> pq.abc.PGresult:
        result = self._connection.exec_(command.encode())
        self._check(result, command)
        return result

    def _check(self, result: pq.abc.PGresult, what: str) -> None:
        if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            return
        if self._connection.status != pq.ConnStatus.OK:
            message = self._connection.get_error_message().strip()
            raise ReplicationLost(f"{what}: {message}")
        state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
        text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode()
        raise CommandFailed(f"{what}: {text or result.get_error_message().strip()}", state)


class Receiver:
    """A thread that receives the stream; see the module."""

    def __init__(self, connection: ReplicationConnection, confirmed_lsn: int) -> None:
        self._connection = connection
        self._raw = connection.raw
        self._raw.nonblocking = 1
        self._changed = threading.Condition()
        self._received: list[bytes] = []
        self._received_bytes = 0
        self._error: Exception | None = None
        self._stopping = False
        self._confirmed_lsn = confirmed_lsn
        self._reply_wanted = False
        self._sent_lsn = confirmed_lsn
        self._sent_at = time.monotonic()
        self._waker, self._wake = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="capture receiver", daemon=True)
        self._thread.start()

    # The consumer's side

    def take(self, timeout_seconds: float) -> list[bytes]:
        """All payloads received since the last call; waits for the first one.

        Raises `ReplicationLost` after the last one, if the connection has ended.
        """
        with self._changed:
            if not self._received and self._error is None:
                self._changed.wait(timeout_seconds)
            taken, self._received = self._received, []
            was_full = self._received_bytes >= RECEIVED_BYTES_MAX
            self._received_bytes = 0
            if not taken and self._error is not None:
                raise self._error
        if was_full:
            self._notify()
        return taken

    def confirm(self, lsn: int) -> None:
        """Everything below `lsn` is durable: the server need not keep it."""
        self._confirmed_lsn = lsn

    def request_keepalive(self) -> None:
        """Ask the server for its position."""
        self._reply_wanted = True
        self._notify()

    def stop(self) -> None:
        """Send the last confirmed position, end the stream, and close the connection."""
        self._stopping = True
        self._notify()
        self._thread.join(STOP_SECONDS)
        self._connection.close()
        self._waker.close()
        self._wake.close()

    def _notify(self) -> None:
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")

    # The thread's side

    def _run(self) -> None:
        try:
            self._receive()
        except Exception as error:  # noqa: BLE001 - it is raised in the consumer's thread
            with self._changed:
                self._error = error
                self._changed.notify()

    def _receive(self) -> None:
        pending: list[bytes] = []
        size = 0
        get = self._raw.get_copy_data
        while not self._stopping:
            count, data = get(1)
            if count > 0:
                payload = bytes(data)
                if payload[0] == KEEPALIVE and parse_keepalive(payload).reply_requested:
                    self._send_status()
                pending.append(payload)
                size += count
                if size < HANDED_OVER_BYTES:
                    continue
            elif count < 0:
                self._hand_over(pending, size)
                raise ReplicationLost(self._reason())
            self._hand_over(pending, size)
            pending, size = [], 0
            self._send_status_if_due()
            if count == 0:
                self._wait([self._raw.socket, self._waker])
                self._raw.consume_input()
            while self._received_bytes >= RECEIVED_BYTES_MAX and not self._stopping:
                self._wait([self._waker])
                self._send_status_if_due()
        self._send_status()
        self._end_stream()

    def _end_stream(self) -> None:
        """Release the slot: after `stop` it can be dropped, or read by another connection."""
        deadline = time.monotonic() + RELEASE_SECONDS
        self._raw.put_copy_end()
        self._raw.flush()
        while (left := deadline - time.monotonic()) > 0:
            count, _ = self._raw.get_copy_data(1)
            if count < 0 and not self._raw.is_busy():
                self._raw.get_result()
                return
            if count <= 0:
                select.select([self._raw.socket], [], [], left)
                self._raw.consume_input()

    def _hand_over(self, pending: list[bytes], size: int) -> None:
        if pending:
            with self._changed:
                self._received += pending
                self._received_bytes += size
                self._changed.notify()

    def _wait(self, sockets: list[int | socket.socket]) -> None:
        """Until one is readable, or a status update is due."""
        due = self._sent_at + (
            CONFIRM_SECONDS if self._confirmed_lsn > self._sent_lsn else STATUS_SECONDS
        )
        timeout = min(max(due - time.monotonic(), 0.0), CONFIRM_SECONDS)
        readable, _, _ = select.select(sockets, [], [], timeout)
        if self._waker in readable:
            self._waker.recv(4096)

    def _send_status_if_due(self) -> None:
        elapsed = time.monotonic() - self._sent_at
        moved = self._confirmed_lsn > self._sent_lsn and elapsed >= CONFIRM_SECONDS
        if moved or elapsed >= STATUS_SECONDS or self._reply_wanted:
            self._send_status()

    def _send_status(self) -> None:
        lsn, wanted, self._reply_wanted = self._confirmed_lsn, self._reply_wanted, False
        update = status_update(lsn, time.time_ns() // 1000, reply_requested=wanted)
        try:
            self._raw.put_copy_data(update)
            while self._raw.flush():
                # The server may wait for us to read before it reads.
                select.select([self._raw.socket], [self._raw.socket], [])
                self._raw.consume_input()
        except Exception as error:
            raise ReplicationLost(self._reason()) from error
        self._sent_lsn, self._sent_at = lsn, time.monotonic()

    def _reason(self) -> str:
        """Why the server ended the stream."""
        message = ""
        with contextlib.suppress(Exception):
            result = self._raw.get_result()
            if result is not None:
                message = result.get_error_message().strip()
        message = message or self._raw.get_error_message().strip()
        return f"replication ended: {message or 'the server closed the connection'}"
