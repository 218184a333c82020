"""Reads what `strace` saw of a server and says whether each answer waited for its flush.

kill -9 proves nothing about flushing, since the page cache outlives the process; the order of
system calls does. A produce request is followed by a marker in its record and by its correlation
id: the marker is seen in the writes to files, the id in the write of the answer to the socket. For
an acknowledged record there must be a file (segment or journal) that took the marker and was then
synced, successfully, from after that write until before the answer began.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

SYSTEM_CALLS = (
    "pwritev,pwritev2,pwrite64,writev,write,sendto,sendmsg,fdatasync,fsync,sync_file_range,syncfs"
)
OPTIONS = ["-f", "-y", "-xx", "-s", "1000000", "-e", f"trace={SYSTEM_CALLS}"]

_WRITES = {"pwritev", "pwritev2", "pwrite64", "writev", "write", "sendto", "sendmsg"}
_SYNCS = {"fdatasync", "fsync"}
_STARTED = re.compile(r"^(?:\[pid\s+)?(\d+)?\]?\s*(\w+)\((\d+)<([^>]*)>(.*)$")
_RESUMED = re.compile(r"^(?:\[pid\s+)?(\d+)?\]?\s*<\.\.\. (\w+) resumed>(.*)$")
_RESULT = re.compile(r"=\s+(-?\d+)")
_QUOTED = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclass
class Call:
    """One system call on a file descriptor, and the lines of the trace where it began and ended."""

    name: str
    target: str  # what the descriptor is: a path, or "socket:[...]" or "TCP:[...]"
    content: bytes
    began: int
    ended: int = -1
    result: int | None = None
    arguments: str = field(default="", repr=False)

    @property
    def is_socket(self) -> bool:
        return self.target.startswith(("socket:", "TCP", "UNIX", "pipe:", "anon_inode"))


@dataclass(frozen=True)
class Answered:
    """A produce request that was acknowledged: how to find its bytes and its answer."""

    marker: bytes
    correlation_id: int


def parse(lines: Iterable[str]) -> list[Call]:
    """The calls of a trace in the order in which they began."""
    return list(_calls(lines))


def _calls(lines: Iterable[str]) -> Iterator[Call]:
    pending: dict[tuple[str, str], Call] = {}
    for number, line in enumerate(lines):
        if resumed := _RESUMED.match(line):
            process, name, rest = resumed.groups()
            call = pending.pop((process or "", name), None)
            if call is not None:
                _finish(call, rest, number)
                yield call
            continue
        started = _STARTED.match(line)
        if started is None:
            continue
        process, name, _, target, rest = started.groups()
        content = b"".join(_unescaped(text) for text in _QUOTED.findall(rest))
        call = Call(name, _unescaped(target).decode(errors="replace"), content, number)
        if "<unfinished ...>" in line:
            pending[process or "", name] = call
        else:
            _finish(call, rest, number)
            yield call


def _finish(call: Call, rest: str, number: int) -> None:
    call.ended = number
    result = _RESULT.findall(rest)
    call.result = int(result[-1]) if result else None


def _unescaped(text: str) -> bytes:
    """-xx writes every byte as \\xNN, in paths as in contents; brackets and the like come plain."""
    return re.sub(
        rb"\\x([0-9a-f]{2})", lambda found: bytes.fromhex(found[1].decode()), text.encode()
    )


def unflushed(calls: list[Call], answers: Iterable[Answered]) -> list[Answered]:
    """The acknowledged requests whose bytes no sync covered before the answer."""
    file_writes = [c for c in calls if c.name in _WRITES and not c.is_socket]
    socket_writes = [c for c in calls if c.name in _WRITES and c.is_socket]
    syncs = [c for c in calls if c.name in _SYNCS and c.result == 0]
    return [a for a in answers if not _is_covered(a, file_writes, syncs, socket_writes)]


def _is_covered(
    answered: Answered, file_writes: list[Call], syncs: list[Call], socket_writes: list[Call]
) -> bool:
    answer_id = answered.correlation_id.to_bytes(4, "big")
    sent = [call.began for call in socket_writes if answer_id in call.content]
    written = [call for call in file_writes if answered.marker in call.content]
    if not sent or not written:
        raise AssertionError(
            f"the trace lacks {answered}: {len(written)} writes, {len(sent)} sends"
        )
    return any(
        sync.target == write.target and write.ended < sync.began and sync.ended < min(sent)
        for write in written
        for sync in syncs
    )
