"""Planning by offsets, without a broker."""

from __future__ import annotations

from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millstream.errors import ConfigError
from millstream.pipelines.offsets import (
    OffsetRange,
    QueriesEnd,
    count_between,
    from_json,
    idle_until_ms,
    limit_total,
    parse_offsets,
    plan_tasks,
    queries_end,
    split,
    to_json,
    topic_ids_in,
    with_idle_until,
    with_queries_end,
    with_topic_ids,
)


def test_offsets_travel_as_the_connectors_json() -> None:
    offsets = {("b", 0): 5, ("a", 10): 1, ("a", 2): 7}
    assert to_json(offsets) == {"a": {"2": 7, "10": 1}, "b": {"0": 5}}
    assert from_json(to_json(offsets)) == offsets


def test_time_of_an_idle_source_is_beside_its_offsets() -> None:
    offsets = {("a", 0): 5}
    assert with_idle_until(to_json(offsets), None) == to_json(offsets)
    idle = with_idle_until(to_json(offsets), 1_767_225_600_000)
    assert idle == {"a": {"0": 5}, "#idle": {"until_ms": 1_767_225_600_000}}
    assert (from_json(idle), idle_until_ms(idle)) == (offsets, 1_767_225_600_000)
    assert idle_until_ms(to_json(offsets)) is None


@pytest.mark.parametrize("text", ["", "newest", "[1]", '{"a": 3}', '{"a": {"x": 1}}'])
def test_parse_offsets_names_the_option_that_is_no_json(text: str) -> None:
    with pytest.raises(ConfigError, match=r"startingOffsets is .*; write earliest, latest or JSON"):
        parse_offsets("startingOffsets", text)


@given(
    st.dictionaries(
        st.integers(0, 20), st.tuples(st.integers(0, 1000), st.integers(0, 1000)), min_size=1
    ),
    st.integers(1, 2000),
)
def test_limit_total_starves_nobody_and_hardly_exceeds_the_limit(
    partitions: dict[int, tuple[int, int]], records_max: int
) -> None:
    start = {("t", number): begin for number, (begin, _) in partitions.items()}
    latest = {("t", number): begin + size for number, (begin, size) in partitions.items()}
    limited = limit_total(start, latest, records_max)
    assert all(start[key] <= limited[key] <= latest[key] for key in latest)
    assert all(limited[key] > start[key] for key in latest if latest[key] > start[key])
    assert count_between(start, limited) <= records_max + len(partitions)


@given(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 40))
def test_split_covers_the_range_exactly(start: int, size: int, pieces: int) -> None:
    parts = split(OffsetRange("t", 0, start, start + size), pieces)
    assert len(parts) == min(pieces, size)
    assert parts[0].start == start
    assert parts[-1].end == start + size
    assert all(one.end == other.start for one, other in pairwise(parts))
    assert max(part.size for part in parts) - min(part.size for part in parts) <= 1


def test_plan_tasks_leaves_out_what_is_empty_and_splits_what_is_large() -> None:
    ranges = [OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 5, 5), OffsetRange("t", 2, 0, 100)]
    assert plan_tasks(ranges) == [ranges[0], ranges[2]]
    planned = plan_tasks(ranges, 10)
    assert len(planned) == 10
    assert sum(it.size for it in planned) == 1000


def test_offsets_of_a_stream_have_the_ids_of_their_topics() -> None:
    offsets = {"a": {"0": 5}, "b": {"0": 7}}
    nested = with_topic_ids(offsets, {"a": UUID(int=1), "b": None, "c": UUID(int=2)})
    assert from_json(nested) == {("a", 0): 5, ("b", 0): 7}
    assert topic_ids_in(nested) == {"a": UUID(int=1)}
    assert topic_ids_in(offsets) == {}
    assert with_topic_ids(offsets, {}) == offsets


def test_end_of_the_queries_is_kept_beside_the_offsets() -> None:
    offsets = {("topic", 0): 5}
    assert with_queries_end(to_json(offsets), None) == to_json(offsets)
    end = QueriesEnd(12, UUID(int=1))
    planned = with_queries_end(to_json(offsets), end)
    assert planned == {"topic": {"0": 5}, "#queries": {"end": 12, "id": str(UUID(int=1))}}
    assert (queries_end(planned), queries_end(to_json(offsets))) == (end, None)
    older = with_queries_end(to_json(offsets), QueriesEnd(12))
    assert older == {"topic": {"0": 5}, "#queries": {"end": 12}}
    assert queries_end(older) == QueriesEnd(12)
    assert from_json(planned) == offsets
