"""Group settings: the coordinator's limits, and settings per group (`GroupConfig`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from millstream.config.setting import (
    INT_MAX,
    Mode,
    boolean,
    double,
    integer,
    long,
    short,
    string,
    strings,
)
from millstream.errors import ConfigError

EARLIEST_TIMESTAMP = -2  # as ListOffsets names them
LATEST_TIMESTAMP = -1

_MIGRATION_POLICIES = ("disabled", "downgrade", "upgrade", "bidirectional")
_DYNAMIC = Mode.CLUSTER_WIDE


@dataclass(frozen=True, init=False, repr=False, eq=False)
class GroupSettings:
    """Classic and consumer groups, and their offsets."""

    # The classic protocol

    group_initial_rebalance_delay_ms: int = integer(
        3_000, doc="How long a new group waits for more members before its first rebalance."
    )
    group_min_session_timeout_ms: int = integer(
        6_000, doc="The minimum session timeout of a member."
    )
    group_max_session_timeout_ms: int = integer(
        1_800_000, doc="The maximum session timeout of a member."
    )
    group_max_size: int = integer(INT_MAX, low=1, doc="Members of one group.")
    group_coordinator_rebalance_protocols: tuple[str, ...] = strings(
        ("classic", "consumer"),
        options=("consumer", "classic", "share", "streams"),
        doc="The supported group protocols. (Kafka's default includes streams, which Millstream "
        "does not support; the feature share.version enables share groups.)",
    )

    # The consumer protocol (KIP-848)

    group_consumer_session_timeout_ms: int = integer(
        45_000,
        low=1,
        doc="A member that sends no heartbeat for this long is removed from the group.",
    )
    group_consumer_min_session_timeout_ms: int = integer(
        45_000, low=1, doc="The minimum for consumer.session.timeout.ms."
    )
    group_consumer_max_session_timeout_ms: int = integer(
        60_000, low=1, doc="The maximum for consumer.session.timeout.ms."
    )
    group_consumer_heartbeat_interval_ms: int = integer(
        5_000, low=1, doc="Heartbeat interval of members."
    )
    group_consumer_min_heartbeat_interval_ms: int = integer(
        5_000, low=1, doc="The minimum for consumer.heartbeat.interval.ms."
    )
    group_consumer_max_heartbeat_interval_ms: int = integer(
        15_000, low=1, doc="The maximum for consumer.heartbeat.interval.ms."
    )
    group_consumer_assignment_interval_ms: int = integer(
        1_000, low=0, mode=_DYNAMIC, doc="The minimum time between two assignments of a group."
    )
    group_consumer_min_assignment_interval_ms: int = integer(
        0, low=0, doc="The minimum for consumer.assignment.interval.ms."
    )
    group_consumer_max_assignment_interval_ms: int = integer(
        15_000, low=0, doc="The maximum for consumer.assignment.interval.ms."
    )
    group_consumer_max_size: int = integer(INT_MAX, low=1, doc="Members of one consumer group.")
    group_consumer_assignors: tuple[str, ...] = strings(
        ("uniform", "range"), doc="The server's assignors; the first is the default."
    )
    group_consumer_migration_policy: str = string(
        "bidirectional",
        options=_MIGRATION_POLICIES,
        doc="Whether a group with members can switch to the other protocol.",
    )
    group_consumer_regex_refresh_interval_ms: int = integer(
        600_000, low=10_000, internal=True, doc="How often regular expressions are resolved again."
    )

    # Committed offsets

    offsets_topic_num_partitions: int = integer(
        50, low=1, importance="high", doc="Partitions of __consumer_offsets; never change it later."
    )
    offsets_topic_replication_factor: int = short(
        1,
        low=1,
        importance="high",
        doc="Replicas of __consumer_offsets. (Kafka: 3, which is impossible with one broker.)",
    )
    offsets_topic_segment_bytes: int = integer(
        104_857_600, low=1, importance="high", doc="segment.bytes of __consumer_offsets."
    )
    offsets_topic_compression_codec: int = integer(
        0, importance="high", doc="Compression of __consumer_offsets' batches; 0 is none."
    )
    offsets_retention_minutes: int = integer(
        10_080,
        low=1,
        importance="high",
        doc="Offsets of an empty group are dropped after this time.",
    )
    offsets_retention_check_interval_ms: int = long(
        600_000, low=1, importance="high", doc="How often expired offsets are looked for."
    )
    offsets_commit_timeout_ms: int = integer(
        5_000, low=1, importance="high", doc="How long a commit may take to become durable."
    )
    offset_metadata_max_bytes: int = integer(
        4_096, importance="high", doc="The maximum size of the metadata stored with an offset."
    )
    offsets_load_buffer_size: int = integer(
        5_242_880, low=1, importance="high", doc="Bytes read at once when offsets are loaded."
    )
    millstream_lag_retention_warning_ratio: float = double(
        0.8,
        low=0,
        high=1,
        ours=True,
        mode=_DYNAMIC,
        doc="Warn when a group's oldest unread record has used up this fraction of the retention "
        "(time or bytes); 1: warn only when records are lost.",
    )


@dataclass(frozen=True, init=False, repr=False, eq=False)
class ShareGroupSettings:
    """Share groups (KIP-932)."""

    group_share_session_timeout_ms: int = integer(
        45_000,
        low=1,
        doc="A member of a share group that sends no heartbeat for this long is removed.",
    )
    group_share_min_session_timeout_ms: int = integer(
        45_000, low=1, doc="The minimum for share.session.timeout.ms."
    )
    group_share_max_session_timeout_ms: int = integer(
        60_000, low=1, doc="The maximum for share.session.timeout.ms."
    )
    group_share_heartbeat_interval_ms: int = integer(
        5_000, low=1, doc="Heartbeat interval of members of share groups."
    )
    group_share_min_heartbeat_interval_ms: int = integer(
        5_000, low=1, doc="The minimum for share.heartbeat.interval.ms."
    )
    group_share_max_heartbeat_interval_ms: int = integer(
        15_000, low=1, doc="The maximum for share.heartbeat.interval.ms."
    )
    group_share_assignment_interval_ms: int = integer(
        1_000,
        low=0,
        mode=_DYNAMIC,
        doc="The minimum time between two assignments of a share group.",
    )
    group_share_min_assignment_interval_ms: int = integer(
        0, low=0, doc="The minimum for share.assignment.interval.ms."
    )
    group_share_max_assignment_interval_ms: int = integer(
        15_000, low=0, doc="The maximum for share.assignment.interval.ms."
    )
    group_share_max_size: int = integer(200, low=1, high=1000, doc="Members of one share group.")
    group_share_assignors: tuple[str, ...] = strings(
        ("simple",), doc="The server's assignor for share groups."
    )
    group_share_delivery_count_limit: int = integer(
        5, low=2, high=10, doc="Maximum number of deliveries of a record."
    )
    group_share_min_delivery_count_limit: int = integer(
        2, low=2, high=5, doc="The minimum for share.delivery.count.limit."
    )
    group_share_max_delivery_count_limit: int = integer(
        10, low=5, high=25, doc="The maximum for share.delivery.count.limit."
    )
    group_share_record_lock_duration_ms: int = integer(
        30_000, low=1_000, high=3_600_000, doc="How long a delivered record is locked."
    )
    group_share_min_record_lock_duration_ms: int = integer(
        15_000, low=1_000, high=30_000, doc="The minimum lock duration."
    )
    group_share_max_record_lock_duration_ms: int = integer(
        60_000, low=30_000, high=3_600_000, doc="The maximum lock duration."
    )
    group_share_partition_max_record_locks: int = integer(
        2_000, low=100, high=10_000, doc="Records locked at once in one partition."
    )
    group_share_min_partition_max_record_locks: int = integer(
        100,
        low=100,
        high=2_000,
        doc="The minimum for share.partition.max.record.locks.",
    )
    group_share_max_partition_max_record_locks: int = integer(
        4_000,
        low=2_000,
        high=10_000,
        doc="The maximum for share.partition.max.record.locks.",
    )
    group_share_initialize_retry_interval_ms: int = integer(
        30_000,
        low=1,
        internal=True,
        doc="How long the state of a share partition may take to be initialized before a heartbeat "
        "asks for it again.",
    )
    group_share_max_share_sessions: int = integer(2_000, low=1, doc="Share sessions kept at once.")
    share_coordinator_state_topic_num_partitions: int = integer(
        50,
        low=1,
        importance="high",
        doc="Partitions of __share_group_state; never change it later.",
    )
    share_coordinator_state_topic_replication_factor: int = short(
        1,
        low=1,
        importance="high",
        doc="Replicas of __share_group_state. (Kafka: 3, which is impossible with one broker.)",
    )
    share_coordinator_state_topic_min_isr: int = short(
        1, low=1, importance="high", doc="min.insync.replicas of __share_group_state (Kafka: 2)."
    )
    share_coordinator_state_topic_segment_bytes: int = integer(
        104_857_600, low=1, importance="high", doc="segment.bytes of __share_group_state."
    )
    share_coordinator_snapshot_update_records_per_snapshot: int = integer(
        500,
        low=0,
        high=500,
        doc="Updates of a share partition's state between two snapshots of it.",
    )

    # Dead letters (KIP-1191, Kafka 4.4)

    errors_deadletterqueue_auto_create_topics_enable: bool = boolean(
        False,
        ours=True,
        mode=_DYNAMIC,
        doc="Whether a share group's dead-letter topic is created with the first dead letter if "
        "it does not exist (KIP-1191, Kafka 4.4). It then has errors.deadletterqueue.group.enable "
        "set.",
    )
    errors_deadletterqueue_topic_name_prefix: str = string(
        "dlq.",
        ours=True,
        mode=_DYNAMIC,
        doc="Required prefix of dead-letter topics (KIP-1191, Kafka 4.4); empty: any name.",
    )
    millstream_deadletterqueue_max_records_per_second: int = integer(
        1_000,
        low=0,
        ours=True,
        mode=_DYNAMIC,
        doc="Dead letters that one share group may write per second, averaged over ten seconds. "
        "Beyond that, dead letters are written at this rate, which slows the group down, and a "
        "warning is logged. Nothing is lost. 0: no limit.",
    )


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of one group; the rest comes from the broker's settings."""

    consumer_assignment_interval_ms: int = integer(
        1_000,
        low=0,
        synonyms=("group.consumer.assignment.interval.ms",),
        doc="The minimum time between two assignments of this group.",
    )
    consumer_heartbeat_interval_ms: int = integer(
        5_000,
        low=1,
        synonyms=("group.consumer.heartbeat.interval.ms",),
        doc="How often this group's members send a heartbeat.",
    )
    consumer_session_timeout_ms: int = integer(
        45_000,
        low=1,
        synonyms=("group.consumer.session.timeout.ms",),
        doc="A member of this group that sends no heartbeat for this long is removed.",
    )
    share_assignment_interval_ms: int = integer(
        1_000,
        low=0,
        synonyms=("group.share.assignment.interval.ms",),
        doc="The minimum time between two assignments of this share group.",
    )
    share_auto_offset_reset: str = string(
        "latest", doc="Where a share group starts: latest, earliest, or by_duration:<ISO 8601>."
    )
    share_delivery_count_limit: int = integer(
        5,
        low=2,
        synonyms=("group.share.delivery.count.limit",),
        doc="Maximum number of deliveries of a record.",
    )
    share_heartbeat_interval_ms: int = integer(
        5_000,
        low=1,
        synonyms=("group.share.heartbeat.interval.ms",),
        doc="How often this share group's members send a heartbeat.",
    )
    share_isolation_level: str = string(
        "read_uncommitted",
        options=("read_committed", "read_uncommitted"),
        doc="Whether a share group sees records of open and aborted transactions.",
    )
    share_partition_max_record_locks: int = integer(
        2_000,
        low=100,
        synonyms=("group.share.partition.max.record.locks",),
        doc="Records locked at once in one partition.",
    )
    share_record_lock_duration_ms: int = integer(
        30_000,
        low=1_000,
        synonyms=("group.share.record.lock.duration.ms",),
        doc="How long a delivered record is locked.",
    )
    share_renew_acknowledge_enable: bool = boolean(
        True, doc="Whether members may renew the lock of a record."
    )
    share_session_timeout_ms: int = integer(
        45_000,
        low=1,
        synonyms=("group.share.session.timeout.ms",),
        doc="A member of this share group that sends no heartbeat for this long is removed.",
    )
    # Dead letters (KIP-1191, Kafka 4.4)
    errors_deadletterqueue_topic_name: str = string(
        "",
        ours=True,
        doc="The topic for records that this share group rejects or cannot process within its "
        "delivery limit (KIP-1191, Kafka 4.4); empty: such records are dropped. The "
        "name must begin with the broker's errors.deadletterqueue.topic.name.prefix, and the topic "
        "must have errors.deadletterqueue.group.enable.",
    )
    errors_deadletterqueue_copy_record_enable: bool = boolean(
        False,
        ours=True,
        doc="Whether a dead letter has the key, the value and the headers of its record, or only "
        "headers with the position of the record and the reason (KIP-1191, Kafka 4.4). With true "
        "(recommended), a dead letter can be replayed after the record has expired.",
    )
    # Delayed retry, ours
    share_retry_backoff_ms: int = integer(
        0,
        low=0,
        high=86_400_000,
        ours=True,
        doc="How long a record that was released, or whose lock expired, waits before its second "
        "delivery. The delay grows with every delivery: see share.retry.backoff.multiplier. 0: "
        "redeliver at once, as Kafka does.",
    )
    share_retry_backoff_max_ms: int = integer(
        60_000,
        low=1,
        high=86_400_000,
        ours=True,
        doc="The maximum delay before a redelivery.",
    )
    share_retry_backoff_multiplier: float = double(
        2.0,
        low=1,
        high=100,
        ours=True,
        doc="Factor by which the delay grows with every delivery; 1: constant.",
    )
    share_retry_max_delayed_records: int = integer(
        10_000,
        low=1,
        high=25_000,
        ours=True,
        doc="Maximum number of delayed records per partition. A record released beyond this limit "
        "is redelivered at once, and a warning is logged.",
    )


_DURATION = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.IGNORECASE,
)
_UNIT_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def share_reset_timestamp_ms(strategy: str, now_ms: int) -> int:
    """The start of share.auto.offset.reset: a time, or `EARLIEST_` or `LATEST_TIMESTAMP`.

    Raises `ConfigError` for any other text.
    """
    if strategy == "earliest":
        return EARLIEST_TIMESTAMP
    if strategy == "latest":
        return LATEST_TIMESTAMP
    name, _, duration = strategy.partition(":")
    match = _DURATION.fullmatch(duration)
    if name == "by_duration" and match and any(match.groupdict().values()):
        spans = match.groupdict(default="0")
        return now_ms - round(sum(float(spans[unit]) * size for unit, size in _UNIT_MS.items()))
    raise ConfigError(
        f"Invalid value `{strategy}` for configuration share.auto.offset.reset. The value must be "
        "either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'."
    )
