"""The framing of MoldUDP64.

    downstream   session (10 bytes), sequence of the first message (u64), count (u16), then count
                 messages, each with its length (u16). Count 0 is a heartbeat, 0xFFFF the end of the
                 session; the sequence is then that of the next message.
    request      session, sequence, count: asks for messages; the answer is a downstream packet

Numbers are big-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

HEADER = struct.Struct(">10sQH")
LENGTH = struct.Struct(">H")
END = 0xFFFF
COUNT_MAX = END - 1
SEQUENCE_MAX = 2**64 - 1
PACKET_BYTES_MAX = 65_507  # of UDP over IPv4
MESSAGE_BYTES_MAX = PACKET_BYTES_MAX - HEADER.size - LENGTH.size
PAYLOAD_BYTES_MAX = 1400  # fits an Ethernet frame


class BadPacket(ValueError):
    """Bytes that are no packet; the message is the reason, for metrics."""


class Packet(NamedTuple):
    """A downstream packet."""

    session: bytes
    sequence: int
    messages: tuple[bytes, ...] = ()
    is_end: bool = False


@dataclass(frozen=True)
class Request:
    """A request for messages."""

    session: bytes
    sequence: int
    count: int


def session_of(name: str) -> bytes:
    """A session's name as its ten bytes."""
    return name.encode("ascii", "replace")[:10].ljust(10)


def parse_packet(data: bytes) -> Packet:
    """Raises `BadPacket`."""
    if len(data) < HEADER.size:
        raise BadPacket("short header")
    session, sequence, count = HEADER.unpack_from(data)
    if count in (0, END):
        if len(data) != HEADER.size:
            raise BadPacket("trailing bytes")
        return Packet(session, sequence, (), count == END)
    if sequence + count > SEQUENCE_MAX:
        raise BadPacket("bad sequence")
    messages, at = [], HEADER.size
    for _ in range(count):
        if at + LENGTH.size > len(data):
            raise BadPacket("short message")
        (size,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size + size
        if at > len(data):
            raise BadPacket("short message")
        messages.append(data[at - size : at])
    if at != len(data):
        raise BadPacket("trailing bytes")
    return Packet(session, sequence, tuple(messages))


def encode_packet(packet: Packet) -> bytes:
    count = END if packet.is_end else len(packet.messages)
    parts = [HEADER.pack(packet.session, packet.sequence, count)]
    for message in packet.messages:
        parts += [LENGTH.pack(len(message)), message]
    return b"".join(parts)


def packets_of(session: bytes, sequence: int, messages: Iterable[bytes]) -> Iterator[bytes]:
    """The messages in as few packets as they fit into. One that is larger goes alone."""
    waiting: list[bytes] = []
    size = 0
    for message in messages:
        added = LENGTH.size + len(message)
        if waiting and (size + added > PAYLOAD_BYTES_MAX or len(waiting) == COUNT_MAX):
            yield encode_packet(Packet(session, sequence, tuple(waiting)))
            sequence += len(waiting)
            waiting, size = [], 0
        waiting.append(message)
        size += added
    if waiting:
        yield encode_packet(Packet(session, sequence, tuple(waiting)))


def parse_request(data: bytes) -> Request:
    """Raises `BadPacket`."""
    if len(data) != HEADER.size:
        raise BadPacket("no request")
    return Request(*HEADER.unpack(data))


def encode_request(request: Request) -> bytes:
    return HEADER.pack(request.session, request.sequence, request.count)
