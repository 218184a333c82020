"""Sockets for groups and for addresses."""

from __future__ import annotations

import pytest

from millstream.bridges.mold.sockets import is_group, receiving, sending
from millstream.errors import MillstreamError


def test_two_receivers_get_what_is_sent_to_their_group() -> None:
    try:
        first = receiving("239.255.77.77:0", "127.0.0.1")
        port = first.getsockname()[1]
        second = receiving(f"239.255.77.77:{port}", "127.0.0.1")
        out = sending("127.0.0.1", 0)
        out.sendto(b"hello", ("239.255.77.77", port))
    except (OSError, MillstreamError) as error:
        pytest.skip(f"no multicast here: {error}")
    for each in (first, second):
        each.settimeout(60)
        assert each.recv(100) == b"hello"
        each.close()
    out.close()


def test_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(MillstreamError, match=r"cannot receive at 192\.0\.2\.1:5: "):
        receiving("192.0.2.1:5", "127.0.0.1")
    assert is_group("239.1.1.1")
    assert not is_group("127.0.0.1")
