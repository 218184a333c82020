"""Aggregates of StatsD samples per interval."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.bridges.statsd import intervals as module
from millstream.bridges.statsd.intervals import Intervals, loss_record, sample_record
from millstream.bridges.statsd.lines import BadLine, parse_line


def add(intervals: Intervals, *lines: bytes) -> None:
    for line in lines:
        intervals.add_line(line)


def values(intervals: Intervals) -> dict[tuple[str, str], dict[str, Any]]:
    found = {}
    for record in intervals.finish(1000, 2000):
        body = json.loads(record.value or b"")
        assert (body.pop("from"), body.pop("to")) == (1000, 2000)
        found[(body.pop("name"), json.dumps(body.pop("tags")))] = body
    return found


def test_each_type_is_aggregated() -> None:
    intervals = Intervals()
    add(intervals, b"hits:1|c", b"hits:2|c|@0.5", b"hits:1|c|#a:b", b"load:3|g", b"load:+2|g")
    add(intervals, b"t:4|ms", b"t:2:9|ms", b"u:x|s", b"u:y|s", b"u:x|s")
    assert values(intervals) == {
        ("hits", "{}"): {"type": "c", "value": 5.0},
        ("hits", '{"a": "b"}'): {"type": "c", "value": 1.0},
        ("load", "{}"): {"type": "g", "value": 5.0},
        ("t", "{}"): {"type": "ms", "count": 3.0, "sum": 15.0, "min": 2.0, "max": 9.0},
        ("u", "{}"): {"type": "s", "value": 2},
    }


LINES = st.builds(
    lambda name, value, kind, rest: b":".join([name, value]) + b"|" + kind + rest,
    st.sampled_from([b"a", b"b.c", b""]),
    st.sampled_from(
        [b"1", b"2.5", b"-3", b"+4", b"0.1", b"1e3", b"1:2", b"x", b"", b"007", b".5", b"5."]
    )
    | st.integers(0, 10**18).map(lambda it: b"%d" % it)
    | st.decimals(0, 10**9, places=4).map(lambda it: str(it).encode()),
    st.sampled_from([b"c", b"g", b"ms", b"h", b"s", b"q"]),
    st.sampled_from([b"", b"|@0.5", b"|#env:prod", b"|@0.1|#x", b"|?"]),
)


@given(st.lists(LINES, max_size=30))
def test_lines_that_recur_give_what_parsing_each_gives(lines: list[bytes]) -> None:
    parsed, recurring = Intervals(), Intervals()
    refused: list[list[str]] = [[], []]
    for line in lines:
        for at, intervals in enumerate((parsed, recurring)):
            if at and intervals.recurring.take(line):
                continue
            try:
                intervals.add_line(line)
            except BadLine as bad:
                refused[at].append(str(bad))
    assert refused[0] == refused[1]
    assert values(recurring) == values(parsed)


def test_known_line_needs_no_parsing_until_the_interval_ends() -> None:
    intervals = Intervals()
    line = b"t:4|ms|#a:b"
    assert not intervals.recurring.take(line)
    add(intervals, line)
    assert intervals.recurring.take(b"t:6.5|ms|#a:b")
    assert not intervals.recurring.take(b"t:6.5|ms|#a:c")
    assert values(intervals)[("t", '{"a": "b"}')]["sum"] == 10.5
    assert not intervals.recurring.take(line)


def test_lines_that_are_remembered_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    intervals = Intervals()
    add(intervals, *(b"a:1|c|T%d" % number for number in range(100)))
    assert 0 < len(intervals.recurring) <= 3
    assert values(intervals)[("a", "{}")]["value"] == 100.0


def test_sum_that_is_too_large_for_json_is_the_largest_number() -> None:
    intervals = Intervals()
    add(intervals, b"a:1e308|c", b"a:1e308|c", b"b:1|g", b"b:-2|g")
    assert values(intervals)[("a", "{}")]["value"] == sys.float_info.max


def test_next_interval_begins_at_zero_and_gauges_stay() -> None:
    intervals = Intervals()
    add(intervals, b"hits:1|c", b"load:3|g")
    values(intervals)
    assert values(intervals) == {}
    add(intervals, b"load:-1|g")
    assert values(intervals)[("load", "{}")]["value"] == 2.0


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SERIES_MAX", 2)
    monkeypatch.setattr(module, "SET_MEMBERS_MAX", 1)
    for kind in (b"c", b"g", b"ms", b"s"):
        intervals = Intervals()
        add(intervals, b"a:1|" + kind, b"b:1|" + kind, b"a:1|" + kind)
        with pytest.raises(BadLine, match="too many series"):
            add(intervals, b"c:1|" + kind)
    with pytest.raises(BadLine, match="set too large"):
        add(intervals, b"a:2|s")


def test_samples_and_losses_are_records() -> None:
    (sample,) = parse_line(b"g:-2|g|#a:b")
    record = sample_record(sample, 5)
    assert record.key == b"g"
    assert json.loads(record.value or b"") == {
        "name": "g", "type": "g", "tags": {"a": "b"}, "value": -2.0, "rate": 1.0, "change": True,
    }  # fmt: skip
    (member,) = parse_line(b"u:\xff|s")
    assert json.loads(sample_record(member, 5).value or b"")["value"] == "\ufffd"
    lost = loss_record("app", 7, 1, 2)
    assert json.loads(lost.value or b"")["kernel_drops"] == 7
    assert lost.headers == [("millstream-loss", b"7")]


def test_names_and_members_have_a_limit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BYTES_MAX", 310)
    intervals = Intervals()
    intervals.add_line(b"one:1|g|#tag")
    for line in (b"long" * 50 + b":1|c", b"long" * 50 + b":abc|s"):
        with pytest.raises(BadLine, match="too many series"):
            intervals.add_line(line)
    intervals.add_line(b"s:abc|s")
    intervals.add_line(b"s:abc|s")
    with pytest.raises(BadLine, match="set too large"):
        intervals.add_line(b"s:abcd|s")
    intervals.finish(0, 1)
    intervals.add_line(b"two:1|c")  # the gauge stays, the set goes
    with pytest.raises(BadLine, match="too many series"):
        intervals.add_line(b"three:1|c")
