"""What the console measures of a cluster at one moment, and what two moments tell: rates, values
for the history. Pure; `sampler` takes the samples.

    records   per second, from the ends of logs
    bytes     per second, from the growth of leaders' logs; what retention deletes does not count
    size      bytes of all replicas on disk; of a topic, of its leaders
    lag       records that groups have not read
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field

from millstream.admin.cluster_state import ClusterState
from millstream.admin.lag import WARN_BELOW_SHARE, GroupLag
from millstream.admin.log_dirs import DirectoryState, ReplicaState
from millstream.admin.numbers import decimal
from millstream.console.history import Key
from millstream.models import dataclass
from millstream.partitions import DEAD_LETTER_PREFIX, TopicPartition

RECORDS, BYTES, SIZE, LAG = "records", "bytes", "size", "lag"
WHOLE = ""  # of the whole cluster
DEAD_LETTER_SETTING = "errors.deadletterqueue.group.enable"
RETENTION, CLEANUP = "retention.ms", "cleanup.policy"
SETTINGS = (RETENTION, CLEANUP, DEAD_LETTER_SETTING)
RISK_SHARE = WARN_BELOW_SHARE  # unread records with less than this left are at risk


@dataclass(frozen=True)
class AtRisk:
    """Unread records of a group that retention deletes soon."""

    group: str
    topic: str
    partition: int
    unread: int
    expires_ms: int | None  # when the oldest unread record may be deleted, since 1970


@dataclass(frozen=True)
class Sample:
    """One moment. What the user may not see is missing; `problems` say so."""

    time_ms: int
    state: ClusterState
    starts: Mapping[TopicPartition, int] = field(repr=False)
    ends: Mapping[TopicPartition, int] = field(repr=False)
    directories: tuple[DirectoryState, ...] = ()
    sizes: Mapping[TopicPartition, int] = field(default_factory=dict, repr=False)  # of leaders
    total_bytes: int | None = None  # of all replicas
    groups: tuple[GroupLag, ...] = ()
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict, repr=False)
    at_risk: tuple[AtRisk, ...] = ()
    problems: tuple[str, ...] = ()
    took_seconds: float = 0.0

    def records_of(self, topic: str) -> int | None:
        """How many records a topic holds: offsets from its start to its end."""
        known = self.state.topics.get(topic)
        if known is None:
            return None
        places = [(topic, it.index) for it in known.partitions]
        # The two come from two requests: a leader may have answered one of them only.
        known_places = [it for it in places if it in self.starts and it in self.ends]
        found = [self.ends[it] - self.starts[it] for it in known_places]
        return sum(found) if found else None

    def bytes_of(self, topic: str) -> int | None:
        """The size of a topic's leaders."""
        known = self.state.topics.get(topic)
        if known is None or not self.sizes:
            return None
        return sum(self.sizes.get((topic, it.index), 0) for it in known.partitions)

    @property
    def lag(self) -> int | None:
        known = [it.lag for it in self.groups if it.lag is not None]
        return sum(known) if known else None

    @property
    def dead_letter_topics(self) -> list[str]:
        return [name for name in self.state.topics if self.is_dead_letter_topic(name)]

    def is_dead_letter_topic(self, name: str) -> bool:
        own = self.settings.get(name, {})
        return name.startswith(DEAD_LETTER_PREFIX) or own.get(DEAD_LETTER_SETTING) == "true"

    @property
    def dead_letters(self) -> int:
        return sum(self.records_of(name) or 0 for name in self.dead_letter_topics)

    def retention_ms(self, topic: str) -> int | None:
        """None if the topic does not delete by age, or if that is not known."""
        own = self.settings.get(topic, {})
        return decimal(own.get(RETENTION)) if "delete" in own.get(CLEANUP, "") else None


def leader_sizes(
    state: ClusterState, replicas: Iterable[ReplicaState]
) -> dict[TopicPartition, int]:
    """The sizes of the leaders' logs."""
    leaders = state.leaders
    return {
        (it.topic, it.partition): it.bytes
        for it in replicas
        if leaders.get((it.topic, it.partition)) == it.broker
    }


def rates(before: Sample, after: Sample) -> dict[Key, float]:
    """Rates between two samples, of the cluster and of each topic. A topic that was recreated in
    between has none."""
    seconds = (after.time_ms - before.time_ms) / 1000
    if seconds <= 0:
        return {}
    found: dict[Key, float] = {(RECORDS, WHOLE): 0.0}
    if before.sizes and after.sizes:
        found[BYTES, WHOLE] = 0.0
    for name, topic in after.state.topics.items():
        earlier = before.state.topics.get(name)
        if earlier is None or earlier.id != topic.id:
            continue
        places = [(name, it.index) for it in topic.partitions]
        records = _growth(before.ends, after.ends, places) / seconds
        found[RECORDS, name] = records
        found[RECORDS, WHOLE] += records
        if (BYTES, WHOLE) in found:
            grown = _growth(before.sizes, after.sizes, places) / seconds
            found[BYTES, name] = grown
            found[BYTES, WHOLE] += grown
    return found


def _growth(
    before: Mapping[TopicPartition, int],
    after: Mapping[TopicPartition, int],
    places: Iterable[TopicPartition],
) -> int:
    """What was added; a partition that shrank, or whose leader did not answer, counts nothing."""
    return sum(
        max(0, after[place] - before.get(place, after[place])) for place in places if place in after
    )


def values(before: Sample | None, after: Sample) -> dict[Key, float]:
    """What goes into the history with a sample."""
    found: dict[Key, float] = {} if before is None else dict(rates(before, after))
    if after.total_bytes is not None:
        found[SIZE, WHOLE] = after.total_bytes
    for name in after.state.topics:
        size = after.bytes_of(name)
        if size is not None:
            found[SIZE, name] = size
    if after.lag is not None:
        found[LAG, WHOLE] = after.lag
    # A group may have the empty id, which is the key of the whole cluster.
    named = [it for it in after.groups if it.group != WHOLE]
    found |= {(LAG, it.group): float(it.lag) for it in named if it.lag is not None}
    return found
