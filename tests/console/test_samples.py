"""Rates and values from samples, and what a sample tells of topics."""

from __future__ import annotations

from dataclasses import replace

from millstream.admin.cluster_state import ClusterState, PartitionState, TopicState
from millstream.admin.lag import GroupLag
from millstream.admin.log_dirs import ReplicaState
from millstream.console.samples import Sample, leader_sizes, rates, values


def topic(name: str, partitions: int = 1, topic_id: str = "id") -> TopicState:
    made = [PartitionState(name, index, 1, 0, (1, 2), (1, 2)) for index in range(partitions)]
    return TopicState(name, topic_id, False, tuple(made))


def group(name: str, lag: int | None) -> GroupLag:
    return GroupLag(name, "consumer", "stable", "consumer", 1, lag, 0, 1, ("orders",))


def sample(
    time_ms: int,
    ends: dict[tuple[str, int], int],
    *,
    sizes: dict[tuple[str, int], int] | None = None,
    topic_id: str = "id",
) -> Sample:
    names = sorted({name for name, _ in ends})
    topics = {
        name: topic(name, sum(it == name for it, _ in ends), topic_id=topic_id) for name in names
    }
    state = ClusterState("c", 1, (), topics)
    starts = dict.fromkeys(ends, 0)
    return Sample(time_ms, state, starts, ends, sizes=sizes or {})


def test_rates_are_sums_of_what_was_added_by_second() -> None:
    before = sample(1000, {("a", 0): 10, ("a", 1): 0, ("b", 0): 5}, sizes={("a", 0): 100})
    after = sample(3000, {("a", 0): 30, ("a", 1): 2, ("b", 0): 5}, sizes={("a", 0): 400})
    found = rates(before, after)
    assert found["records", "a"] == 11.0
    assert found["records", "b"] == 0.0
    assert found["records", ""] == 11.0
    assert (found["bytes", "a"], found["bytes", ""]) == (150.0, 150.0)


def test_rates_ignore_recreated_topics_new_partitions_and_shrinking_logs() -> None:
    before = sample(0, {("a", 0): 1000}, sizes={("a", 0): 900})
    again = sample(1000, {("a", 0): 3}, sizes={("a", 0): 3}, topic_id="another")
    assert ("records", "a") not in rates(before, again)
    grown = sample(1000, {("a", 0): 1010, ("a", 1): 500}, sizes={("a", 0): 100, ("a", 1): 7})
    assert rates(before, grown)["records", "a"] == 10.0
    assert rates(before, grown)["bytes", "a"] == 0.0


def test_clock_that_stands_still_has_no_rates() -> None:
    one = sample(0, {("a", 0): 1})
    assert rates(one, one) == {}


def test_values_have_rates_sizes_and_lags() -> None:
    before = sample(0, {("a", 0): 0})
    after = replace(
        sample(1000, {("a", 0): 4}, sizes={("a", 0): 70}),
        groups=(group("g", 3), group("unknown", None)),
        total_bytes=140,
    )
    found = values(before, after)
    assert found["records", "a"] == 4.0
    assert (found["size", ""], found["size", "a"]) == (140, 70)
    assert (found["lag", ""], found["lag", "g"]) == (3, 3)
    assert ("lag", "unknown") not in found
    assert ("records", "") not in values(None, after)


def test_topics_have_records_and_sizes_if_their_leaders_answered() -> None:
    one = sample(0, {("a", 0): 5, ("a", 1): 7}, sizes={("a", 0): 10, ("a", 1): 20})
    assert (one.records_of("a"), one.bytes_of("a")) == (12, 30)
    assert (one.records_of("missing"), one.bytes_of("missing")) == (None, None)
    silent = replace(one, ends={}, sizes={})
    assert (silent.records_of("a"), silent.bytes_of("a"), silent.lag) == (None, None, None)


def test_dead_letter_topics_are_found_by_setting_and_name() -> None:
    settings = {
        "failed": {"errors.deadletterqueue.group.enable": "true"},
        "dlq.x": {},
        "orders": {"errors.deadletterqueue.group.enable": "false"},
    }
    one = replace(
        sample(0, {("failed", 0): 2, ("dlq.x", 0): 3, ("orders", 0): 50}), settings=settings
    )
    assert sorted(one.dead_letter_topics) == ["dlq.x", "failed"]
    assert one.dead_letters == 5


def test_retention_is_known_of_topics_that_delete_by_age() -> None:
    settings = {
        "a": {"retention.ms": "1000", "cleanup.policy": "delete"},
        "b": {"retention.ms": "1000", "cleanup.policy": "compact"},
        "c": {"retention.ms": "-1", "cleanup.policy": "delete"},
    }
    one = replace(sample(0, {("a", 0): 1}), settings=settings)
    assert [one.retention_ms(it) for it in ("a", "b", "c", "d")] == [1000, None, None, None]


def test_sizes_are_those_of_leaders() -> None:
    state = ClusterState("c", 1, (), {"a": topic("a")})
    replicas = [ReplicaState("a", 0, 1, "/x", 10), ReplicaState("a", 0, 2, "/x", 99)]
    assert leader_sizes(state, replicas) == {("a", 0): 10}


def test_leader_that_answered_half_is_left_out() -> None:
    whole = sample(0, {("a", 0): 5, ("a", 1): 7})
    assert replace(whole, starts={("a", 0): 1}).records_of("a") == 4
    assert replace(whole, starts={}).records_of("a") is None


def test_group_without_a_name_is_not_the_cluster() -> None:
    one = replace(sample(0, {("a", 0): 1}), groups=(group("", 5), group("g", 2)))
    assert values(None, one)["lag", ""] == 7
