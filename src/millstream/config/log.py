"""The logs: where they are, how topics are shaped by default, retention, flushing, cleaning.

The `log.*` families are what topics inherit (`config/topic.py` names them as synonyms), so most of
them may change at run time.
"""

from __future__ import annotations

from dataclasses import dataclass

from millstream.config.setting import (
    LONG_MAX,
    Mode,
    boolean,
    double,
    integer,
    long,
    string,
    strings,
)
from millstream.config.topic import CLEANUP_POLICIES, COMPRESSION_TYPES, TIMESTAMP_TYPES

_DYNAMIC = Mode.CLUSTER_WIDE
_DOUBLE_MAX = 1.7976931348623157e308


@dataclass(frozen=True, init=False, repr=False, eq=False)
class LogSettings:
    """Directories, and what topics inherit."""

    log_dir: tuple[str, ...] = strings(
        ("millstream-data",), importance="high", doc="The data directory, if log.dirs is not set."
    )
    log_dirs: tuple[str, ...] | None = strings(
        None,
        importance="high",
        doc="Directories of the data, separated by commas; a new partition goes to the one "
        "with the fewest.",
    )
    metadata_log_max_record_bytes_between_snapshots: int = long(
        20_971_520,
        low=1,
        importance="high",
        doc="The metadata log is replaced by a snapshot after this many bytes.",
    )
    num_partitions: int = integer(
        1, low=1, doc="Partitions of a topic created without a number of partitions."
    )
    default_replication_factor: int = integer(
        1, doc="Replicas of a topic created without a replication factor."
    )
    num_recovery_threads_per_data_dir: int = integer(
        2, low=1, importance="high", mode=_DYNAMIC, doc="Threads that recover each data directory."
    )
    log_retention_ms: int | None = long(
        None, importance="high", mode=_DYNAMIC, doc="Default of retention.ms; before the two below."
    )
    log_retention_minutes: int | None = integer(
        None, importance="high", doc="As log.retention.ms, in minutes."
    )
    log_retention_hours: int = integer(168, importance="high", doc="As log.retention.ms, in hours.")
    log_retention_bytes: int = long(
        -1, importance="high", mode=_DYNAMIC, doc="Default of retention.bytes."
    )
    log_retention_check_interval_ms: int = long(
        300_000, low=1, doc="How often retention looks for segments to delete."
    )
    log_segment_bytes: int = integer(
        1_073_741_824,
        low=1_048_576,
        importance="high",
        mode=_DYNAMIC,
        doc="Default of segment.bytes.",
    )
    log_segment_delete_delay_ms: int = long(
        60_000, low=0, importance="high", mode=_DYNAMIC, doc="Default of file.delete.delay.ms."
    )
    log_roll_ms: int | None = long(
        None, importance="high", mode=_DYNAMIC, doc="Default of segment.ms; before log.roll.hours."
    )
    log_roll_hours: int = integer(168, low=1, importance="high", doc="As log.roll.ms, in hours.")
    log_roll_jitter_ms: int | None = long(
        None, importance="high", mode=_DYNAMIC, doc="Default of segment.jitter.ms."
    )
    log_roll_jitter_hours: int = integer(
        0, low=0, importance="high", doc="As log.roll.jitter.ms, in hours."
    )
    log_index_interval_bytes: int = integer(
        4096, low=0, mode=_DYNAMIC, doc="Default of index.interval.bytes."
    )
    log_index_size_max_bytes: int = integer(
        10_485_760, low=4, mode=_DYNAMIC, doc="Default of segment.index.bytes."
    )
    log_preallocate: bool = boolean(False, mode=_DYNAMIC, doc="Default of preallocate.")
    log_cleanup_policy: frozenset[str] = strings(
        frozenset({"delete"}),
        options=CLEANUP_POLICIES,
        mode=_DYNAMIC,
        doc="Default of cleanup.policy.",
    )
    log_local_retention_bytes: int = long(
        -2, low=-2, mode=_DYNAMIC, doc="Default of local.retention.bytes."
    )
    log_local_retention_ms: int = long(
        -2, low=-2, mode=_DYNAMIC, doc="Default of local.retention.ms."
    )
    log_message_timestamp_type: str = string(
        "CreateTime",
        options=TIMESTAMP_TYPES,
        mode=_DYNAMIC,
        doc="Default of message.timestamp.type.",
    )
    log_message_timestamp_before_max_ms: int = long(
        LONG_MAX, low=0, mode=_DYNAMIC, doc="Default of message.timestamp.before.max.ms."
    )
    log_message_timestamp_after_max_ms: int = long(
        3_600_000, low=0, mode=_DYNAMIC, doc="Default of message.timestamp.after.max.ms."
    )
    message_max_bytes: int = integer(
        1_048_588, low=0, importance="high", mode=_DYNAMIC, doc="Default of max.message.bytes."
    )
    min_insync_replicas: int = integer(
        1,
        low=1,
        importance="high",
        mode=_DYNAMIC,
        doc="Default of the topic's min.insync.replicas.",
    )
    unclean_leader_election_enable: bool = boolean(
        False,
        importance="high",
        mode=_DYNAMIC,
        doc="Default of the topic's unclean.leader.election.enable.",
    )
    compression_type: str = string(
        "producer",
        options=COMPRESSION_TYPES,
        importance="high",
        mode=_DYNAMIC,
        doc="Default of the topic's compression.type.",
    )
    compression_gzip_level: int = integer(
        -1, low=1, high=9, also=(-1,), mode=_DYNAMIC, doc="Default of the topic's gzip level."
    )
    compression_lz4_level: int = integer(
        9, low=1, high=17, mode=_DYNAMIC, doc="Default of the topic's lz4 level."
    )
    compression_zstd_level: int = integer(
        3, low=-131072, high=22, mode=_DYNAMIC, doc="Default of the topic's zstd level."
    )
    producer_id_expiration_ms: int = integer(
        86_400_000,
        low=1,
        importance="low",
        mode=_DYNAMIC,
        doc="The state of an idempotent producer expires if it writes nothing for this long.",
    )
    producer_id_expiration_check_interval_ms: int = integer(
        600_000,
        low=1,
        importance="low",
        internal=True,
        doc="How often silent producers are looked for.",
    )

    # Flushing

    log_flush_interval_messages: int = long(
        LONG_MAX, low=1, importance="high", mode=_DYNAMIC, doc="Default of flush.messages."
    )
    log_flush_interval_ms: int | None = long(
        None, importance="high", mode=_DYNAMIC, doc="Default of flush.ms."
    )
    log_flush_scheduler_interval_ms: int = long(
        LONG_MAX,
        importance="high",
        doc="Default of log.flush.interval.ms, and how often it is checked.",
    )
    log_flush_offset_checkpoint_interval_ms: int = integer(
        60_000, low=0, importance="high", doc="How often recovery points are saved."
    )
    log_flush_start_offset_checkpoint_interval_ms: int = integer(
        60_000, low=0, importance="high", doc="How often log start offsets are saved."
    )
    replica_high_watermark_checkpoint_interval_ms: int = long(
        5_000, importance="high", doc="How often high watermarks are saved."
    )
    log_dir_failure_timeout_ms: int = long(
        30_000, low=1, importance="low", doc="Maximum time until a failed directory is reported."
    )
    millstream_acks_all_flush: bool = boolean(
        True,
        ours=True,
        importance="high",
        mode=_DYNAMIC,
        doc="Default of the topic's millstream.acks.all.flush: acknowledged means flushed.",
    )
    millstream_stray_delay_ms: int = long(
        604_800_000,
        low=-1,
        ours=True,
        mode=_DYNAMIC,
        doc="How long a log is kept that was set aside because the cluster's metadata does not "
        "assign it to this broker; -1: until an operator deletes it.",
    )
    millstream_verify_compressed: bool = boolean(
        False, ours=True, mode=_DYNAMIC, doc="Default of the topic's millstream.verify.compressed."
    )

    # Cleaning (compaction)

    log_cleaner_enable: bool = boolean(True, doc="Whether compacted topics are compacted.")
    log_cleaner_threads: int = integer(
        1, low=0, mode=_DYNAMIC, doc="Cleanings that may run at the same time."
    )
    log_cleaner_backoff_ms: int = long(
        15_000,
        low=0,
        mode=_DYNAMIC,
        doc="How long the cleaner sleeps if there is nothing to clean.",
    )
    log_cleaner_dedupe_buffer_size: int = long(
        134_217_728,
        mode=_DYNAMIC,
        doc="Memory for the cleaner's map of keys, over all its threads.",
    )
    log_cleaner_io_buffer_size: int = integer(
        524_288, low=0, mode=_DYNAMIC, doc="Memory for the cleaner's reads and writes."
    )
    log_cleaner_io_buffer_load_factor: float = double(
        0.9, mode=_DYNAMIC, doc="Maximum load factor of the cleaner's map of keys."
    )
    log_cleaner_io_max_bytes_per_second: float = double(
        _DOUBLE_MAX,
        mode=_DYNAMIC,
        doc="Maximum bytes that the cleaner reads and writes per second.",
    )
    log_cleaner_delete_retention_ms: int = long(
        86_400_000, low=0, mode=_DYNAMIC, doc="Default of delete.retention.ms."
    )
    log_cleaner_min_cleanable_ratio: float = double(
        0.5, low=0, high=1, mode=_DYNAMIC, doc="Default of min.cleanable.dirty.ratio."
    )
    log_cleaner_min_compaction_lag_ms: int = long(
        0, low=0, mode=_DYNAMIC, doc="Default of min.compaction.lag.ms."
    )
    log_cleaner_max_compaction_lag_ms: int = long(
        LONG_MAX, low=1, mode=_DYNAMIC, doc="Default of max.compaction.lag.ms."
    )
