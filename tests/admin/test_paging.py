"""Positions in addresses, and text that is none."""

from __future__ import annotations

import pytest

from millstream.admin.paging import (
    BadPosition,
    decode_positions,
    decode_ranges,
    encode_positions,
    encode_ranges,
)


def test_positions_of_few_partitions_are_readable() -> None:
    assert encode_positions({1: 4, 0: 17}) == "0:17,1:4"
    assert decode_positions("0:17,1:4") == {0: 17, 1: 4}


def test_positions_of_many_partitions_survive_in_a_short_address() -> None:
    positions = {partition: partition * 1_000_003 for partition in range(1000)}
    text = encode_positions(positions)
    assert len(text) < 10_000
    assert text.startswith("~")
    assert text[1:].replace("-", "").replace("_", "").isalnum()
    assert decode_positions(text) == positions


def test_positions_of_too_many_partitions_have_no_text() -> None:
    assert encode_positions(dict.fromkeys(range(5000), 1)) == ""


@pytest.mark.parametrize(
    "text", ["", "x", "0:", ":1", "0:1;1:2", "-1:0", "0:-1", "~", "~!!", "~AAAA", "0:" + "9" * 40]
)
def test_positions_refuse_text_that_is_none(text: str) -> None:
    with pytest.raises(BadPosition):
        decode_positions(text)


def test_positions_refuse_what_unpacks_to_too_much() -> None:
    import base64
    import zlib

    bomb = base64.urlsafe_b64encode(zlib.compress(b"0:1," * 1_000_000)).decode()
    with pytest.raises(BadPosition, match="too long"):
        decode_positions("~" + bomb)


def test_ranges_survive_in_an_address() -> None:
    few = [(0, 17, 500), (1, 4, 90)]
    assert encode_ranges(few) == "0:17-500,1:4-90"
    assert decode_ranges(encode_ranges(few)) == few
    many = [(partition, 10**12, 10**12 + partition) for partition in range(1000)]
    assert decode_ranges(encode_ranges(many)) == many


@pytest.mark.parametrize("text", ["", "0:1", "0:1-", "0:1-2;", "a:1-2", "~AAAA", "0:-1-2"])
def test_ranges_refuse_text_that_is_none(text: str) -> None:
    with pytest.raises(BadPosition):
        decode_ranges(text)
