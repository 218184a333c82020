"""How the topics of two versions differ."""

from __future__ import annotations

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millstream.errors import ConfigError
from millstream.pipelines.offsets import OffsetRange
from millstream.pipelines.running.settings import Settings
from millstream.pipelines.versions import registry
from millstream.pipelines.versions.comparing_topics import (
    TopicComparison,
    compare_topic,
    is_same,
    parse_time_ms,
    ranges_of,
)
from millstream.pipelines.versions.differences import Diff
from millstream.pipelines.versions.marks import open_cluster
from millstream.pipelines.versions.registry import Versions
from millstream.pipelines.versions.topics import output_ends
from tests.pipelines.conftest import Topics
from tests.pipelines.versions.conftest import version_of

Records = list[tuple[str | None, Any]]


def two_versions(topic: str) -> Versions:
    document = Versions("revenue")
    for version in ("1", "2"):
        document = registry.deploy(document, version_of(version, topics=(topic,)))
    return document


def as_bytes(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return json.dumps(value).encode()


def diff(first: Records, second: Records, **options: Any) -> Diff:
    with closing(TopicComparison("alerts", **options)) as comparison:
        for side, records in enumerate((first, second)):
            comparison.add(
                side,
                [(None if it is None else it.encode(), as_bytes(value)) for it, value in records],
            )
        return comparison.result()


def test_records_of_a_version_are_public_while_it_is_in_force_and_private_otherwise() -> None:
    document = two_versions("alerts")
    document = registry.switch(document, "2", {}, {("alerts", 0): 20, ("alerts.v2", 0): 18})
    ends = {("alerts", 0): 20, ("alerts.v2", 0): 18, ("alerts.v1", 0): 5}
    document = registry.switch(document, "1", {}, ends | {("alerts", 0): 24})
    now = {("alerts", 0): 30, ("alerts.v2", 0): 25, ("alerts.v1", 0): 5, ("alerts", 1): 3}
    assert ranges_of(document, "1", "alerts", now) == [
        OffsetRange("alerts", 0, 0, 20),
        OffsetRange("alerts.v1", 0, 0, 5),
        OffsetRange("alerts", 0, 24, 30),
        OffsetRange("alerts", 1, 0, 3),
    ]
    assert ranges_of(document, "2", "alerts", now) == [
        OffsetRange("alerts.v2", 0, 0, 18),
        OffsetRange("alerts", 0, 20, 24),
        OffsetRange("alerts.v2", 0, 18, 25),
    ]
    for version in ["2", "1"] * registry.SPANS_MAX:
        document = registry.switch(document, version, {})
    with pytest.raises(ConfigError, match="cannot be divided by version"):
        ranges_of(document, "1", "alerts", now)


def test_records_before_a_version_began_are_those_of_the_version_whose_state_it_took() -> None:
    document = two_versions("alerts")
    begun = replace(document.get("2"), state_from="1", state_ends={"alerts": {"0": 12}})
    document = replace(document, versions={**document.versions, "2": begun})
    now = {("alerts", 0): 30, ("alerts.v2", 0): 4}
    assert ranges_of(document, "2", "alerts", now) == [
        OffsetRange("alerts", 0, 0, 12),
        OffsetRange("alerts.v2", 0, 0, 4),
    ]


def test_last_values_of_keys_are_compared_by_column() -> None:
    found = diff(
        [("a", {"n": 1, "m": 0}), ("a", {"n": 2, "m": 0}), ("b", {"n": 1}), ("c", {"n": 1})],
        [("a", {"n": 3, "m": 0}), ("b", {"n": 9}), ("b", {"n": 1}), ("d", {"n": 4})],
    )
    assert (found.rows, found.only, found.differing) == ((3, 3), (1, 1), 1)
    assert found.by_column == {"n": 1}
    shown = [(it.key["key"], it.first, it.second) for it in found.samples]
    assert shown == [
        ("a", {"n": 2, "m": 0}, {"n": 3, "m": 0}),
        ("c", {"n": 1, "m": None}, None),
        ("d", None, {"n": 4, "m": None}),
    ]


def test_record_without_a_value_deletes_its_key() -> None:
    found = diff([("a", {"n": 1}), ("a", None)], [("a", {"n": 2}), ("a", None)])
    assert (found.is_equal, found.rows) == (True, (0, 0))


def test_all_records_are_compared_as_bags_without_keys_and_on_request() -> None:
    first: Records = [("a", {"n": 1}), ("a", {"n": 2})]
    second: Records = [("a", {"n": 2}), ("a", {"n": 2}), ("a", {"n": 2})]
    assert diff(first, second).is_equal
    found = diff(first, second, as_bags=True)
    assert (found.rows, found.only, found.keyed) == ((2, 3), (1, 2), False)
    keyless = diff([(None, {"n": 1}), ("a", {"n": 2})], [(None, {"n": 1})])
    assert (keyless.only, keyless.keyed) == ((1, 0), False)
    assert [(it.key, it.first) for it in keyless.samples] == [({"key": "a"}, {"n": 2})]


@pytest.mark.parametrize("as_bags", [False, True])
def test_columns_of_one_version_are_named_and_not_compared(as_bags: bool) -> None:
    found = diff([("a", {"n": 1, "x": 1})], [("a", {"n": 1, "y": 2})], as_bags=as_bags)
    assert found.is_equal
    assert found.columns_of_one == (("x",), ("y",))


def test_values_that_are_no_json_objects_are_compared_whole() -> None:
    found = diff([("a", {"n": 1}), ("b", b"\xff")], [("a", {"n": 1}), ("b", b"\xfe")])
    assert found.by_column == {"value": 1}
    assert found.samples[0].second == {"value": "fe"}


@pytest.mark.parametrize("as_bags", [False, True])
def test_rows_past_the_watermark_and_preliminary_ones_are_open(as_bags: bool) -> None:
    late, early = "2026-01-01T00:10:00.000Z", "2026-01-01T00:00:00.000Z"
    first: Records = [
        ("a", {"window_end": early, "n": 1, "_kind": "final"}),
        ("b", {"window_end": late, "n": 1, "_kind": "final"}),
        ("c", {"window_end": early, "n": 1, "_kind": "preliminary"}),
    ]
    second: Records = [first[0], ("b", {"window_end": late, "n": 2, "_kind": "final"})]
    midnight_ms = 1_767_225_600_000
    found = diff(first, second, as_bags=as_bags, watermark_ms=midnight_ms)
    assert (found.is_equal, found.open_rows, found.time) == (True, (2, 1), "window_end")
    found = diff(first, second, as_bags=as_bags, watermark_ms=midnight_ms + 600_000)
    assert (found.is_equal, found.open_rows) == (False, (1, 0))
    found = diff(first, second, as_bags=as_bags)
    assert (found.is_equal, found.time) == (False, None)


def test_values_are_same_up_to_the_last_digits_of_doubles() -> None:
    assert is_same({"a": [0.1, None]}, {"a": [0.1000000000000001, None]})
    assert not is_same({"a": [0.1]}, {"a": [0.2]})
    assert not is_same([1], [1, 2])
    assert not is_same("1", 1)
    assert parse_time_ms("2026-01-01T00:00:00") == 1_767_225_600_000
    assert parse_time_ms(5) is None


def test_topics_of_a_broker_are_compared_without_what_retention_deleted(
    topics: Topics, tmp_path: Path
) -> None:
    public = topics.create()
    private = topics.create(name=f"{public}.v2")
    topics.fill(public, [b'{"n": 0}', b'{"n": 1}', b'{"n": 2}'])  # keys: 0, 1, 2
    topics.fill(private, [b'{"n": 0}', b'{"n": 1}', b'{"n": 5}'])
    document = two_versions(public)
    with open_cluster(Settings(tmp_path, broker=topics.bootstrap)) as cluster:
        ends = output_ends(cluster, document)
        assert ends == {(public, 0): 3, (private, 0): 3}
        found = compare_topic(cluster, document, ("1", "2"), public, ends)
        assert (found.rows, found.by_column, found.deleted) == ((3, 3), {"n": 1}, (0, 0))
        topics.delete_records(public, 2)
        found = compare_topic(cluster, document, ("1", "2"), public, ends)
        assert (found.rows, found.deleted, found.only) == ((1, 3), (2, 0), (0, 2))
