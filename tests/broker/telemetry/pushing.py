"""Encodes metrics as a client does."""

from __future__ import annotations

import struct


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def point(value: float, **attributes: str) -> bytes:
    tag = b"\x21" if isinstance(value, float) else b"\x31"  # as_double = 4, as_int = 6
    data = tag + struct.pack("<d" if isinstance(value, float) else "<q", value)
    for key, text in attributes.items():
        data += field(7, field(1, key.encode()) + field(2, field(1, text.encode())))
    return data


def gauge(name: str, *points: bytes) -> bytes:
    return field(1, name.encode()) + field(5, b"".join(field(1, it) for it in points))


def total(name: str, *points: bytes, is_delta: bool = False) -> bytes:
    body = b"".join(field(1, it) for it in points)
    body += varint(2 << 3) + varint(1 if is_delta else 2) + varint(3 << 3) + varint(1)
    return field(1, name.encode()) + field(7, body)


def metrics_data(*metrics: bytes) -> bytes:
    scope = b"".join(field(2, it) for it in metrics)
    return field(1, field(2, scope))
