"""Aggregates of StatsD samples per interval."""

from __future__ import annotations

import json
from typing import Any

import pytest

from millstream.bridges.statsd import intervals as module
from millstream.bridges.statsd.intervals import Intervals, loss_record, sample_record
from millstream.bridges.statsd.lines import BadLine, parse_line


def add(intervals: Intervals, *lines: bytes) -> None:
    for line in lines:
        for sample in parse_line(line):
            intervals.add(sample)


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


def test_sample_that_came_several_times_counts_that_often() -> None:
    once, together = Intervals(), Intervals()
    for line in (b"hits:2|c|@0.5", b"load:+2|g", b"t:4|ms", b"u:x|s"):
        add(once, line, line, line)
        for sample in parse_line(line):
            together.add(sample, 3)
    assert values(together) == values(once)


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
