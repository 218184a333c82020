"""A range of a file, sent to a socket and read."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.errors import FileGone
from millstream.storage._core import FileHandle
from millstream.storage.file_range import FileRange
from millstream.storage.filesystem import OsFileSystem
from millstream.storage.handles import FileHandles

CONTENT = os.urandom(4_000_000)


@pytest.fixture
def handles(tmp_path: Path) -> FileHandles:
    (tmp_path / "file").write_bytes(CONTENT)
    return FileHandles(OsFileSystem())


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


def received(connection: socket.socket, size: int) -> bytes:
    content = bytearray()
    while len(content) < size:
        content += connection.recv(size - len(content))
    return bytes(content)


def test_range_is_sent_whole_if_the_socket_takes_it(
    handles: FileHandles, tmp_path: Path, sockets: tuple[socket.socket, socket.socket]
) -> None:
    found = FileRange(handles, FileHandle(str(tmp_path / "file")), 1000, 5000, 1)
    assert len(found) == 5000
    assert found.send(sockets[0].fileno()) == 5000
    assert received(sockets[1], 5000) == CONTENT[1000:6000]


def test_rest_is_read_if_the_socket_is_full(
    handles: FileHandles, tmp_path: Path, sockets: tuple[socket.socket, socket.socket]
) -> None:
    found = FileRange(handles, FileHandle(str(tmp_path / "file")), 1, len(CONTENT) - 1, 1)
    sent = found.send(sockets[0].fileno())
    assert 0 < sent < len(found)
    assert found.send(sockets[0].fileno()) == 0
    assert received(sockets[1], sent) + found.read(sent) == CONTENT[1:]


def test_range_of_a_removed_file_raises(
    handles: FileHandles, tmp_path: Path, sockets: tuple[socket.socket, socket.socket]
) -> None:
    handle = FileHandle(str(tmp_path / "file"))
    found = FileRange(handles, handle, 0, 5000, 1)
    handles.discard(handle)
    with pytest.raises(FileGone):
        found.send(sockets[0].fileno())
    with pytest.raises(FileGone):
        found.read()


def test_client_that_has_gone_is_an_error(
    handles: FileHandles, tmp_path: Path, sockets: tuple[socket.socket, socket.socket]
) -> None:
    sockets[1].close()
    found = FileRange(handles, FileHandle(str(tmp_path / "file")), 0, 5000, 1)
    with pytest.raises(OSError, match="pipe"):
        found.send(sockets[0].fileno())
