"""A topic's settings as the log uses them: typed, complete, immutable.

Field names are Kafka's setting names with underscores (`segment.bytes` -> `segment_bytes`), so the
mapping is mechanical. Times are milliseconds, sizes bytes; -1 means "no limit" where Kafka says so.
A setting that the topic does not set comes from the broker settings in its `synonyms`, in that
order.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.config.setting import (
    LONG_MAX,
    boolean,
    double,
    integer,
    long,
    string,
    strings,
)

COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
NO_CONDITION = "none"
VERSION_OF_KEY = "version"
OFFSET_OF_RECORD = "offset"
CONDITIONS = (NO_CONDITION, VERSION_OF_KEY, OFFSET_OF_RECORD)
CLEANUP_POLICIES = ("compact", "delete")
RETAIN, DROP, HOLD, REJECT = "retain", "drop", "hold", "reject"
BACKLOG_POLICIES = (RETAIN, DROP, HOLD, REJECT)
NO_BOUND = -1
AS_RETENTION = -2  # of local.retention.*: as retention.*

MINUTE_MS = 60_000
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class TopicConfig:
    """All of a topic's settings."""

    cleanup_policy: frozenset[str] = strings(
        frozenset({"delete"}),
        options=CLEANUP_POLICIES,
        synonyms=("log.cleanup.policy",),
        doc="How to clean up old segments: delete (retention), compact (keep the last record of "
        "each key), both, or neither.",
    )
    compression_type: str = string(
        "producer",
        options=COMPRESSION_TYPES,
        synonyms=("compression.type",),
        doc="How batches are stored: as the producer compressed them, or recompressed.",
    )
    compression_gzip_level: int = integer(
        -1,
        low=1,
        high=9,
        also=(-1,),
        synonyms=("compression.gzip.level",),
        doc="The gzip level when compression.type is gzip; -1 is gzip's own default.",
    )
    compression_lz4_level: int = integer(
        9,
        low=1,
        high=17,
        synonyms=("compression.lz4.level",),
        doc="The lz4 level when compression.type is lz4.",
    )
    compression_zstd_level: int = integer(
        3,
        low=-131072,
        high=22,
        synonyms=("compression.zstd.level",),
        doc="The zstd level when compression.type is zstd.",
    )
    delete_retention_ms: int = long(
        86_400_000,
        low=0,
        synonyms=("log.cleaner.delete.retention.ms",),
        doc="How long a tombstone is kept after compaction, so that consumers see the deletion.",
    )
    file_delete_delay_ms: int = long(
        60_000,
        low=0,
        synonyms=("log.segment.delete.delay.ms",),
        doc="How long a removed segment's file stays before it is deleted.",
    )
    flush_messages: int = long(
        LONG_MAX,
        low=1,
        synonyms=("log.flush.interval.messages",),
        doc="Flush after at most this many records, whatever the acks.",
    )
    flush_ms: int = long(
        LONG_MAX,
        low=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc="Flush after at most this time, whatever the acks.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = strings(
        (),
        doc="Replicas whose fetches are throttled until they are in sync (partition:broker, ..., "
        "or *); see follower.replication.throttled.rate.",
    )
    index_interval_bytes: int = integer(
        4096,
        low=0,
        synonyms=("log.index.interval.bytes",),
        doc="Bytes of log between two entries of the offset index.",
    )
    internal_segment_bytes: int | None = integer(
        None,
        low=1,
        internal=True,
        doc="A segment size below segment.bytes' minimum, for tests.",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = strings(
        (),
        doc="Replicas that, as leaders, throttle followers that are not in sync "
        "(partition:broker, ..., or *); see leader.replication.throttled.rate.",
    )
    local_retention_bytes: int = long(
        -2,
        low=-2,
        synonyms=("log.local.retention.bytes",),
        doc="Delete the oldest archived segments of a partition from the broker beyond this size; "
        "-2: as retention.bytes. Segments that are not archived yet stay.",
    )
    local_retention_ms: int = long(
        -2,
        low=-2,
        synonyms=("log.local.retention.ms",),
        doc="Delete archived segments from the broker whose newest record is older than this; -2: "
        "as retention.ms. Segments that are not archived yet stay.",
    )
    max_compaction_lag_ms: int = long(
        LONG_MAX,
        low=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc="A record is eligible for compaction after at most this time.",
    )
    max_message_bytes: int = integer(
        1_048_588,
        low=0,
        synonyms=("message.max.bytes",),
        doc="The largest record batch accepted, after compression.",
    )
    message_timestamp_after_max_ms: int = long(
        3_600_000,
        low=0,
        synonyms=("log.message.timestamp.after.max.ms",),
        doc="How far ahead of the broker's clock a record's timestamp may be.",
    )
    message_timestamp_before_max_ms: int = long(
        LONG_MAX,
        low=0,
        synonyms=("log.message.timestamp.before.max.ms",),
        doc="How far behind the broker's clock a record's timestamp may be.",
    )
    message_timestamp_type: str = string(
        "CreateTime",
        options=TIMESTAMP_TYPES,
        synonyms=("log.message.timestamp.type",),
        doc="Whether a record keeps its producer's timestamp or takes the time of its append.",
    )
    min_cleanable_dirty_ratio: float = double(
        0.5,
        low=0,
        high=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="The fraction of a log that must be uncompacted before it is cleaned.",
    )
    min_compaction_lag_ms: int = long(
        0,
        low=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="A record stays uncompacted at least this long.",
    )
    min_insync_replicas: int = integer(
        1,
        low=1,
        synonyms=("min.insync.replicas",),
        doc="acks=all is refused while fewer replicas than this are in sync.",
    )
    preallocate: bool = boolean(
        False,
        synonyms=("log.preallocate",),
        doc="Allocate a segment's file in full when it is created.",
    )
    remote_log_copy_disable: bool = boolean(
        False,
        doc="Archive nothing more. What is archived stays readable; retention.* apply to the "
        "segments on the broker.",
    )
    remote_log_delete_on_disable: bool = boolean(
        False,
        doc="Delete what is archived when remote.storage.enable is set to false, which is refused "
        "without this.",
    )
    remote_storage_enable: bool = boolean(
        False,
        doc="Archive closed segments as Parquet at the broker's millstream.archive.path. Consumers "
        "read archived records as all others; local.retention.* may then be short.",
    )
    retention_bytes: int = long(
        -1,
        synonyms=("log.retention.bytes",),
        doc="Delete the oldest segments of a partition beyond this size; -1: no limit.",
    )
    retention_ms: int = long(
        604_800_000,
        low=-1,
        synonyms=(
            "log.retention.ms",
            ("log.retention.minutes", MINUTE_MS),
            ("log.retention.hours", HOUR_MS),
        ),
        doc="Delete segments whose newest record is older than this; -1: never.",
    )
    segment_bytes: int = integer(
        1_073_741_824,
        low=1_048_576,
        synonyms=("log.segment.bytes",),
        doc="Start a new segment at this size.",
    )
    segment_index_bytes: int = integer(
        10_485_760,
        low=4,
        synonyms=("log.index.size.max.bytes",),
        doc="The largest size of a segment's offset index.",
    )
    segment_jitter_ms: int = long(
        0,
        low=0,
        synonyms=("log.roll.jitter.ms", ("log.roll.jitter.hours", HOUR_MS)),
        doc="A random time of up to this is subtracted from segment.ms, so that partitions do not "
        "all roll at once.",
    )
    segment_ms: int = long(
        604_800_000,
        low=1,
        synonyms=("log.roll.ms", ("log.roll.hours", HOUR_MS)),
        doc="Start a new segment after this time even if the old one is not full.",
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        synonyms=("unclean.leader.election.enable",),
        doc="Whether a replica that is not in sync may become leader, losing records.",
    )
    # Beyond Kafka 4.3's:
    errors_deadletterqueue_group_enable: bool = boolean(
        False,
        ours=True,
        doc="Whether share groups may use this topic for their dead letters (KIP-1191, Kafka "
        "4.4). Without it they are refused, so that ordinary topics do not fill up with dead "
        "letters.",
    )
    millstream_acks_all_flush: bool = boolean(
        True,
        ours=True,
        synonyms=("millstream.acks.all.flush",),
        doc="acks=all is answered only after the records are flushed to the disk.",
    )
    millstream_archive_keep_on_delete: bool = boolean(
        False,
        ours=True,
        doc="Keep the archive when the topic is deleted. Otherwise it is deleted too.",
    )
    millstream_archive_key_schema: str = string(
        "",
        ours=True,
        doc="What the keys are, so that the archive has them as columns: as in "
        "millstream.archive.schema, or string, for keys that are text.",
    )
    millstream_archive_schema: str = string(
        "",
        ours=True,
        doc="What the values are, so that the archive has their fields as columns: json with its "
        "columns (json: id bigint, customer string), or avro, with the schemas of the brokers' "
        "millstream.archive.schema.registry.url.",
    )
    millstream_backlog_bytes: int = long(
        NO_BOUND,
        low=1,
        also=(NO_BOUND,),
        ours=True,
        doc="Bytes of a partition that the slowest group of millstream.backlog.groups may have "
        "unread before millstream.backlog.policy applies; -1: no bound.",
    )
    millstream_backlog_group_idle_ms: int = long(
        600_000,
        low=0,
        ours=True,
        doc="A group without members that has committed nothing for this time no longer counts for "
        "millstream.backlog.policy, so that a forgotten group stops nobody.",
    )
    millstream_backlog_groups: tuple[str, ...] = strings(
        (),
        ours=True,
        doc="The groups that count for millstream.backlog.policy: names, or patterns in which * "
        "stands for any characters. Required for hold and reject; for drop, empty means all.",
    )
    millstream_backlog_ms: int = long(
        NO_BOUND,
        low=1,
        also=(NO_BOUND,),
        ours=True,
        doc="Age of the oldest record that the slowest group of millstream.backlog.groups has not "
        "read, by the record's timestamp, before millstream.backlog.policy applies; -1: no bound.",
    )
    millstream_backlog_policy: str = string(
        RETAIN,
        options=BACKLOG_POLICIES,
        ours=True,
        doc="What a slow group causes once its backlog reaches millstream.backlog.bytes or "
        "millstream.backlog.ms: nothing, as in Kafka (retain), the oldest records are deleted "
        "(drop), producers wait (hold), or producers get POLICY_VIOLATION (reject).",
    )
    millstream_conditional_append: str = string(
        NO_CONDITION,
        options=CONDITIONS,
        ours=True,
        doc="Append records only under a condition: that the header millstream-version is the next "
        "version of the record's key (version), or that the header millstream-offset is the offset "
        "that the record will get (offset). Otherwise the batch is refused with POLICY_VIOLATION.",
    )
    millstream_excised_offsets: tuple[str, ...] = strings(
        (),
        ours=True,
        doc="Offsets whose records every replica removes from its log, with the last leader epoch "
        "of the records (0:5+17-19@7,3:88@2), and removes again if they come back from a backup. "
        "`millstream excise` adds to them.",
    )
    millstream_verify_compressed: bool = boolean(
        False,
        ours=True,
        synonyms=("millstream.verify.compressed",),
        doc="Decompress every compressed batch on arrival and check its records.",
    )

    @property
    def is_archived(self) -> bool:
        """Whether segments must be archived before they are deleted or compacted."""
        return self.remote_storage_enable and not self.remote_log_copy_disable

    @property
    def local_bytes_max(self) -> int:
        """Of the segments on the broker; -1: no limit."""
        if not self.is_archived or self.local_retention_bytes == AS_RETENTION:
            return self.retention_bytes
        return self.local_retention_bytes

    @property
    def local_ms_max(self) -> int:
        if not self.is_archived or self.local_retention_ms == AS_RETENTION:
            return self.retention_ms
        return self.local_retention_ms

    @property
    def compact(self) -> bool:
        return "compact" in self.cleanup_policy

    @property
    def delete(self) -> bool:
        return "delete" in self.cleanup_policy
