"""The group as it will be: members put and removed, and the fingerprint of its topics."""

from __future__ import annotations

from millstream.coordination.groups.consumer_member import ConsumerMember, Subscription
from millstream.coordination.groups.consumer_prospect import Prospect, metadata_hash
from tests.coordination.groups.consumer_harness import FakeTopics, Member, ShardDriver


def test_prospect_differs_while_the_group_stays_as_it_is() -> None:
    driver = ShardDriver(FakeTopics(foo=2, bar=1))
    Member(driver, "a", "foo").join()
    Member(driver, "b", "foo", instance_id="i").join()
    group = driver.group()
    before = dict(group.subscriptions)
    prospect = Prospect(group)
    bar = Subscription(frozenset({"bar"}))
    prospect.put(ConsumerMember("b2", instance_id="i", subscription=bar))
    assert {member.member_id for member in prospect.members()} == {"a", "b2"}
    assert prospect.subscriptions == {Subscription(frozenset({"foo"}), None): 1, bar: 1}
    prospect.remove(group.members["a"])
    assert [member.member_id for member in prospect.members()] == ["b2"]
    assert prospect.subscriptions == {bar: 1}
    assert group.subscriptions == before
    assert group.members.keys() == {"a", "b"}


def test_prospect_adds_what_expressions_resolved_to() -> None:
    driver = ShardDriver(FakeTopics(foo=2, bar=1))
    Member(driver, "a", "named", topic_regex="fo.").join()
    prospect = Prospect(driver.group())
    (subscription,) = prospect.subscriptions
    assert prospect.topic_names(subscription) == {"named", "foo"}
    assert prospect.topic_ids(subscription, driver.topics) == {driver.topics.topic_id("foo")}
    unresolved = Subscription(frozenset({"bar"}), "ba.")
    assert prospect.topic_names(unresolved) == {"bar"}


def test_metadata_hash_changes_with_what_matters_only() -> None:
    topics = FakeTopics(foo=2, bar=1)
    names = {"foo", "later"}
    first = metadata_hash(names, topics)
    topics.grow("bar", 9)
    assert metadata_hash(names, topics) == first
    seen = {first}
    topics.grow("foo", 3)
    seen.add(metadata_hash(names, topics))
    topics.create("later", 1)
    seen.add(metadata_hash(names, topics))
    topics.delete("foo")
    seen.add(metadata_hash(names, topics))
    topics.create("foo", 3)
    seen.add(metadata_hash(names, topics))
    assert len(seen) == 5, "a recreated topic of the same name and size is another"
    assert all(-(2**63) <= value < 2**63 for value in seen)


def test_metadata_hash_of_no_topic_is_zero() -> None:
    assert metadata_hash({"nowhere"}, FakeTopics()) == 0
