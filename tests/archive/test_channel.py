"""Messages over a socket pair, with open files."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path

import pytest

from millstream.archive.channel import Message, receive, send


def test_messages_arrive_with_payload_and_files(tmp_path: Path) -> None:
    here, there = socket.socketpair()
    (tmp_path / "a").write_bytes(b"content")
    with here, there, (tmp_path / "a").open("rb") as file:
        large = os.urandom(5_000_000)
        sent = Message({"x": 1}, large, [file.fileno()])
        thread = threading.Thread(target=send, args=(here, sent))
        thread.start()
        received = receive(there)
        thread.join()
        assert received is not None
        assert (received.fields, received.payload) == ({"x": 1}, large)
        (fd,) = received.files
        (tmp_path / "a").unlink()
        assert os.pread(fd, 10, 0) == b"content"
        os.close(fd)
        send(there, Message({}))
        assert receive(here) == ({}, b"", [])


def test_end_of_the_channel_is_not_an_error() -> None:
    here, there = socket.socketpair()
    here.close()
    with there:
        assert receive(there) is None


@pytest.mark.parametrize(
    "sent", [b"\0\0", struct.pack(">ii", 10, 0) + b"{}", struct.pack(">ii", -1, 0)]
)
def test_half_a_message_is_an_error(sent: bytes) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(sent)
        here.close()
        with pytest.raises(OSError):
            receive(there)
