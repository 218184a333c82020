"""The framing of MoldUDP64."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.mold.packets import (
    PAYLOAD_BYTES_MAX,
    BadPacket,
    Packet,
    Request,
    encode_packet,
    encode_request,
    packets_of,
    parse_packet,
    parse_request,
    session_of,
)

SESSION = session_of("day 1")


def test_packet_has_the_published_layout() -> None:
    data = encode_packet(Packet(SESSION, 258, (b"ab", b"")))
    assert data == b"day 1     " + b"\0\0\0\0\0\0\1\2" + b"\0\2" + b"\0\2ab" + b"\0\0"
    assert encode_packet(Packet(SESSION, 1)) == b"day 1     \0\0\0\0\0\0\0\1\0\0"
    assert encode_packet(Packet(SESSION, 1, (), True))[-2:] == b"\xff\xff"
    request = encode_request(Request(SESSION, 7, 3))
    assert request == b"day 1     \0\0\0\0\0\0\0\7\0\3"
    assert parse_request(request) == Request(SESSION, 7, 3)


@given(st.integers(1, 2**60), st.lists(st.binary(max_size=900), min_size=1, max_size=20))
def test_messages_come_back_in_packets_that_fit(sequence: int, messages: list[bytes]) -> None:
    found: list[bytes] = []
    for data in packets_of(SESSION, sequence, messages):
        packet = parse_packet(data)
        assert packet.sequence == sequence + len(found)
        assert len(data) <= PAYLOAD_BYTES_MAX + 20
        found += packet.messages
    assert found == messages


@given(st.binary(max_size=80))
def test_any_bytes_are_a_packet_or_bad(data: bytes) -> None:
    try:
        packet = parse_packet(data)
    except BadPacket:
        return
    assert encode_packet(packet) == data


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "short header"),
        (encode_packet(Packet(SESSION, 1, (b"abc",)))[:-1], "short message"),
        (encode_packet(Packet(SESSION, 1, (b"abc",))) + b"x", "trailing bytes"),
        (encode_packet(Packet(SESSION, 1)) + b"x", "trailing bytes"),
        (encode_packet(Packet(SESSION, 2**64 - 1, (b"a",))), "bad sequence"),
    ],
)
def test_damaged_packet_has_its_reason(data: bytes, reason: str) -> None:
    with pytest.raises(BadPacket, match=reason):
        parse_packet(data)
    with pytest.raises(BadPacket):
        parse_request(b"short")
