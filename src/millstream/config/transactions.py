"""Transaction settings: timeouts, and the topic that stores them."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.config.setting import Mode, boolean, integer, short


@dataclass(frozen=True, init=False, repr=False, eq=False)
class TransactionSettings:
    """Transactions and their topic."""

    transaction_max_timeout_ms: int = integer(
        900_000, low=1, importance="high", doc="The maximum transaction timeout of a producer."
    )
    transaction_state_log_num_partitions: int = integer(
        50,
        low=1,
        importance="high",
        doc="Partitions of __transaction_state; never change it later.",
    )
    transaction_state_log_replication_factor: int = short(
        1,
        low=1,
        importance="high",
        doc="Replicas of __transaction_state. (Kafka: 3, which is impossible with one broker.)",
    )
    transaction_state_log_min_isr: int = integer(
        1, low=1, importance="high", doc="min.insync.replicas of __transaction_state (Kafka: 2)."
    )
    transaction_state_log_segment_bytes: int = integer(
        104_857_600, low=1, importance="high", doc="segment.bytes of __transaction_state."
    )
    transaction_state_log_load_buffer_size: int = integer(
        5_242_880, low=1, importance="high", doc="Bytes read at once when transactions are loaded."
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = integer(
        10_000,
        low=1,
        importance="low",
        doc="How often timed-out transactions are aborted.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        3_600_000, low=1, importance="low", doc="How often expired transactional ids are removed."
    )
    transactional_id_expiration_ms: int = integer(
        604_800_000,
        low=1,
        importance="high",
        doc="An unused transactional id expires after this time.",
    )
    transaction_partition_verification_enable: bool = boolean(
        True,
        importance="low",
        mode=Mode.CLUSTER_WIDE,
        doc="Check that a partition was added to the transaction that writes to it.",
    )
    transaction_two_phase_commit_enable: bool = boolean(
        False, importance="low", doc="Whether a producer may take part in a two-phase commit."
    )
