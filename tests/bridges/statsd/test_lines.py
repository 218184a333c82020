"""Lines of StatsD and DogStatsD."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.statsd.lines import BadLine, Sample, parse_line, tags_of


@pytest.mark.parametrize(
    ("line", "samples"),
    [
        (b"hits:1|c", [Sample(b"hits", "c", 1.0)]),
        (b"hits:2|c|@0.1", [Sample(b"hits", "c", 2.0, rate=0.1)]),
        (b"t:3.5|ms|#env:prod,x", [Sample(b"t", "ms", 3.5, tags=b"env:prod,x")]),
        (b"g:-2|g", [Sample(b"g", "g", -2.0, is_change=True)]),
        (b"g:2|g", [Sample(b"g", "g", 2.0)]),
        (b"u:alice|s", [Sample(b"u", "s", 0.0, b"alice")]),
        (b"d:1:2|d|#a:b|c:abc|T1700", [
            Sample(b"d", "d", 1.0, tags=b"a:b"), Sample(b"d", "d", 2.0, tags=b"a:b")]),
    ],
)  # fmt: skip
def test_line_is_parsed(line: bytes, samples: list[Sample]) -> None:
    assert parse_line(line) == samples


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"hits", "no type"),
        (b"hits:1", "no type"),
        (b":1|c", "bad name"),
        (b"a:1|x", "unknown type"),
        (b"a:one|c", "bad value"),
        (b"a:nan|c", "bad value"),
        (b"a:inf|g", "bad value"),
        (b"a:|c", "bad value"),
        (b"a:1_000|c", "bad value"),
        (b"a: 1|c", "bad value"),
        (b"a:1|c|@0", "bad rate"),
        (b"a:1|c|@2", "bad rate"),
        (b"a:1|c|?", "unknown extension"),
        (b"_e{5,4}:title|text", "unknown type"),
        (b"_sc|check|0", "event or check"),
        (b"a" * 600 + b":1|c", "bad name"),
    ],
)
def test_bad_line_has_its_reason(line: bytes, reason: str) -> None:
    with pytest.raises(BadLine, match=f"^{reason}$"):
        parse_line(line)


@given(st.binary(max_size=60))
def test_any_bytes_are_samples_or_bad(line: bytes) -> None:
    try:
        for sample in parse_line(line):
            assert sample.rate > 0
            tags_of(sample.tags)
    except BadLine:
        pass


def test_tags_have_names_and_values() -> None:
    assert tags_of(b"env:prod,flag,url:http://x,,\xff:1") == {
        "env": "prod",
        "flag": "",
        "url": "http://x",
        "\ufffd": "1",
    }
