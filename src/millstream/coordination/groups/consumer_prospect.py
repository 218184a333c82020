"""A consumer group as it will be, once the records of the event at hand have been replayed.

Decisions must not change the group, yet the later steps of one event (the metadata's hash, the
target assignment) depend on the earlier ones (a member joined, an expression was resolved). A
`Prospect` holds just the differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from uuid import UUID

from millstream.coordination.groups.consumer import ConsumerGroup
from millstream.coordination.groups.consumer_member import ConsumerMember, Subscription
from millstream.coordination.groups.group import Topics
from millstream.coordination.groups.regex import ResolvedRegex


class Prospect:
    """Begins as the group is. What it shares with the group is copied when it first differs."""

    def __init__(self, group: ConsumerGroup) -> None:
        self.group = group
        self.epoch = group.epoch
        self.subscriptions = group.subscriptions
        self.resolved: Mapping[str, ResolvedRegex] = group.resolved
        self._changed: dict[str, ConsumerMember | None] = {}

    def put(self, member: ConsumerMember) -> None:
        """The member joins or changes; a static one takes the place of its predecessor."""
        predecessor = self.group.static_member(member.instance_id)
        before = predecessor or self.group.members.get(member.member_id)
        if before is not None:
            self.remove(before)
        self._count(member.subscription, 1)
        self._changed[member.member_id] = member

    def remove(self, member: ConsumerMember) -> None:
        self._count(member.subscription, -1)
        self._changed[member.member_id] = None

    def _count(self, subscription: Subscription, change: int) -> None:
        if self.subscriptions is self.group.subscriptions:
            self.subscriptions = Counter(self.group.subscriptions)
        self.subscriptions[subscription] += change
        if not self.subscriptions[subscription]:
            del self.subscriptions[subscription]

    def members(self) -> Iterator[ConsumerMember]:
        for member_id, member in self.group.members.items():
            if member_id not in self._changed:
                yield member
        for changed in self._changed.values():
            if changed is not None:
                yield changed

    def regexes(self) -> set[str]:
        """The expressions that members subscribe to."""
        return {s.regex for s in self.subscriptions if s.regex}

    def topic_names(self, subscription: Subscription) -> frozenset[str]:
        """What a subscription comes to; an expression not resolved yet matches nothing."""
        resolved = self.resolved.get(subscription.regex or "")
        return subscription.names if resolved is None else subscription.names | resolved.topics

    def topic_ids(self, subscription: Subscription, topics: Topics) -> frozenset[UUID]:
        """The subscribed topics that exist."""
        ids = map(topics.topic_id, self.topic_names(subscription))
        return frozenset(topic_id for topic_id in ids if topic_id is not None)

    def metadata_hash(self, topics: Topics) -> int:
        names = (self.topic_names(subscription) for subscription in self.subscriptions)
        return metadata_hash(frozenset().union(*names), topics)


def metadata_hash(names: Iterable[str], topics: Topics) -> int:
    """A fingerprint of what the assignment depends on: which topics exist, and how big they are.

    It is kept with the group epoch (KIP-1101): a broker that loads the group can tell whether
    topics changed meanwhile. Apache Kafka uses another function; on a group of ours it sees a
    difference, and bumps the epoch once. Zero, as in Kafka, when there is no topic.
    """
    digest = blake2b(digest_size=8)
    found = False
    for name in sorted(names):
        topic_id = topics.topic_id(name)
        if topic_id is not None:
            found = True
            count = topics.partition_count(topic_id) or 0
            digest.update(b"%b%b\0%d;" % (topic_id.bytes, name.encode(), count))
    return int.from_bytes(digest.digest(), "big", signed=True) if found else 0
